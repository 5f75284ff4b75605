"""Up to how many requests at once a column is faster: predicted from its race and T(k, b)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from backend.costs.load import Drafting, LoadCosts, acceptance_of, break_even
from backend.results.figures import counted, factor, listed
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard

#: Guesses a pass that the chart has a line for.
LINES = (1, 2, 4, 7, 15)

#: The speed-up from which on a column is said to pay: less is as good as nothing.
PAYS = 1.05


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """A column whose passes compute several rows, on a model whose passes under load are known.

    `rows` and `tokens` are those of its average pass, `drafting` its seconds of drafting a pass,
    `context` the tokens behind which its passes ran on average. `chain`: its rows are one chain of
    guesses, which may be shorter under load.
    """

    load: LoadCosts
    rows: float
    tokens: float
    drafting: float
    context: int
    chain: bool

    def gain(self, requests: float) -> float:
        """How many times as fast as plain decoding it is at so many requests, if it goes on as
        alone.
        """
        passes = self.load(self.rows, requests, self.context) + requests * self.drafting
        return self.tokens * self.load(1, requests, self.context) / passes

    def best_gain(self, requests: float) -> float:
        """The same with as many guesses as are best at that load."""
        if not self.chain:
            return self.gain(requests)
        return self.drafter.gain(self.load, self.best(requests), requests, self.context)

    def best(self, requests: float) -> int:
        """How many guesses are best at that load: as many as alone, or fewer; 0 if none pays."""
        drafter, load = self.drafter, self.load
        guesses = drafter.best(load, requests, self.context, ceil(self.rows - 1))
        pays = drafter.gain(load, guesses, requests, self.context) >= PAYS
        return guesses if pays else 0

    @property
    def limit(self) -> int:
        """The most requests at once, of those that were measured, up to which it pays if it goes on
        as alone; 0: none.
        """
        return self._most(self.gain)

    @property
    def best_limit(self) -> int:
        """The same with as many guesses as are best at each load."""
        return self._most(self.best_gain)

    def _most(self, gain: Callable[[float], float]) -> int:
        paying = itertools.takewhile(lambda requests: gain(requests) >= PAYS, self.load.requests)
        return max(paying, default=0)

    @property
    def drafter(self) -> Drafting:
        """The same as a chance and a price of each guess."""
        guesses = max(self.rows - 1, 1e-9)
        return Drafting(acceptance_of(self.tokens, guesses), self.drafting / guesses)

    def schedule(self, most: int) -> tuple[tuple[int, int, int], ...]:
        """From how many requests to how many which number of guesses is the best, of `most` at the
        largest; 0: none pays.
        """
        return tuple(self.drafter.schedule(self.load, self.context, most))

    @property
    def sentence(self) -> str:
        """Up to which load it is faster, and by how much there."""
        limit = self.best_limit
        gain = self.best_gain(1) if limit else self.gain(1)
        alone = f"{factor(gain)} as fast as KV reuse for one request"
        if limit == 0:
            return f"not faster at any load: {alone}"
        where = "at every load" if limit == self.load.most else f"up to {many(limit)}"
        last = f", {factor(self.best_gain(limit))} for {limit}" if limit > 1 else ""
        return f"faster {where}: {alone}{last}"


def many(requests: int) -> str:
    """So many requests at once."""
    return f"{counted(requests, 'request')} at once"


def under_load(board: Scoreboard, index: int) -> UnderLoad | None:
    """The column's figures under load; None if no pass has a guess or a forced token, or it feeds
    fixed text.
    """
    score, load = board.scores[index], load_of(board, index)
    more = score.drafted or score.forced
    if not (load.known and more and score.passes) or score.fed or score.mean_rows <= 1:
        return None
    drafting = score.drafting / score.passes
    # Not all rows of lookahead are guesses, and what a grammar forces is none.
    chain = board.columns[index].scratch_depth == 0 and score.drafted > 0
    return UnderLoad(
        load, score.mean_rows, score.tokens_per_forward, drafting, _context(score), chain
    )


def load_of(board: Scoreboard, index: int) -> LoadCosts:
    """The costs of load on this column's model, whichever of its columns has them, on a machine as
    fast as it was in this race: what was measured in another hour may be twice as fast.
    """
    score, base = board.scores[index], board.baseline
    known = (other.load for other in board.scores if other.spec == score.spec)
    load = next((load for load in known if load.known), score.load)
    if not load.known or not base.tpot or base.spec != score.spec:
        return load
    return load.scaled(base.tpot / load(1, 1, _context(base)))


def _context(score: Score) -> int:
    """The tokens behind which its passes ran on average."""
    return round(score.prompt_tokens + score.length / 2)


def load_chart(board: Scoreboard) -> dict[str, Any] | None:
    """What the page draws of load; None while nothing is known of it.

    "requests" and "rows": what was measured, "seconds": of each number of requests those of a pass
    over so many rows; "lines": of each of LINES that, and the acceptance at which it breaks even
    at each number of requests, None where no acceptance does; "marks": of each column a
    name, its acceptance or None where its rows are no chain of guesses, and a sentence; "heads" and
    "cells": predicted tokens a second as a table; "note": what it holds for.
    """
    chosen = [i for i in range(len(board.columns)) if load_of(board, i).known]
    if not chosen:
        return None
    load, spec = load_of(board, chosen[0]), board.scores[chosen[0]].spec
    alike = [i for i in chosen if board.scores[i].spec == spec]
    marked = [(i, m) for i in alike if (m := under_load(board, i)) is not None]
    context = max(_context(board.scores[i]) for i in alike)
    rows = load.curves[0].widths
    others = [board.name(i) for i, m in marked if not m.chain]
    have = "has" if len(others) == 1 else "have"
    why = "no line, because some rows are not guesses."
    unlined = f" {listed(others)} {have} {why}" if others else ""
    return {
        "requests": list(load.requests),
        "rows": list(rows),
        "seconds": [_seconds(load, b, context) for b in load.requests],
        "lines": [[k, _break_evens(load, k, context)] for k in LINES if k + 1 <= rows[-1]],
        "marks": [
            {
                "name": board.name(i),
                "acceptance": round(m.drafter.acceptance, 3) if m.chain else None,
                "sentence": m.sentence,
            }
            for i, m in marked
        ],
        "heads": ["Requests", "KV reuse", *(board.name(i) for i, _ in marked)],
        "cells": [_cells(load, b, context, [m for _, m in marked]) for b in load.requests],
        "note": f"Predicted from passes measured here with up to {load.most} requests and "
        f"up to {rows[-1]} rows each, scaled to KV reuse in this race, at a context of {context} "
        "tokens. k is as in this race, or lower where that is faster. Drafts run one request after "
        "another; a server may run them together."
        f"{unlined}",
    }


def _seconds(load: LoadCosts, requests: int, context: int) -> list[float]:
    """Those of a pass by its rows, of which more are never cheaper."""
    times = (round(load(k, requests, context), 6) for k in load.curves[0].widths)
    return list(itertools.accumulate(times, max))


def _break_evens(load: LoadCosts, guesses: int, context: int) -> list[float | None]:
    ratios = (load(1 + guesses, b, context) / load(1, b, context) for b in load.requests)
    evens = (break_even(ratio, guesses) for ratio in ratios)
    return [even if even is None else round(even, 3) for even in evens]


def _cells(load: LoadCosts, requests: int, context: int, marked: Sequence[UnderLoad]) -> list[str]:
    """Predicted tokens a second: plain, and of each column, with its best k where it has one."""
    plain = requests / load(1, requests, context)
    cells = [str(requests), f"{plain:,.0f}"]
    for each in marked:
        k, faster = each.best(requests), plain * each.best_gain(requests)
        if each.chain:
            cells.append(f"{faster:,.0f} with k={k}" if k else f"{plain:,.0f} plain")
        else:
            cells.append(f"{faster:,.0f}")
    return cells
