"""Runs a program: fixed text is fed through the cache, slots are decoded by the column's strategy.

Between two nodes the context holds only tokens whose text is final. What a slot wrote beyond its
value (a stop string, the end of the text) is cut off, and characters of the value that shared a
token with it are written again together with the fixed text that follows.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from backend.decoding.constraint import Constraint, NullConstraint
from backend.decoding.context import Context
from backend.decoding.digits import rounded
from backend.decoding.loop import Answer, Parts, with_decisions
from backend.decoding.sampling import Sampler
from backend.errors import DerbyError
from backend.events import Event, Fed, Filled, Finished, Reason
from backend.grammar.lark.text import regex_literal
from backend.grammar.sources import GrammarSource
from backend.programs.healing import Endless, Healing
from backend.programs.parser import Gen, Program, Select, Slot, Text, Value
from backend.types import Request, Sampling

#: Makes the constraint of a slot whose text begins with the given one, then is one of the grammar.
Compile = Callable[[GrammarSource, str], Constraint]

#: Reasons for which a slot's end is the end of the column.
FATAL = ("context full",)


@dataclass(frozen=True, slots=True)
class ProgramMode:
    """How a column runs a program. `restart`: every slot begins with an empty cache, as if it were
    a call of its own. `single`: the fixed text is not fed; all of it is generated in one go.
    `grammar` is the column's own: it binds each slot that has none, from its start.
    """

    restart: bool = False
    single: bool = False
    grammar: GrammarSource | None = None


def run_program(
    column: int,
    program: Program,
    prompt: Sequence[int],
    request: Request,
    parts: Parts,
    compile_grammar: Compile,
    mode: ProgramMode = ProgramMode(),
) -> Iterator[Event]:
    """Yield the events of one column; `prompt` are the tokens before the program's text.

    Advances `parts` in place and closes its session and drafter when exhausted, closed or failed.
    """
    runner = _Runner(column, prompt, request, parts, compile_grammar, mode)
    try:
        events = runner.run_single(program) if mode.single else runner.run(program)
        yield from with_decisions(column, parts, events)
        yield Finished(column, runner.reason, runner.tail)
    finally:
        parts.session.close()
        parts.drafter.close()


class _Runner:
    """`_carry` is text that belongs to the context but has no tokens in it yet."""

    def __init__(
        self,
        column: int,
        prompt: Sequence[int],
        request: Request,
        parts: Parts,
        compile_grammar: Compile,
        mode: ProgramMode,
    ) -> None:
        self.reason: Reason = "end of program"
        self.tail: list[list[str]] = []
        self._column = column
        self._context: Context = parts.context(prompt)
        self._request = request
        self._parts = parts
        self._compile = compile_grammar
        self._mode = mode
        self._carry = ""
        self._values: dict[str, str] = {}

    def run(self, program: Program) -> Iterator[Event]:
        for node in program.nodes:
            match node:
                case Text(text):
                    self._carry += text
                case Value(name):
                    self._carry += self._values[name]
                case slot:
                    yield from self._slot(slot)
            if self.reason in FATAL:
                return
        if self._carry:
            yield self._feed(self._carry)

    def run_single(self, program: Program) -> Iterator[Event]:
        """One generation as long as all that follows the first fixed text."""
        first = program.nodes[0]
        yield self._feed(first.text if isinstance(first, Text) else "")
        encode = self._parts.tokenizer.encode_plain
        length = sum(len(encode(n.text)) for n in program.nodes[1:] if isinstance(n, Text))
        length += sum(n.max_tokens for n in program.nodes if isinstance(n, Gen))
        request = replace(self._request, max_new_tokens=max(1, length), stop=())
        tokenizer = self._parts.tokenizer
        endless = Endless(tokenizer.eos_ids, tokenizer.vocab_size)
        parts = replace(self._parts, limit=0, constraint=endless)
        answer = Answer(self._column, self._context, request, parts)
        yield from answer.run()
        last = answer.finish()
        self.reason, self.tail = last.reason, last.spans

    def _slot(self, slot: Slot) -> Iterator[Event]:
        carried, self._carry = self._carry, ""
        with self._parts.clock.step():
            healed = self._heal(carried)
            fixed = carried[: len(carried) - len(healed)]
            tokens = self._extend(fixed) + self._begin()
            with self._parts.clock.part("mask"):
                request, parts = self._plan(slot, healed)
            if self._mode.restart:
                self._context.forget()
        yield self._fed(fixed, tokens)
        answer = Answer(self._column, self._context, request, parts, skip=len(healed))
        yield from answer.run()
        tail = answer.text.flush_whole()
        if answer.reason in FATAL:
            self.reason = answer.reason
        value = self._settle(answer, healed)
        self._values[slot.name] = value
        yield Filled(self._column, slot.name, value, [["sampled", tail]] if tail else [])

    def _feed(self, text: str) -> Fed:
        with self._parts.clock.step():
            tokens = self._extend(text) + self._begin()
        return self._fed(text, tokens)

    def _extend(self, text: str) -> int:
        tokens = self._parts.tokenizer.encode_plain(text)
        self._context.extend(tokens)
        return len(tokens)

    def _begin(self) -> int:
        """Put the token that begins a text where there is none yet: a model needs something to
        continue. Returns how many were put. Raises DerbyError if the vocabulary has none.
        """
        if self._context.tokens:
            return 0
        start = self._parts.tokenizer.start_id
        if start is None:
            raise DerbyError(
                "The program begins with a slot, and this model has no token that begins or ends a "
                "text: write at least one character before the first slot."
            )
        self._context.extend([start])
        return 1

    def _fed(self, text: str, tokens: int) -> Fed:
        spans = [["fixed", text]] if text else []
        return Fed(self._column, tokens, spans, rounded(self._parts.clock.last["total"]))

    def _heal(self, text: str) -> str:
        """The text of the last token before a slot, if another token could begin with it."""
        if not self._request.heal or not text:
            return ""
        tokenizer = self._parts.tokenizer
        tokens = tokenizer.encode_plain(text)
        if len(tokens) < 2 and not self._context.tokens:
            return ""
        piece = tokenizer.stream().push(tokens[-1])
        if not piece or not text.endswith(piece) or len(tokenizer.extending(tokens[-1])) < 2:
            return ""
        return piece

    def _plan(self, slot: Slot, healed: str) -> tuple[Request, Parts]:
        """The request and the parts with which a slot is decoded."""
        parts, sampling = self._parts, self._request.sampling
        grammar = slot_grammar(slot) or self._mode.grammar
        if grammar:
            constraint = self._compile(grammar, healed)
        elif healed:
            tokens = parts.tokenizer.encode_plain(healed)
            allowed = parts.tokenizer.extending(tokens[-1])
            constraint = Healing(allowed, parts.tokenizer.vocab_size)
        else:
            constraint = NullConstraint()
        limit, stop = 256, ()
        if isinstance(slot, Gen):
            limit, stop = slot.max_tokens + bool(healed), slot.stop
            if slot.temperature is not None:
                sampling = replace(sampling, temperature=slot.temperature)
        request = replace(self._request, max_new_tokens=limit, stop=stop, sampling=sampling)
        return request, replace(parts, constraint=constraint, sampler=Sampler(sampling), limit=0)

    def _settle(self, answer: Answer, healed: str) -> str:
        """Cut the context back to whole tokens of the slot's value; return the value."""
        written = answer.text.shown
        stream, seen, good, kept = self._parts.tokenizer.stream(), "", "", 0
        for i, token in enumerate(answer.tokens):
            piece = stream.push(token)
            seen += piece
            if piece and written.startswith(seen):
                good, kept = seen, i + 1
        self._context.cut(len(self._context.tokens) - len(answer.tokens) + kept)
        self._carry = written[len(good) :]
        return written[len(healed) :]


def hottest(sampling: Sampling, program: Program | None) -> float:
    """The highest temperature at which anything of the request is chosen."""
    slots = program.nodes if program else ()
    own = [slot.temperature for slot in slots if isinstance(slot, Gen)]
    return max([sampling.temperature, *(each for each in own if each is not None)])


def slot_grammars(program: Program) -> list[GrammarSource]:
    """The grammars of a program's slots."""
    found = [slot_grammar(node) for node in program.nodes if isinstance(node, Slot)]
    return [grammar for grammar in found if grammar]


def slot_grammar(slot: Slot) -> GrammarSource | None:
    """The grammar of a slot that has one of its own."""
    if isinstance(slot, Select):
        options = " | ".join(json.dumps(option, ensure_ascii=False) for option in slot.options)
        return GrammarSource("lark", f"start: {options}", slot.name)
    if not slot.regex:
        return None
    return GrammarSource("lark", f"start: SLOT\nSLOT: {regex_literal(slot.regex)}", slot.name)
