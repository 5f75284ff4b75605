"""Lookahead decoding (Fu et al., arXiv 2402.02057): Jacobi iteration as an n-gram factory.

One forward pass carries two branches under one attention mask, and both are trees below the last
committed token (the root), so parent links describe the whole of it:

    verification   up to G guesses: n-grams from the pool that begin with the root's token
    lookahead      a window of W columns and N - 1 levels; column 0 of level 0 is the root

        level 0    root - a1 - a2 - a3      column i of level 0 hangs from column i - 1
                    |     |    |    |
        level 1     b0    b1   b2   b3      every other level hangs from the level above
                    |     |    |    |
        logits      n0    n1   n2   n3      the deepest level yields one new token a column

Reading a column downwards gives an N-gram (a1, b1, n1) for the pool. Then every level moves up by
one, the new tokens become the deepest level, and the window slides one column to the right, since
the next committed token takes the place of column 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random

import numpy as np

from backend.costs import PassCosts
from backend.decoding.seams import UNDECIDED, Decision, Drafter
from backend.types import Outcome, Proposal


@dataclass(frozen=True, slots=True)
class Sizes:
    """W, N and G, by the names of lookahead's settings."""

    window: int
    level: int
    guesses: int

    @property
    def rows(self) -> int:
        """Rows of a full pass: the root, the window's branch and all guesses."""
        ahead = self.window - 1 + self.window * (self.level - 2)
        return 1 + ahead + self.guesses * (self.level - 1)

    def __str__(self) -> str:
        return f"window {self.window}, level {self.level}, guesses {self.guesses}"


#: Tokens per pass at each of these sizes, from narrow to wide, with a seeded pool, in the median
#: of the answers that the built-in model gave to the six prompts of `python -m backend bench`,
#: greedy. Those of other models are assumed to be the same.
YIELDS: Mapping[Sizes, float] = {
    Sizes(3, 3, 3): 1.40,
    Sizes(5, 3, 5): 1.53,
    Sizes(7, 4, 7): 1.78,
    Sizes(15, 5, 15): 1.80,
}

#: The sizes where nobody knows what passes cost.
USUAL = Sizes(5, 3, 5)

TIMES = "\N{MULTIPLICATION SIGN}"


def choose_sizes(costs: PassCosts) -> tuple[Sizes, Decision]:
    """The sizes that promise the highest speed-up over plain decoding by T(k), and the decision."""
    if not costs.known:
        return USUAL, Decision(asdict(USUAL), f"{USUAL}: the usual sizes")
    # Each pass has another number of guesses, and with it another width.
    times = {s: (costs(s.rows) + costs.width_change) / costs.one_row for s in YIELDS}
    sizes = max(YIELDS, key=lambda sizes: YIELDS[sizes] / times[sizes])
    time, tokens, gain = times[sizes], YIELDS[sizes], YIELDS[sizes] / times[sizes]
    why = f"{sizes}: a pass takes {time:.2f}{TIMES} as long, for about {tokens:.1f} tokens"
    against = (f"expected speed-up {gain:.2f}{TIMES}",) if gain <= 1 else ()
    return sizes, Decision(asdict(sizes), why, against)


class NgramPool:
    """For each token, the G most recent (N - 1)-token continuations seen after it."""

    def __init__(self, level: int, guesses: int) -> None:
        self._level = level
        self._guesses = guesses
        self._after: dict[int, dict[tuple[int, ...], None]] = {}  # insertion order = age

    def add(self, ngram: Sequence[int]) -> None:
        """Remember one N-gram; a repeated one becomes the youngest."""
        known = self._after.setdefault(ngram[0], {})
        guess = tuple(ngram[1:])
        known.pop(guess, None)
        known[guess] = None
        if len(known) > self._guesses:
            del known[next(iter(known))]

    def add_text(self, tokens: Sequence[int], start: int = 0) -> None:
        """Remember every N-gram of `tokens` that ends at index `start` or later."""
        for end in range(max(start, self._level - 1), len(tokens)):
            self.add(tokens[end - self._level + 1 : end + 1])

    def guesses(self, token: int) -> list[tuple[int, ...]]:
        """Continuations of `token`, youngest first."""
        return list(reversed(self._after.get(token, {})))


class Lookahead(Drafter):
    """`seeded` also fills the pool from prompt and output. `decision`: by which the sizes were
    chosen.
    """

    def __init__(
        self, sizes: Sizes, *, seeded: bool, seed: int, decision: Decision = UNDECIDED
    ) -> None:
        self.decision = decision
        self._window, self._level = sizes.window, sizes.level
        self._seeded = seeded
        self._random = Random(seed)
        self._pool = NgramPool(sizes.level, sizes.guesses)
        self._levels: list[list[int]] = []
        self._root = 0
        self._seen = 0

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        if not self._levels:
            # Each step that adds a level costs a column, so level 0 starts wider by as many.
            width = self._window - 1 + self._level - 2
            self._levels = [self._random.choices(context, k=width)]
        if self._seeded:
            self._pool.add_text(context, self._seen)
            self._seen = len(context)
        self._root = context[-1]
        tokens, parents = _trie(guess[:budget] for guess in self._pool.guesses(self._root))
        if budget < self._window + self._level - 3:
            # The window reaches as far; what it found so near the end would not be used any more.
            return Proposal(tuple(tokens), tuple(parents), by=("n-gram pool",) * len(tokens))
        drafted = len(tokens)
        above = [-1]
        for depth, row in enumerate(self._levels):
            below = list(range(len(tokens), len(tokens) + len(row)))
            tokens += row
            if depth == 0:
                parents += above + below[:-1]
                above += below
            else:
                parents += above
                above = below
        return Proposal(
            tuple(tokens),
            tuple(parents),
            scratch=len(tokens) - drafted,
            feedback=len(self._levels[-1]),
            by=("n-gram pool",) * drafted,
        )

    def rewind(self, length: int) -> None:
        self._seen = min(self._seen, length)

    def observe(self, outcome: Outcome) -> None:
        if not outcome.proposal.feedback:
            return
        new = np.argmax(outcome.feedback, axis=1).tolist()
        if len(self._levels) < self._level - 1:
            # Filling: the window slides past column 0 on every level.
            deepest = new if len(self._levels) == 1 else new[1:]
            self._levels = [row[1:] for row in self._levels] + [deepest]
            return
        first = [self._root, *self._levels[0]]
        rows = [first, *self._levels[1:]]
        columns = range(len(new)) if len(rows) > 1 else range(1, len(first))
        for i, token in zip(columns, new, strict=True):
            self._pool.add([*(row[i] for row in rows), token])
        if len(rows) > 1:
            self._levels = [self._levels[1][1:], *self._levels[2:], new]
        else:
            self._levels = [new]


def _trie(guesses: Iterable[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Tokens and parents of guesses merged at their common beginnings."""
    tokens: list[int] = []
    parents: list[int] = []
    index: dict[tuple[int, int], int] = {}
    for guess in guesses:
        node = -1
        for token in guess:
            if (node, token) not in index:
                index[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = index[node, token]
    return tokens, parents
