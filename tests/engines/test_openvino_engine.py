"""The OpenVINO session against fresh caches: trees, holes, truncation, compaction."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.base import Session
from backend.engines.openvino.engine import OpenVINOEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.types import Logits, ModelSpec, chain_parents

#: fp32 kernels round differently for different numbers of rows; logits are up to about 35.
TOLERANCE = 5e-4

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def engine() -> OpenVINOEngine:
    found = LoadedModels(idle_warm_up=True).get(ModelSpec(), print)
    assert isinstance(found, OpenVINOEngine)
    return found


def fresh(engine: OpenVINOEngine, tokens: list[int]) -> Logits:
    """Logits after `tokens` on a cache that never held anything else: float32 [V]."""
    session = engine.open()
    logits = session.forward(tokens, chain_parents(len(tokens)), (len(tokens) - 1,))[0]
    session.close()
    return logits


def extend(session: Session, tokens: list[int]) -> Logits:
    """Logits of every one of `tokens`, kept: float32 [n, V]."""
    logits = session.forward(tokens, chain_parents(len(tokens)), range(len(tokens)))
    session.keep(range(len(tokens)))
    return logits


operation = st.one_of(
    st.tuples(st.just("extend"), st.lists(st.integers(3, 40_000), min_size=1, max_size=6)),
    st.tuples(st.just("tree"), st.lists(st.integers(-1, 5), min_size=2, max_size=8)),
    st.tuples(st.just("truncate"), st.integers(0, 30)),
    st.tuples(st.just("compact"), st.just(0)),
)


@given(operations=st.lists(operation, min_size=2, max_size=7), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_sequence_of_operations_equals_a_fresh_cache(
    engine: OpenVINOEngine, operations: list, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    session = engine.open()
    kept: list[int] = rng.integers(3, 40_000, 5).tolist()
    extend(session, kept)
    for name, value in operations:
        match name:
            case "extend":
                extend(session, value)
                kept += value
            case "tree":
                kept += _grow_tree(session, value, rng)
            case "truncate":
                session.truncate(min(value, len(kept)))
                del kept[value:]
            case "compact":
                session._cache.compact()
        assert session.length == len(kept)
    last = [int(rng.integers(3, 40_000))]
    found = extend(session, last)[-1]
    assert np.abs(found - fresh(engine, kept + last)).max() < TOLERANCE
    session.close()


def _grow_tree(session: Session, shape: list[int], rng: np.random.Generator) -> list[int]:
    """Run a tree and keep the path to a random node of it; returns the kept tokens."""
    parents = [min(parent, i - 1) for i, parent in enumerate(shape)]
    tokens = rng.integers(3, 40_000, len(parents)).tolist()
    session.forward(tokens, parents, (0,))
    node, path = int(rng.integers(-1, len(parents))), []
    while node >= 0:
        path.append(node)
        node = parents[node]
    session.keep(path[::-1])
    return [tokens[row] for row in path[::-1]]


def test_every_row_of_a_tree_equals_its_own_chain(engine: OpenVINOEngine) -> None:
    session = engine.open()
    context = [1, 504, 300, 77]
    extend(session, context)
    tokens, parents = [10, 20, 30, 40, 50, 60], [-1, 0, 0, 2, -1, 4]
    logits = session.forward(tokens, parents, [5, 3, 0])
    for row, path in zip(logits, ([50, 60], [10, 30, 40], [10]), strict=True):
        assert np.abs(row - fresh(engine, context + path)).max() < TOLERANCE


def test_holes_are_removed_once_reading_them_has_cost_a_copy(engine: OpenVINOEngine) -> None:
    session = engine.open()
    extend(session, list(range(100, 140)))
    sizes = []
    for _ in range(40):
        session.forward([5] * 60, [-1] * 60, (0,))
        session.keep([0])
        sizes.append(session._cache.held)
    assert max(sizes) < 40 * 60 / 2
    assert session.length == 80
    assert (
        np.abs(extend(session, [9])[0] - fresh(engine, [*range(100, 140), *[5] * 40, 9])).max()
        < TOLERANCE
    )


def test_a_cache_of_nothing_but_holes_is_compacted(engine: OpenVINOEngine) -> None:
    """States of no rows were written back: the next pass failed within the plugin, and so did
    every later one of the same model.
    """
    session = engine.open()
    session.forward([5, 6], [-1, -1], (0,))
    session.keep([])
    session._cache.compact()
    assert np.abs(extend(session, [9])[0] - fresh(engine, [9])).max() < TOLERANCE


def test_sessions_do_not_see_each_other(engine: OpenVINOEngine) -> None:
    one, two = engine.open(), engine.open()
    extend(one, [5, 6, 7])
    extend(two, [9, 8])
    found = extend(one, [11])[0]
    assert np.abs(found - fresh(engine, [5, 6, 7, 11])).max() < TOLERANCE
    assert two.length == 2


def test_misuse_is_refused(engine: OpenVINOEngine) -> None:
    session = engine.open()
    session.forward([5, 6, 7], [-1, 0, 0], (0,))
    with pytest.raises(RuntimeError, match="before keep"):
        session.forward([5], [-1], (0,))
    with pytest.raises(RuntimeError, match="not a path"):
        session.keep([1, 2])
    session.keep([0, 2])
    with pytest.raises(RuntimeError, match="rewind"):
        session.truncate(3)


def test_an_unknown_device_or_precision_is_named_with_the_choices() -> None:
    with pytest.raises(DerbyError, match=r"'TPU'.*CPU"):
        LoadedModels().get(ModelSpec(device="TPU"), print)
    with pytest.raises(DerbyError, match=r"fp32, int8, int4, .*'fp64'"):
        LoadedModels().get(ModelSpec(precision="fp64"), print)
