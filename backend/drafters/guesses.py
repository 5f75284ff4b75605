"""A tree of guesses, each with its chance of being reached and accepted."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from backend.drafters.draft_length import DraftLength
from backend.types import Outcome, Proposal

Path = tuple[int, ...]


class Guess(NamedTuple):
    """`path`: the tokens from the root's next to this one. `path_probability`: the chance
    that all of them are right. `kind`: the class of guesses by whose acceptance it was estimated.
    `by`: who guesses it, for display.
    """

    path: Path
    path_probability: float
    kind: int
    by: str = ""


def proposal_of(
    guesses: Sequence[Guess],
    draft_length: DraftLength,
    calls: int = 0,
    required: Set[Path] = frozenset(),
) -> Proposal:
    """Propose as many of the guesses as pay, the most probable first, but the `required` ones in
    any case.

    No guess is more probable than its parent, and what is required has required parents, so that
    parents come first. Padding rows repeat the first guess and are never looked at.
    """
    best = sorted(
        guesses,
        key=lambda guess: (guess.path not in required, -guess.path_probability, len(guess.path)),
    )
    pay = draft_length.verify_count([guess.path_probability for guess in best])
    best = best[: max(pay, len(required))]
    rows = {guess.path: row for row, guess in enumerate(best)}
    parents = tuple(rows.get(guess.path[:-1], -1) for guess in best)
    tokens = tuple(guess.path[-1] for guess in best)
    padding = draft_length.padding_rows(len(best))
    return Proposal(
        tokens + tokens[:1] * padding,
        parents + (-1,) * padding,
        scratch=padding,
        calls=calls,
        by=tuple(guess.by for guess in best),
    )


def paths_of(proposal: Proposal) -> list[Path]:
    """The path of each drafted token."""
    paths: list[Path] = []
    for token, parent in zip(proposal.tokens, proposal.parents[: proposal.drafted], strict=False):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    return paths


def verified(guesses: Mapping[Path, int], outcome: Outcome) -> list[tuple[int, bool]]:
    """Of the guesses, kinds by path, those that a sample decided: their kind, and if it was right.

    Of guesses behind a wrong one nothing is known.
    """
    known: list[tuple[int, bool]] = []
    path: Path = ()
    for token in outcome.decided:
        known += [
            (kind, guess[-1] == token)
            for guess, kind in guesses.items()
            if len(guess) == len(path) + 1 and guess[:-1] == path
        ]
        path = (*path, token)
    return known


def joined(these: Sequence[Guess], those: Sequence[Guess]) -> list[Guess]:
    """Both drafters' guesses in one tree, as if they were wrong independently of one another.

    Behind a common path, a token that both guess is wrong if both are; where they guess different
    tokens, they cannot both be right. A guess of both has the first one's kind.
    """
    first, second = _children(these), _children(those)
    kinds = {guess.path: guess.kind for guess in (*those, *these)}
    by = {guess.path: guess.by for guess in those}
    for path, _, _, name in these:
        by[path] = f"{name} and {by[path]}" if path in by else name
    reached: dict[Path, float] = {(): 1.0}
    for parent in sorted({path[:-1] for path in kinds}, key=len):
        both = _both(first.get(parent, {}), second.get(parent, {}))
        for token, chance in both.items():
            reached[*parent, token] = reached[parent] * chance
    return [Guess(path, reached[path], kind, by[path]) for path, kind in kinds.items()]


def _children(guesses: Sequence[Guess]) -> dict[Path, dict[int, float]]:
    """Behind each path, each token's chance of being right if the path is."""
    reached = {guess.path: guess.path_probability for guess in guesses}
    children: dict[Path, dict[int, float]] = {}
    for path, chance in reached.items():
        before = reached.get(path[:-1], 1.0)
        children.setdefault(path[:-1], {})[path[-1]] = chance / before if before else 0.0
    return children


def _both(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """The chances of tokens that one or the other expects in the same place; at most 1 in all."""
    chances: dict[int, float] = {}
    for token in {**first, **second}:
        a, b = first.get(token, 0.0), second.get(token, 0.0)
        other = sum((second if a else first).values())
        alone = (a or b) * (1 - other) / max(1 - (a or b) * other, 1e-9)
        chances[token] = 1 - (1 - a) * (1 - b) if a and b else alone
    total = max(1.0, sum(chances.values()))
    return {token: chance / total for token, chance in chances.items()}
