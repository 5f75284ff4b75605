"""Races on a simulated machine: its passes take what a curve says, its clock moves by nothing else.

So what a round ought to cost is known, and nothing depends on the machine that runs the tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from lib import PROMPT, Noisy, drafting

from backend.costs.pass_costs import CONTEXT, Costs, PassCosts
from backend.decoding import clock as clock_module
from backend.decoding.clock import Clock
from backend.decoding.drafter import Drafter
from backend.decoding.lane import Lane
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import AdaptiveDraftLength
from backend.engines.base import Session
from backend.engines.cache import Pass, Store
from backend.engines.fake import FakeEngine
from backend.racing.schedule import interleave
from backend.results.metrics import Score
from backend.types import Logits, Request

#: Seconds of a call of the draft.
DRAFT = 1e-3


@dataclass
class Machine:
    """Passes take what `truth` says, times `wobble()`; `now` is what its clock shows."""

    truth: PassCosts
    wobble: Callable[[], float] = lambda: 1.0
    now: float = 0.0
    last_rows: int = 0
    ideal: dict[int, float] = field(default_factory=dict)  # seconds by session, had it not wobbled

    def run(self, session: int, rows: int, context: int) -> None:
        changed = self.truth.width_change if rows != self.last_rows else 0.0
        self.last_rows = rows
        seconds = self.truth(rows, context) + changed
        self.spend(session, seconds)

    def spend(self, session: int, seconds: float) -> None:
        self.ideal[session] = self.ideal.get(session, 0.0) + seconds
        self.now += seconds * self.wobble()


class Ticking(FakeEngine):
    """A fake whose passes take what `seconds` says of rows and tokens beyond those that costs are
    quoted at, on a clock of its own: `now`.
    """

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        super().__init__()
        self.now, self._seconds = 0.0, seconds

    def store(self) -> Store:
        store = super().store()
        run = store.run

        def ticking(work: Pass) -> Logits:
            behind = int(work.positions[0]) - CONTEXT
            self.now += self._seconds(len(work.tokens), behind)
            return run(work)

        store.run = ticking  # type: ignore[method-assign]
        return store


def busy(seed: int) -> Callable[[], float]:
    """A machine that wobbles: by a tenth from pass to pass, slower for a third of the time, and
    now and then held up.
    """
    random, slow, passes = Random(seed), 1.0, 0

    def wobble() -> float:
        nonlocal slow, passes
        passes += 1
        if passes % 60 == 0:
            slow = random.choice((1.0, 1.0, 1.6))
        hiccup = random.choice((1.5, 2.0, 4.0)) if random.random() < 0.05 else 1.0
        return slow * hiccup * random.lognormvariate(0.0, 0.1)

    return wobble


def timed(session: Session, spend: Callable[[int, int], None]) -> Session:
    """A session whose passes `spend`, given their rows and the tokens before them."""
    forward = session.forward

    def slow(tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        spend(len(tokens), session.length)
        return forward(tokens, parents, rows)

    session.forward = slow  # type: ignore[method-assign]
    return session


def race(
    machine: Machine, costs: Costs, salt: int, monkeypatch: pytest.MonkeyPatch, tokens: int = 128
) -> tuple[Score, Score]:
    """KV reuse beside speculation that chooses how much to draft, on an answer of its own to each
    `salt`; both tell `costs` of their passes.
    """
    monkeypatch.setattr(clock_module, "perf_counter", lambda: machine.now)
    engine = FakeEngine(salt=salt, sharpness=3.0, vocab_size=256)
    request = Request("x", max_new_tokens=tokens)
    length = AdaptiveDraftLength(costs, DRAFT, 16)
    inner = timed(Noisy(engine, 0.35).open(), lambda _rows, _context: machine.spend(1, DRAFT))
    drafters: tuple[Drafter, Drafter] = (
        Drafter(),
        drafting(engine, length, session=inner),
    )
    machine.ideal.clear()
    lanes, scores = list[Lane](), (Score(), Score())
    for column, drafter in enumerate(drafters):
        session = timed(engine.open(), lambda k, n, column=column: machine.run(column, k, n))
        clock, sampler = Clock(), Sampler(request.sampling)
        parts = Parts(session, engine.tokenizer, sampler, clock, drafter, costs=costs)
        lanes.append(Lane(column, decode(column, PROMPT, request, parts), clock))
    for event in interleave(lanes, lambda: False):
        scores[event.column].add(event)
    assert scores[0].tokens == scores[1].tokens
    return scores
