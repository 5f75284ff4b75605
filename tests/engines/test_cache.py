"""Sequences whose passes are one: each computes what it would alone, whatever the others do."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from backend.engines.base import Engine
from backend.engines.cache import NewRows
from backend.engines.fake import FakeEngine
from backend.racing.models import LoadedModels
from backend.types import Logits, ModelSpec, chain_parents

#: fp32 kernels round differently for different numbers of rows; logits are up to about 35.
TOLERANCE = 5e-4

ENGINES: dict[str, Callable[[], Engine]] = {
    "fake": FakeEngine,
    "openvino": lambda: LoadedModels(idle_warm_up=True).get(ModelSpec(), print),
    "torch": lambda: LoadedModels(idle_warm_up=True).get(ModelSpec(engine="torch"), print),
}


@pytest.fixture(
    scope="module",
    params=["fake", *(pytest.param(name, marks=pytest.mark.model) for name in list(ENGINES)[1:])],
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    return ENGINES[request.param]()


def alone(engine: Engine, tokens: list[int]) -> Logits:
    """Logits after `tokens`, of a session of their own: float32 [V]."""
    session = engine.open()
    logits = session.forward(tokens, chain_parents(len(tokens)), (len(tokens) - 1,))[0]
    session.close()
    return logits


def chain(tokens: list[int]) -> NewRows:
    return NewRows(tokens, chain_parents(len(tokens)), range(len(tokens)))


def tree(rng: np.random.Generator, vocab: int) -> NewRows:
    """A tree of one to six tokens, of which every row is asked for; (), now and then."""
    size = int(rng.integers(0, 7))
    parents = [int(rng.integers(-1, i)) if i else -1 for i in range(size)]
    return NewRows(rng.integers(3, vocab, size).tolist(), parents, range(size))


def path_to(row: int, parents: list[int]) -> list[int]:
    found: list[int] = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found[::-1]


@pytest.mark.parametrize("seed", range(3))
def test_every_sequence_computes_what_it_would_alone(engine: Engine, seed: int) -> None:
    """Trees of other shapes, rows kept and rejected, texts cut back, holes removed."""
    rng, vocab = np.random.default_rng(seed), 250
    cache = engine.cache(3)
    texts: list[list[int]] = [rng.integers(3, vocab, 2 + 3 * i).tolist() for i in range(3)]
    cache.run([chain(text) for text in texts])
    for i, text in enumerate(texts):
        cache.keep(i, range(len(text)))
    for turn in range(6):
        asked = [tree(rng, vocab) for _ in texts]
        if not any(new.tokens for new in asked):
            continue
        logits = cache.run(asked)
        for i, new in enumerate(asked):
            if new.tokens:
                row = int(rng.integers(len(new.tokens)))
                path = path_to(row, list(new.parents))
                expected = alone(engine, texts[i] + [new.tokens[at] for at in path])
                assert np.abs(logits[i][row] - expected).max() < TOLERANCE
                cache.keep(i, path)
                texts[i] += [new.tokens[at] for at in path]
        if turn == 2:
            cache.rewind(1, 2)
            del texts[1][2:]
        if turn in (1, 3):
            cache.compact()
            assert cache.held == max(map(len, texts))
        assert cache.lengths == tuple(map(len, texts))
    cache.close()


def test_it_begins_with_one_text_for_all(engine: Engine) -> None:
    session = engine.open()
    session.forward([5, 6, 7], chain_parents(3), ())
    session.keep(range(3))
    cache = engine.cache(2)
    cache.load(3, session.export(3))
    found = cache.run([chain([9]), chain([11, 12])])
    assert np.abs(found[0][0] - alone(engine, [5, 6, 7, 9])).max() < TOLERANCE
    assert np.abs(found[1][1] - alone(engine, [5, 6, 7, 11, 12])).max() < TOLERANCE
    cache.close()
    session.close()


def test_hidden_states_are_each_sequences_own(engine: Engine) -> None:
    if not engine.capabilities.hidden_states:
        return
    cache, session = engine.cache(2), engine.open()
    cache.run([chain([5, 6, 7]), chain([9])])
    cache.keep(1, [0])
    session.forward([9], (-1,), (0,))
    assert cache.hidden_states(0).shape[0] == 3
    assert np.abs(cache.hidden_states(1) - session.hidden_states()).max() < TOLERANCE


def test_holes_are_removed_once_reading_them_has_cost_a_copy() -> None:
    engine = FakeEngine()
    cache = engine.cache(2)
    cache.run([chain([5] * 40), chain([6] * 20)])
    cache.keep(0, range(40))
    cache.keep(1, range(20))
    held = []
    for _ in range(40):
        cache.run([NewRows([5] * 60, [-1] * 60, (0,)), chain([7])])
        cache.keep(0, [0])
        cache.keep(1, [0])
        held.append(cache.held)
    assert max(held) < 40 * 60 / 2
    found = cache.run([chain([9]), NewRows()])
    assert np.array_equal(found[0][0], engine.logits([5] * 80 + [9]))
    cache.close()
    assert engine.open_sessions == 0


def test_misuse_is_refused() -> None:
    cache = FakeEngine().cache(2)
    with pytest.raises(RuntimeError, match="without tokens"):
        cache.run([NewRows(), NewRows()])
    cache.run([chain([1, 2]), NewRows()])
    with pytest.raises(RuntimeError, match="before keep"):
        cache.run([chain([1]), NewRows()])
    with pytest.raises(RuntimeError, match="not a path"):
        cache.keep(0, [1])
    with pytest.raises(RuntimeError, match="rewind"):
        cache.rewind(1, 1)
    with pytest.raises(RuntimeError, match="not empty"):
        cache.load(1, {})
