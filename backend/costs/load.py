"""What a pass costs that serves several requests: T(k, b), seconds of k rows for each of b.

Speculation spends arithmetic that a single request leaves unused. Under load other requests use it:
k rows for each of b cost more and more of b plain ones, until no acceptance pays for them.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from backend.costs.pass_costs import CONTEXT, PassCosts


@dataclass(frozen=True, slots=True)
class LoadCosts:
    """T(k) of passes that serve so many requests each, ascending: one curve for each number."""

    requests: tuple[int, ...] = ()
    curves: tuple[PassCosts, ...] = ()

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self.curves)

    @property
    def most(self) -> int:
        """The largest number of requests that was measured."""
        return self.requests[-1]

    def __call__(self, rows: float, requests: float, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows of each of so many requests: between the measured
        ones, and beyond them, on straight lines.
        """
        times = [each.average(rows, context) for each in self.curves]
        if len(times) == 1:
            return times[0]
        pairs = list(pairwise(range(len(times))))
        low, high = next((p for p in pairs if requests <= self.requests[p[1]]), pairs[-1])
        a, b = self.requests[low], self.requests[high]
        return times[low] + (times[high] - times[low]) * (requests - a) / (b - a)

    def scaled(self, ratio: float) -> "LoadCosts":
        """The same on a machine on which each pass takes `ratio` times as long."""
        return replace(self, curves=tuple(each.scaled(ratio) for each in self.curves))

    def share(self, requests: int) -> PassCosts:
        """One request's share of such passes, by rows: what each of them decides by."""
        nearest = min(range(len(self.requests)), key=lambda i: abs(self.requests[i] - requests))
        return replace(self.curves[nearest].scaled(1 / self.requests[nearest]), assumed=False)


UNKNOWN_LOAD = LoadCosts()


def break_even(ratio: float, guesses: int) -> float | None:
    """The acceptance at which a pass that verifies so many guesses, and takes `ratio` plain ones,
    is worth its time; None if no acceptance makes it so.
    """
    return None if ratio > guesses + 1 else acceptance_of(ratio, guesses)


def tokens_of(acceptance: float, guesses: float) -> float:
    """Tokens that a pass commits on average if every guess behind accepted ones is accepted with
    the same probability a: 1 + a + ... + a^k (arXiv 2211.17192, equation 1). Of a number of guesses
    that is an average, on the straight line between its neighbours.
    """
    below = int(guesses)
    least = sum(acceptance**i for i in range(below + 1))
    return least + (guesses - below) * acceptance ** (below + 1)


def acceptance_of(tokens: float, guesses: float) -> float:
    """The acceptance with which passes that verify so many guesses commit so many tokens."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of(middle, guesses) < tokens else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Drafting:
    """A drafter as load sees it: each guess is accepted with `acceptance` behind accepted ones, and
    drafting it takes `seconds`, of each request one after another.
    """

    acceptance: float
    seconds: float

    def gain(self, load: LoadCosts, guesses: int, requests: float, context: int) -> float:
        """How many times as fast as plain decoding passes are that verify so many guesses."""
        drafting = requests * guesses * self.seconds
        plain = load(1, requests, context)
        tokens = tokens_of(self.acceptance, guesses)
        return tokens * plain / (load(1 + guesses, requests, context) + drafting)

    def best(self, load: LoadCosts, requests: float, context: int, most: int) -> int:
        """The number of guesses, `most` at the largest, that is fastest; 0 if none gains."""
        return max(range(most + 1), key=lambda k: self.gain(load, k, requests, context))

    def schedule(self, load: LoadCosts, context: int, most: int) -> list[tuple[int, int, int]]:
        """The best number of guesses from so many requests to so many, up to the most measured."""
        found: list[tuple[int, int, int]] = []
        for requests in range(1, load.most + 1):
            k = self.best(load, requests, context, most)
            if found and found[-1][2] == k:
                found[-1] = (found[-1][0], requests, k)
            else:
                found.append((requests, requests, k))
        return found
