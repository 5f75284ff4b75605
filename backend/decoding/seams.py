"""The seams of the loop: what suggests tokens, and what restricts them. Each is plain decoding by
itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.decoding.verification import KEYED, Verifier
from backend.types import HiddenStates, Layers, Outcome, Proposal

NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a drafter decided: the `settings` in force instead of the column's own, `why` in a
    sentence, what it `declined`, and whether nothing but `plain` decoding remains.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    declined: tuple[str, ...] = ()
    plain: bool = False

    def beside(self, declined: tuple[str, ...]) -> "Decision":
        """The same, and what else was declined."""
        return replace(self, declined=(*declined, *self.declined)) if declined else self


UNDECIDED = Decision()


class KnownStates:
    """The target's hidden states in front of `layers`, of the tokens from `start` up to `end`. A
    drafter that reads them creates one, and the context adds those of every token that it keeps.
    Tokens that were in the cache from the outset, as in a session that stayed open, have none.
    """

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.start = 0
        self._rows = list[HiddenStates]()  # [D] of each token

    @property
    def end(self) -> int:
        return self.start + len(self._rows)

    def between(self, position: int, end: int) -> HiddenStates:
        """Those of the tokens from `position` up to `end`. RuntimeError if some are unknown."""
        if not self.start <= position < end <= self.end:
            raise RuntimeError(f"{position} to {end}: known are {self.start} to {self.end}")
        return np.stack(self._rows[position - self.start : end - self.start])

    def add(self, position: int, rows: HiddenStates) -> None:
        """Take those of the tokens from `position` on."""
        if position != self.end:
            self.start, self._rows = position, []
        self._rows += list(rows)

    def truncate(self, length: int) -> None:
        """Forget those of tokens behind the first `length`."""
        del self._rows[max(0, length - self.start) :]
        self.start = min(self.start, length)


class Drafter:
    """Suggests tokens; by itself none, which is plain autoregressive decoding.

    `states`: where the context puts the target's hidden states; None: it reads none. `verifier`:
    the rule by which its proposals are accepted. `decision`: the one in force, a new object
    whenever it changes.
    """

    states: KnownStates | None = None
    verifier: Verifier = KEYED
    decision: Decision = UNDECIDED

    def prefill(self, context: Sequence[int], computed: int) -> None:
        """Read the first `computed` tokens of the text, which the target has just computed.

        Called for each chunk of the prompt and in the step that writes the first token. A draft
        reads the prompt here, so that the time counts in TTFT and not in TPOT.
        """

    def rewind(self, length: int) -> None:
        """Learn that only the first `length` tokens of the context still stand: a program cuts its
        text, and a text may end within tokens that a constraint forced.
        """

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        """Suggest what follows `context`, at most `budget` tokens deep, which may be 0.

        `context` is every committed token, prompt included, and those that a constraint forces
        next; its last one is what the suggestions hang below. The forced ones the target has not
        computed, and they may never be written: `rewind` follows where the text ends before them.
        """
        return NOTHING

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of the proposal. Called once per decode step."""

    def conclude(self) -> None:
        """The text has ended: sum up in `decision` what was decided round by round."""

    def close(self) -> None:
        """Give back what it holds, such as a draft's cache."""


#: bool [1 + verified, V], a row for each row of logits, True where a token is allowed; no rows:
#: everything is.
Masks = NDArray[np.bool_]

UNMASKED: Masks = np.ones((0, 0), dtype=np.bool_)


class Constraint:
    """Restricts the text; by itself in nothing. Its state moves in `advance` only, over committed
    tokens only.
    """

    def forced(self, budget: int) -> Sequence[int]:
        """The only legal continuation, at most `budget` tokens."""
        return ()

    def cut(self, proposal: Proposal) -> Proposal:
        """The proposal without tokens that the constraint rules out; scratch untouched."""
        return proposal

    def masks_along(self, proposal: Proposal) -> Masks:
        """Allowed tokens after the root (row 0) and after verified token i (row i + 1)."""
        return UNMASKED

    def start_masks(self, proposal: Proposal) -> Callable[[], Masks]:
        """Begin `masks_along`, which runs beside the forward pass, and return what waits for it. No
        other method may be called between the two.
        """
        masks = self.masks_along(proposal)
        return lambda: masks

    def advance(self, tokens: Sequence[int]) -> None:
        """Take committed tokens."""

    def finished(self) -> bool:
        """True when nothing but the end of the text may follow, or the text behind it."""
        return False

    def completes(self, text: str) -> bool:
        """Whether `text` is a whole one and the text behind it."""
        return True

    def text(self) -> str:
        """The text so far that is restricted: without a model's thinking in front of it."""
        return ""

    def expected(self) -> str:
        """What must follow before the text may end, in words; "" if it may end here."""
        return ""
