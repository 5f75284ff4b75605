"""Runs a program: fixed text is fed through the cache, and the column's strategy decodes the slots.

A slot competes with the text behind it: the model may write that at each place where the value may
end, and there the value is cut. Between two nodes the context holds only tokens whose text is
final. What a slot wrote beyond its value (the text behind, a stop string, the end of the text) is
cut off. Characters of the value that shared a token with it are written again, together with the
fixed text that follows.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from backend.decoding.clock import rounded
from backend.decoding.loop import Generation, Parts, TokenSequence
from backend.decoding.sampling import Sampler
from backend.decoding.seams import NOTHING, UNMASKED, Constraint, Masks
from backend.decoding.text_stream import TextStream
from backend.errors import DerbyError
from backend.events import Event, Fed, Filled, Finished, Reason
from backend.grammar.sources import GrammarSource
from backend.programs.parser import Gen, Node, Program, Select, Slot, Text, Value
from backend.tokenizer import Tokenizer
from backend.types import Proposal, Request, Sampling

#: Makes the constraint of a slot whose text begins with the first given one, then is one of the
#: grammar, and ends where the other one follows.
Compile = Callable[[GrammarSource, str, str], Constraint]

#: Characters of the text behind a slot with which it competes. A value that holds as many ends at
#: the first of them.
COMPETING = 16

#: Reasons for which a slot's end is the end of the column.
FATAL = ("context full", "stopped")


class Healing(Constraint):
    """Token healing: the last token of fixed text is taken back, and the first one of what replaces
    it must be one of `allowed`. A prompt that ends in "http:" makes "//" unlikely, because texts
    spell "http://" with the token "://".
    """

    def __init__(self, allowed: Sequence[int], vocab_size: int) -> None:
        self._first = np.zeros(vocab_size, dtype=np.bool_)
        self._first[list(allowed)] = True
        self._done = False

    def cut(self, proposal: Proposal) -> Proposal:
        """Nothing is drafted for the first token, which is sampled under the mask."""
        return proposal if self._done else NOTHING

    def masks_along(self, proposal: Proposal) -> Masks:
        return UNMASKED if self._done else self._first[None]

    def advance(self, tokens: Sequence[int]) -> None:
        self._done = self._done or bool(tokens)


def run_program(
    column: int,
    program: Program,
    prompt: Sequence[int],
    request: Request,
    parts: Parts,
    compile_grammar: Compile,
    grammar: GrammarSource | None = None,
) -> Iterator[Event]:
    """Yield the events of one column. `prompt` holds the tokens before the program's text.
    `grammar` is the column's own: it applies to each slot without a grammar, from the slot's start.
    Advances `parts` in place.
    """
    sequence = TokenSequence(prompt, parts)
    opening = -1 if program.user else len(prompt)
    runner = _Runner(column, sequence, request, parts, compile_grammar, grammar, opening)
    yield from runner.run(program)
    yield Finished(column, runner.reason, runner.tail)


@dataclass
class _Runner:
    """`carry` is text that belongs to the context but has no tokens in it yet; of it, the first
    `visible` characters were shown as the end of a slot's value. `opening`: the length of the
    context while no text is in it; -1: there was some from the start.
    """

    column: int
    sequence: TokenSequence
    request: Request
    parts: Parts
    compile: Compile
    grammar: GrammarSource | None
    opening: int
    reason: Reason = "end of program"
    tail: list[list[str]] = field(default_factory=list)
    carry: str = ""
    visible: int = 0
    values: dict[str, str] = field(default_factory=dict)

    def run(self, program: Program) -> Iterator[Event]:
        for i, node in enumerate(program.nodes):
            match node:
                case Text(text):
                    self.carry += text
                case Value(name):
                    self.carry += self.values[name]
                case slot:
                    yield from self._slot(slot, self._behind(slot, program.nodes[i + 1 :]))
            if self.reason in FATAL:
                return
        if self.carry:
            with self.parts.clock.step():
                self._extend(self.carry)
            yield self._fed(self.carry)

    def _behind(self, slot: Slot, nodes: Iterable[Node]) -> str:
        """What is known of the beginning of the text behind a slot."""
        text = ""
        for node in nodes:
            if isinstance(node, Slot) or (isinstance(node, Value) and node.name == slot.name):
                break
            text += node.text if isinstance(node, Text) else self.values[node.name]
        return text[:COMPETING]

    def _slot(self, slot: Slot, behind: str) -> Iterator[Event]:
        carried, self.carry = self.carry, ""
        with self.parts.clock.step():
            healed = self._heal(carried[self.visible :])
            fixed = carried[: len(carried) - len(healed)]
            self._extend(fixed)
            with self.parts.clock.phase("mask"):
                request, parts = self._plan(slot, healed, behind)
        yield self._fed(fixed)
        text = TextStream(parts.tokenizer, request.stop, len(healed), behind)
        generation = Generation(self.column, self.sequence, request, parts, text)
        while generation.goes_on():
            yield from (generation.prefill(),) if generation.reading else generation.step()
        if generation.reason == "stopped":  # in the middle of a value
            last = generation.finish()
            self.reason, self.tail = last.reason, last.spans
            return
        if generation.reason in FATAL:
            self.reason = generation.reason
        streamed, rest = len(text.output), text.flush_whole()
        output = self._output(generation, max(streamed, len(healed)), behind, parts.constraint)
        tail = rest[: len(output) - streamed]
        value = self._settle(generation, output, healed)
        self.values[slot.name] = value
        yield Filled(self.column, slot.name, value, [["sampled", tail]] if tail else [])

    def _extend(self, text: str) -> None:
        """Append fixed text; where there is none yet, the token that begins a text: a model needs
        something to continue. Raises DerbyError if the vocabulary has no such token.
        """
        self.sequence.extend(self._encoded(text))
        if not self.sequence.tokens:
            start = self.parts.tokenizer.start_id
            if start is None:
                raise DerbyError("This model cannot begin with a slot: write some text before it.")
            self.sequence.extend([start])

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text after the context; those of a prompt if nothing has been written
        yet.
        """
        tokenizer, before = self.parts.tokenizer, self.sequence.tokens
        if text and len(before) == self.opening:
            tokens = tokenizer.encode(text, chat=False)
            if tokens[: len(before)] == list(before):
                return tokens[len(before) :]
        return tokenizer.encode_plain(text)

    def _fed(self, text: str) -> Fed:
        unseen, self.visible = text[self.visible :], 0
        spans = [["fixed", unseen]] if unseen else []
        return Fed(self.column, spans, rounded(self.parts.clock.last["total"]))

    def _heal(self, text: str) -> str:
        """The text of the last token before a slot, if another token could begin with it."""
        if not text:
            return ""
        tokenizer = self.parts.tokenizer
        tokens = self._encoded(text)
        if len(tokens) < 2 and not self.sequence.tokens:
            return ""
        piece = tokenizer.stream().push(tokens[-1])
        if not piece or not text.endswith(piece) or len(tokenizer.extending(tokens[-1])) < 2:
            return ""
        return piece

    def _plan(self, slot: Slot, healed: str, behind: str) -> tuple[Request, Parts]:
        """The request and the parts with which a slot is decoded."""
        parts, sampling = self.parts, self.request.sampling
        grammar = slot_grammar(slot) or self.grammar
        if grammar:
            constraint = self.compile(grammar, healed, behind)
        elif healed:
            tokens = parts.tokenizer.encode_plain(healed)
            allowed = parts.tokenizer.extending(tokens[-1])
            constraint = Healing(allowed, parts.tokenizer.vocab_size)
        else:
            constraint = Constraint()
        if isinstance(slot, Select):  # no token is shorter than a byte
            longest = max(len(option.encode()) for option in slot.options)
            limit, stop = len((healed + behind).encode()) + longest + 1, ()
        else:
            limit, stop = slot.max_tokens + bool(healed), slot.stop
            if behind and not (stop or grammar):
                stop = (behind,)
            if slot.temperature is not None:
                sampling = replace(sampling, temperature=slot.temperature)
        request = replace(self.request, max_new_tokens=limit, stop=stop, sampling=sampling)
        return request, replace(parts, constraint=constraint, sampler=Sampler(sampling))

    def _output(
        self, generation: Generation, start: int, behind: str, constraint: Constraint
    ) -> str:
        """What an answer wrote up to where the text behind begins, `start` at the earliest. If a
        limit ended it, that may be the beginning of the text behind.
        """
        text, eos_ids = generation.text.output, self.parts.tokenizer.eos_ids
        if behind and not generation.text.stopped and eos_ids.isdisjoint(generation.tokens[-1:]):
            for end in range(start, len(text) + 1):
                meets = behind.startswith(text[end:]) or text.startswith(behind, end)
                if meets and constraint.completes(text[:end] + behind):
                    return text[:end]
        return text

    def _settle(self, generation: Generation, output: str, healed: str) -> str:
        """Cut the context back to whole tokens of the slot's value, and return the value."""
        written = output if len(output) >= len(healed) else healed  # a limit may cut what is healed
        stream, text, prefix, count = self.parts.tokenizer.stream(), "", "", 0
        for i, token in enumerate(generation.tokens):
            piece = stream.push(token)
            text += piece
            if piece and stream.whole and written.startswith(text):
                prefix, count = text, i + 1
        self.sequence.cut(len(self.sequence.tokens) - len(generation.tokens) + count)
        self.carry = written[len(prefix) :]
        self.visible = len(output) - len(prefix)
        return written[len(healed) :]


def hottest(sampling: Sampling, program: Program | None) -> float:
    """The highest temperature at which anything of the request is chosen."""
    slots = program.nodes if program else ()
    own = [slot.temperature or 0.0 for slot in slots if isinstance(slot, Gen)]
    return max([sampling.temperature, *own])


def most_tokens(program: Program, tokenizer: Tokenizer) -> int:
    """Tokens that the program's text may take: what its slots may write, and fixed text, each with
    a token more, which may be healed. No token is shorter than a byte.
    """
    total, slots = 1, dict[str, int]()
    for node in program.nodes:
        match node:
            case Text(text):
                new = len(tokenizer.encode_plain(text))
            case Value(name):
                new = slots[name]
            case Gen(name, new):
                slots[name] = new
            case Select(name, options):
                slots[name] = new = max(len(option.encode()) for option in options)
        total += new + 1
    return total


def slot_grammars(program: Program) -> list[GrammarSource]:
    """The grammars of a program's slots."""
    grammars = (slot_grammar(node) for node in program.nodes if isinstance(node, Slot))
    return list(filter(None, grammars))


def slot_grammar(slot: Slot) -> GrammarSource | None:
    """The grammar of a slot that has its own: a regular expression, in parentheses since a line
    break at the end of one does not count.
    """
    if isinstance(slot, Select):
        return GrammarSource("regex", f"(?:{'|'.join(map(re.escape, slot.options))})", slot.name)
    return GrammarSource("regex", f"(?:{slot.regex})", slot.name) if slot.regex else None
