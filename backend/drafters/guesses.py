"""A tree of guesses, each with its chance of being reached and accepted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backend.drafters.draft_length import DraftLength
from backend.types import Outcome, Proposal

Path = tuple[int, ...]


class Guess(NamedTuple):
    """`path`: the tokens from the root's next to this one. `path_probability`: the chance
    that all of them are right. `kind`: the class of guesses by whose acceptance it was estimated.
    """

    path: Path
    path_probability: float
    kind: int


def proposal_of(guesses: Sequence[Guess], draft_length: DraftLength, calls: int = 0) -> Proposal:
    """Propose as many of the guesses as pay, the most probable first.

    No guess is more probable than its parent, so that parents come first. Padding rows repeat the
    first guess and are never looked at.
    """
    best = sorted(guesses, key=lambda guess: (-guess.path_probability, len(guess.path)))
    best = best[: draft_length.verify_count([guess.path_probability for guess in best])]
    rows = {guess.path: row for row, guess in enumerate(best)}
    parents = tuple(rows.get(guess.path[:-1], -1) for guess in best)
    tokens = tuple(guess.path[-1] for guess in best)
    padding = draft_length.padding_rows(len(best))
    return Proposal(
        tokens + tokens[:1] * padding, parents + (-1,) * padding, scratch=padding, calls=calls
    )


def verified(guesses: Mapping[Path, int], outcome: Outcome) -> list[tuple[int, bool]]:
    """Of the guesses, kinds by path, those that a sample decided: their kind, and if it was right.

    Of guesses behind a wrong one nothing is known.
    """
    known: list[tuple[int, bool]] = []
    path: Path = ()
    for token in outcome.tokens:
        known += [
            (kind, guess[-1] == token)
            for guess, kind in guesses.items()
            if len(guess) == len(path) + 1 and guess[:-1] == path
        ]
        path = (*path, token)
    return known
