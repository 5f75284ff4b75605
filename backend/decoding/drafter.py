"""The seam for whatever suggests tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backend.decoding.hidden_states import KnownStates
from backend.decoding.verification import KEYED, Verifier
from backend.types import Outcome, Proposal

NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a drafter decided: `settings` in force instead of those it was given, the speed-up over
    plain decoding that it `predicted` (0: unknown), why in a sentence, what it `declined`, and
    whether all that is left is plain decoding.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    predicted: float = 0.0
    why: str = ""
    declined: tuple[str, ...] = ()
    plain: bool = False

    def beside(self, declined: tuple[str, ...]) -> "Decision":
        """The same, and what else was declined."""
        return replace(self, declined=(*declined, *self.declined)) if declined else self


UNDECIDED = Decision()


class Drafter:
    """Suggests tokens; by itself none, which is plain autoregressive decoding.

    `states`: where it wants the target's hidden states put; None: it reads none. `verifier`: the
    rule by which its proposals are accepted. `decision`: the one in force; a new object whenever it
    has changed.
    """

    states: KnownStates | None = None
    verifier: Verifier = KEYED
    decision: Decision = UNDECIDED

    def prefill(self, context: Sequence[int], computed: int) -> None:
        """Read the first `computed` tokens of the text, which the target has just computed.

        Called for each chunk of the prompt and in the step that writes the first token: whatever a
        draft reads of the prompt, it reads here, so that it counts in TTFT and not in TPOT.
        """

    def rewind(self, length: int) -> None:
        """Learn that only the first `length` tokens of the context still stand."""

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        """Suggest what follows `context`, at most `budget` tokens deep.

        `context` is every committed token, prompt included, and those that a constraint forces
        next, which the target has not computed; its last one is what the suggestions hang below.
        """
        return NOTHING

    def observe(self, outcome: Outcome) -> None:
        """Learn what became of the proposal. Called once per decode step."""

    def conclude(self) -> None:
        """The text has ended: sum up in `decision` what was decided round by round."""

    def close(self) -> None:
        """Give back what it holds, such as a draft's cache."""
