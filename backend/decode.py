"""The decoding loop. Every strategy is this loop with other parts plugged in:

propose -> constrain -> forward -> verify -> commit
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from backend.clock import Clock
from backend.constraints.base import Constraint, NullConstraint
from backend.drafters.base import Drafter, NullDrafter
from backend.engines.base import Session
from backend.events import Event, Finished, Prefilled, Reason, Step
from backend.sampling import Choice, Sampler, Verdict, verify
from backend.text import TextStream, Tokenizer
from backend.types import PREFILL_CHUNK, Logits, Origin, Outcome, Proposal, Request, chain_parents


@dataclass
class Parts:
    """What one column plugs into the loop. The loop closes `session` and `drafter`."""

    session: Session
    tokenizer: Tokenizer
    sampler: Sampler
    clock: Clock
    drafter: Drafter = field(default_factory=NullDrafter)
    constraint: Constraint = field(default_factory=NullConstraint)
    cache: bool = True
    limit: int = 0  # stop the column after so many tokens; 0: the request's limit alone


def decode(column: int, prompt: Sequence[int], request: Request, parts: Parts) -> Iterator[Event]:
    """Decode one answer to the token ids `prompt`, yielding events between steps.

    Advances `parts` in place and closes its session and drafter when exhausted, closed or failed.
    """
    answer = _Answer(column, prompt, request, parts)
    try:
        while answer.reason is None:
            while len(answer.pending) > PREFILL_CHUNK:
                yield answer.prefill()
            yield answer.step()
        yield answer.finish()
    finally:
        parts.session.close()
        parts.drafter.close()


class _Answer:
    """The one mutable record of a running column.

    `context` is every committed token, prompt included. `pending` are those of them that are not
    in the cache yet: at first the prompt, then the last committed token (the root), or all of the
    context where there is no cache.
    """

    def __init__(self, column: int, prompt: Sequence[int], request: Request, parts: Parts) -> None:
        self.reason: Reason | None = None
        self.pending = list(prompt)
        self._context = list(prompt)
        self._column = column
        self._parts = parts
        self._text = TextStream(parts.tokenizer, request.stop)
        self._own_limit = 0 < parts.limit < request.max_new_tokens
        self._room = parts.limit if self._own_limit else request.max_new_tokens
        self._first = True
        self._rows = 0  # rows computed since the last step
        self._last_origin: Origin = "sampled"

    def prefill(self) -> Prefilled:
        """Run one chunk of pending tokens that nobody samples from."""
        parts = self._parts
        chunk, self.pending = self.pending[:PREFILL_CHUNK], self.pending[PREFILL_CHUNK:]
        with parts.clock.step():
            if self._first:
                with parts.clock.part("draft"):
                    parts.drafter.prefill(chunk)
            with parts.clock.part("forward"):
                parts.session.forward(chunk, chain_parents(len(chunk)), ())
            parts.session.keep(range(len(chunk)))
        self._rows += len(chunk)
        done = len(self._context) - len(self.pending)
        return Prefilled(self._column, done, len(self._context), parts.clock.last["total"])

    def step(self) -> Step:
        """One turn of the loop. Shapes: n pending, d drafted, s scratch tokens, vocabulary V."""
        clock = self._parts.clock
        with clock.step():
            proposal = self._propose()
            logits = self._forward(proposal)  # [1 + d + feedback, V] of n + d + s rows
            verdict = self._verify(proposal, logits)
            tokens, origins, pieces = self._commit(proposal, verdict)
            accepted = min(len(verdict.rows), len(tokens))
            self._keep(verdict, tokens)
            with clock.part("mask"):
                self._parts.constraint.advance(tokens)
            with clock.part("draft"):
                feedback = logits[1 + proposal.drafted :]
                self._parts.drafter.observe(Outcome(tuple(tokens), accepted, proposal, feedback))
            if self.reason is None and self._parts.constraint.finished():
                self.reason = "end of text"
        rows, self._rows, self._first = self._rows, 0, False
        return Step(
            self._column,
            tokens,
            list(origins),
            [choice.gap for choice in verdict.choices[: len(tokens)]],
            [[origin, piece] for origin, piece in zip(origins, pieces, strict=True) if piece],
            rows,
            proposal.drafted,
            accepted,
            dict(clock.last),
        )

    def _propose(self) -> Proposal:
        """Forced tokens if the constraint knows some, else what the drafter suggests, made legal.

        Nothing is drafted in the first step, so that TTFT means the same in every column.
        """
        parts, clock, budget = self._parts, self._parts.clock, self._room - 1
        with clock.part("mask"):
            forced = parts.constraint.forced(budget)
        if self._first:
            with clock.part("draft"):
                parts.drafter.prefill(self.pending)
        if self._first or forced.tokens:
            return forced
        with clock.part("draft"):
            proposal = parts.drafter.propose(self._context, budget)
        with clock.part("mask"):
            return parts.constraint.cut(proposal)

    def _forward(self, proposal: Proposal) -> Logits:
        """Run the pending tokens and the proposal; logits of root, drafted and feedback rows."""
        n, d = len(self.pending), proposal.drafted
        total = n + len(proposal.tokens)
        parents = chain_parents(n) + tuple(n + parent for parent in proposal.parents)
        rows = [*range(n - 1, n + d), *range(total - proposal.feedback, total)]
        self._rows += total
        with self._parts.clock.part("forward"):
            return self._parts.session.forward([*self.pending, *proposal.tokens], parents, rows)

    def _verify(self, proposal: Proposal, logits: Logits) -> Verdict:
        with self._parts.clock.part("mask"):
            masks = self._parts.constraint.masks_along(proposal)  # [1 + d, V], or no rows

        def sample(row: int, depth: int) -> Choice:
            mask = masks[row] if masks.size else None
            return self._parts.sampler.choose(logits[row], len(self._context) + depth, mask)

        return verify(proposal, sample)

    def _commit(
        self, proposal: Proposal, verdict: Verdict
    ) -> tuple[list[int], list[Origin], list[str]]:
        """Take the chosen tokens one by one until one of them ends the text.

        Returns tokens, origins, and the text each made showable. Nothing after the cut was ever
        part of the answer, wherever in the block the cut falls.
        """
        tokens: list[int] = []
        origins: list[Origin] = []
        pieces: list[str] = []
        own: Origin = "bonus" if proposal.drafted else "sampled"
        for i, choice in enumerate(verdict.choices):
            tokens.append(choice.token)
            origins.append(proposal.origin if i < len(verdict.rows) else own)
            ends = choice.token in self._parts.tokenizer.eos_ids
            pieces.append("" if ends else self._text.push(choice.token))
            self._room -= 1
            if ends:
                self.reason = "end of text"
            elif self._text.stopped:
                self.reason = "stop string"
            elif self._room == 0:
                self.reason = "column limit" if self._own_limit else "token limit"
            if self.reason is not None:
                break
        self._last_origin = origins[-1]
        return tokens, origins, pieces

    def _keep(self, verdict: Verdict, tokens: list[int]) -> None:
        """Make the accepted rows context. The last committed token is the next root."""
        n, session = len(self.pending), self._parts.session
        session.keep([*range(n), *(n + row for row in verdict.rows[: len(tokens) - 1])])
        self._context += tokens
        self.pending = tokens[-1:]
        if not self._parts.cache:
            session.truncate(0)
            self.pending = list(self._context)

    def finish(self) -> Finished:
        assert self.reason is not None  # noqa: S101 (decode asks only then)
        tail = self._text.flush()
        spans = [[self._last_origin, tail]] if tail else []
        return Finished(self._column, self.reason, spans)
