"""The decoding loop. Every strategy is this loop with other parts plugged in:

propose -> constrain -> forward -> verify -> commit
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

import numpy as np

from backend.costs import UNKNOWN_COSTS, Costs
from backend.decoding.clock import Clock, rounded, rounded_value
from backend.decoding.proposed import proposed
from backend.decoding.sampling import Sampler, penalize
from backend.decoding.seams import NOTHING, Constraint, Drafter
from backend.decoding.text_stream import TextStream
from backend.decoding.verification import Verdict
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.events import Event, Finished, Prefilled, Proposed, Reason, Step
from backend.tokenizer import Tokenizer
from backend.types import (
    PREFILL_CHUNK,
    Logits,
    Origin,
    Outcome,
    Proposal,
    Request,
    chain_parents,
)


@dataclass
class Parts:
    """What one column plugs into the loop; whoever opened them closes them.

    The session may hold the first tokens of the text already; they are not computed again. Once
    `stopped()` is true, no further pass begins.
    """

    session: Session
    tokenizer: Tokenizer
    sampler: Sampler
    clock: Clock
    drafter: Drafter = field(default_factory=Drafter)
    constraint: Constraint = field(default_factory=Constraint)
    cache: bool = True
    positions: int = 1 << 31  # tokens that the context may hold
    costs: Costs = UNKNOWN_COSTS  # every pass is reported to them
    stopped: Callable[[], bool] = lambda: False


class TokenSequence:
    """A running column's text, `tokens`: those of prompt and answer so far. Mutable."""

    def __init__(self, tokens: Sequence[int], parts: Parts) -> None:
        self.tokens = list(tokens)
        self._session, self._drafter, self._cache = parts.session, parts.drafter, parts.cache

    @property
    def pending(self) -> list[int]:
        """Tokens that are not in the cache yet."""
        return self.tokens[self._session.length :]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append fixed text; a forward pass will compute it."""
        self.tokens += tokens

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last forward pass, and their hidden states for who reads them."""
        if self._drafter.states is not None:
            states = self._session.hidden_states(self._drafter.states.layers)
            self._drafter.states.add(self._session.length, states[list(rows)])
        self._session.keep(rows)

    def commit(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Keep these rows of the last forward pass and append the tokens that were chosen."""
        self.keep(rows)
        self.tokens += tokens
        if not self._cache:
            self._truncate(0)

    def cut(self, length: int) -> None:
        """Forget every token after the first `length`."""
        if length < len(self.tokens):
            self._rewind(length)
            del self.tokens[length:]

    def recompute_last(self) -> None:
        """Have the last token computed again if all of them are in the cache."""
        self._rewind(len(self.tokens) - 1)

    def _rewind(self, length: int) -> None:
        if self._session.length > length:
            self._truncate(length)
        self._drafter.rewind(length)

    def _truncate(self, length: int) -> None:
        """Cut the cache; what that forgets beyond is pending again."""
        self._session.truncate(length)
        if self._drafter.states is not None:
            self._drafter.states.truncate(self._session.length)


def decode(column: int, prompt: Sequence[int], request: Request, parts: Parts) -> Iterator[Event]:
    """Decode one answer to the token ids `prompt`, yielding events between steps. Advances `parts`
    in place.
    """
    text = TextStream(parts.tokenizer, request.stop)
    generation = Generation(column, TokenSequence(prompt, parts), request, parts, text)
    while generation.goes_on():
        if generation.reading:
            yield generation.prefill()
        else:
            yield from generation.step()
    yield generation.finish()


class Generation:
    """One stretch of text being decoded: of an answer, or of a program's slot. Mutable. `reason`:
    why it ended, once it has.
    """

    def __init__(
        self, column: int, sequence: TokenSequence, request: Request, parts: Parts, text: TextStream
    ) -> None:
        self.reason: Reason | None = None
        self.tokens: list[int] = []  # those of this answer
        self.text = text  # shows it, up to the stop strings
        self._sequence = sequence
        self._column = column
        self._request = request
        self._parts = parts
        self._room = request.max_new_tokens
        self._first = True
        self._rows = 0  # rows computed since the last step
        self._last_origin: Origin = "sampled"
        sequence.recompute_last()

    def goes_on(self) -> bool:
        """Whether another pass follows."""
        if self.reason is None and self._parts.stopped():
            self.reason = "stopped"
        elif self.reason is None and len(self._sequence.tokens) >= self._parts.positions:
            self.reason = "context full"
        return self.reason is None

    @property
    def reading(self) -> bool:
        """Whether the next pass is over a chunk of text that nobody samples from."""
        return len(self._sequence.pending) > PREFILL_CHUNK

    def prefill(self) -> Prefilled:
        """Compute one chunk of the pending tokens."""
        parts, sequence = self._parts, self._sequence
        chunk = sequence.pending[:PREFILL_CHUNK]
        computed = parts.session.length + len(chunk)
        with parts.clock.step():
            with parts.clock.phase("forward"):
                parts.session.forward(chunk, chain_parents(len(chunk)), ())
            sequence.keep(range(len(chunk)))
            if self._first:
                with parts.clock.phase("draft"):
                    parts.drafter.prefill(sequence.tokens, computed)
        self._rows += len(chunk)
        seconds = rounded(parts.clock.last["total"])
        return Prefilled(self._column, computed, len(sequence.tokens), seconds)

    def step(self) -> tuple[Step, Proposed]:
        """One step of the loop. Shapes: n pending, d drafted, s scratch tokens, vocabulary V."""
        parts, sequence, clock = self._parts, self._sequence, self._parts.clock
        position, pending = len(sequence.tokens), sequence.pending
        n = len(pending)
        with clock.step():
            offered, drafting = self._propose(), clock.last["draft"]

            with clock.phase("mask"):
                proposal = parts.constraint.cut(offered) if offered.guessed else offered
                masks = parts.constraint.start_masks(proposal)

            # Logits are wanted behind the text, behind each drafted token, and of feedback rows.
            total = n + len(proposal.tokens)
            parents = chain_parents(n) + tuple(n + parent for parent in proposal.parents)
            wanted = [*range(n - 1, n + proposal.drafted), *range(total - proposal.feedback, total)]
            with clock.phase("forward"):  # logits: [1 + d + feedback, V] of n + d + s rows
                logits = parts.session.forward([*pending, *proposal.tokens], parents, wanted)

            if self._request.sampling.repetition_penalty != 1:
                logits = self._penalized(proposal, logits)
            with clock.phase("mask"):
                allowed = masks()  # [1 + d, V], or no rows
            verifier = parts.drafter.verifier
            verdict = verifier.verify(proposal, logits, allowed, position, parts.sampler)
            self._require_numbers(logits, verdict)

            tokens, origins, pieces = self._commit(proposal, verdict)
            path = verdict.rows[: len(tokens)]
            outcome = Outcome(tuple(tokens), path, proposal, logits, drafting)
            sequence.commit([*range(n), *(n + row for row in path[: len(tokens) - 1])], tokens)
            with clock.phase("draft"):
                if self._first:
                    parts.drafter.prefill(sequence.tokens, position)
                parts.drafter.observe(outcome)
        if n == 1:  # off the clock: it is nobody's work
            parts.costs.observe(total, position - 1, clock.last["forward"])
        rows, self._rows, self._first = self._rows + total, 0, False
        step = Step(
            self._column,
            tokens,
            list(origins),
            gaps=[rounded_value(choice.gap) for choice in verdict.choices[: len(tokens)]],
            spans=[[origin, piece] for origin, piece in zip(origins, pieces, strict=True) if piece],
            rows=rows,
            drafted=proposal.guessed,
            accepted=max(0, len(path) - proposal.forced),
            seconds={part: rounded(seconds) for part, seconds in clock.last.items()},
            calls=proposal.calls,
        )
        piece = parts.tokenizer.piece
        return step, proposed(self._column, offered, outcome, allowed, self._request, piece)

    def _propose(self) -> Proposal:
        """The constraint's forced tokens and behind them what the drafter suggests, legal or not.

        Nothing is drafted in the first step, in which every draft reads the prompt to its end: TTFT
        then means the same in every column, and TPOT is decode time alone.
        """
        parts, clock, tokens = self._parts, self._parts.clock, self._sequence.tokens
        budget = min(self._room, parts.positions - len(tokens)) - 1
        with clock.phase("mask"):
            forced = parts.constraint.forced(budget)
        if self._first:
            return NOTHING.behind(forced)
        with clock.phase("draft"):
            context = [*tokens, *forced] if forced else tokens
            guesses = parts.drafter.propose(context, budget - len(forced))
        return guesses.behind(forced)

    def _penalized(self, proposal: Proposal, logits: Logits) -> Logits:
        """The logits under the repetition penalty: what a drafted token's row has seen is the
        context and the path to that token. Those of feedback rows stay.
        """
        penalty, logits = self._request.sampling.repetition_penalty, logits.copy()
        context = np.array(self._sequence.tokens, dtype=np.int64)
        for row, path in zip(logits, ((), *proposal.paths), strict=False):
            penalize(row, np.append(context, np.array(path, dtype=np.int64)), penalty)
        return logits

    def _require_numbers(self, logits: Logits, verdict: Verdict) -> None:
        """Raise DerbyError for logits that are NaN. The first step checks all of them, which finds
        damaged weights; later steps check the chosen tokens' gaps, which costs nothing.
        """
        damaged = self._first and np.isnan(logits).any()
        if damaged or any(isnan(choice.gap) for choice in verdict.choices):
            raise DerbyError(
                "The model's logits are not numbers (NaN): choose another precision, or fetch its "
                "weights again."
            )

    def _commit(
        self, proposal: Proposal, verdict: Verdict
    ) -> tuple[list[int], list[Origin], list[str]]:
        """Take the chosen tokens one by one until one of them ends the text.

        Returns tokens, origins, and the text that each lets be shown. Nothing behind the cut is
        part of the answer, wherever in the block the cut falls. A text that is complete at the
        token limit has ended by itself.
        """
        parts, tokens, origins, pieces = self._parts, list[int](), list[Origin](), list[str]()
        eos_ids = () if self._request.ignore_eos else parts.tokenizer.eos_ids
        own_origin: Origin = "bonus" if proposal.drafted else "sampled"
        for i, choice in enumerate(verdict.choices):
            ends, forced = choice.token in eos_ids, i < proposal.forced
            tokens.append(choice.token)
            guess_origin: Origin = "forced" if forced else "drafted"
            origins.append(guess_origin if i < len(verdict.rows) else own_origin)
            pieces.append("" if ends else self.text.push(choice.token))
            self._room -= 1
            with parts.clock.phase("mask"):
                parts.constraint.advance([choice.token])
                if self.text.stopped:
                    self.reason = "stop string"
                elif ends or parts.constraint.finished():
                    self.reason = "end of text"
                elif self._room <= 0:
                    self.reason = "token limit"
            if self.reason is not None:
                break
        self.tokens += tokens
        self._last_origin = origins[-1]
        return tokens, origins, pieces

    def finish(self) -> Finished:
        """The last event, of an answer that has ended."""
        assert self.reason is not None  # noqa: S101 (it has ended)
        tail = self.text.flush()
        spans = [[self._last_origin, tail]] if tail else []
        expected = self._parts.constraint.expected() if self.reason != "stopped" else ""
        return Finished(self._column, self.reason, spans, expected)
