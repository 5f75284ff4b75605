"""Loops in lockstep: every sequence decodes what it would alone, and one pass serves all."""

from collections.abc import Callable
from functools import partial

import pytest
from lib import PROMPT, drafters, naive

from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.base import Engine
from backend.engines.fake import FakeEngine
from backend.engines.lockstep import Lockstep
from backend.events import Step
from backend.types import Capabilities, Request, Sampling, chain_parents

SAMPLING = Sampling(0.8, seed=5)
DRAFTERS = drafters(FakeEngine(period=3), SAMPLING)


def texts_in_lockstep(
    engine: FakeEngine, drafter: str, lengths: list[int]
) -> tuple[list[list[int]], Lockstep]:
    """What so many requests write, each with another prompt and limit."""
    lockstep, found = Lockstep(engine, len(lengths)), dict[int, list[int]]()

    def work(number: int, member: Engine) -> None:
        request = Request("-", lengths[number], SAMPLING)
        parts = Parts(
            member.open(), member.tokenizer, Sampler(SAMPLING), Clock(), DRAFTERS[drafter]()
        )
        events = decode(0, PROMPT[number:], request, parts)
        found[number] = [t for event in events if isinstance(event, Step) for t in event.tokens]

    lockstep.run([partial(work, number) for number in range(len(lengths))])
    return [found[number] for number in range(len(lengths))], lockstep


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_request_writes_what_it_would_alone(drafter: str) -> None:
    engine, lengths = FakeEngine(period=3), [24, 9, 40]
    texts, _ = texts_in_lockstep(engine, drafter, lengths)
    for number, text in enumerate(texts):
        request = Request("-", lengths[number], SAMPLING)
        assert text == naive(engine, PROMPT[number:], request)
    assert engine.open_sessions == 0


def test_one_pass_serves_all_that_still_run() -> None:
    engine = FakeEngine(period=3)
    texts, lockstep = texts_in_lockstep(engine, "none", [5, 9])
    assert engine.forwards == len(lockstep.passes)
    prefill = -(-len(PROMPT) // 64)
    assert engine.forwards == prefill - 1 + max(map(len, texts))
    assert sum(all(each.rows) for each in lockstep.passes) == prefill - 1 + min(map(len, texts))
    assert lockstep.passes[-1].rows == (0, 1)


def test_an_error_of_one_ends_all_and_is_told() -> None:
    engine = FakeEngine()
    lockstep = Lockstep(engine, 2)

    def fails(_member: Engine) -> None:
        raise ValueError("no")

    def runs(member: Engine) -> None:
        session = member.open()
        session.forward([1, 2], chain_parents(2), (1,))
        session.keep([0, 1])

    with pytest.raises(ValueError, match="no"):
        lockstep.run([runs, fails])
    assert engine.open_sessions == 0


def test_a_pass_that_fails_fails_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    lockstep = Lockstep(engine, 2)
    failed: list[int] = []

    def broken(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(lockstep._cache._store, "run", broken)

    def work(number: int, member: Engine) -> None:
        try:
            member.open().forward([1], (-1,), (0,))
        except RuntimeError:
            failed.append(number)
            raise

    works: list[Callable[[Engine], None]] = [partial(work, number) for number in range(2)]
    with pytest.raises(RuntimeError, match="the device is gone"):
        lockstep.run(works)
    assert sorted(failed) == [0, 1]


def test_an_engine_without_batches_is_refused() -> None:
    engine = FakeEngine(capabilities=Capabilities(batch=False))
    with pytest.raises(RuntimeError, match="one sequence a pass"):
        Lockstep(engine, 2)
