"""The cache of b sequences, whatever an engine computes it with: each sequence is a text that
computes what it would alone on a cache that never held anything else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from families import random_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.base import Engine, Session
from backend.engines.cache import Cache, NewRows
from backend.engines.fake import RECURRENT, FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.text import ByteTokenizer
from backend.types import Logits, ModelSpec, chain_parents

#: fp32 kernels round differently for different numbers of rows; logits are up to about 35. Held
#: against float64, some texts of random tokens are 4e-4 off alone and 6e-4 the other way beside two
#: others. A wrong mask or position moves logits by tenths.
TOLERANCE = 5e-3

#: Tokens that every model here has. The built-in model never saw its special ones, those below 17,
#: within a text: transformers' own fp32 logits of 192, 5, 3 are 4e-2 off those of float64, and of
#: 160 random texts of these tokens 1e-3 at most.
TOKENS = st.integers(17, 250)


def tiny(kind: str, *, static: bool = False, **changes: Any) -> Engine:
    """A random model of transformers, over a growing cache or over fixed widths."""
    from backend.engines.torch.engine import TorchEngine
    from backend.engines.torch.graphs import uncaptured

    sizes = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    model = random_model(kind, **{**sizes, **heads, **changes})
    capture = uncaptured if static else None
    return TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 512, capture=capture)


def loaded(spec: ModelSpec) -> Engine:
    return LoadedModels(idle_warm_up=True).get(spec, print)


#: The last two of six layers read keys and values of the two before them; heads differ by layer.
SHARED = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "layer_types": 3 * ["sliding_attention", "full_attention"],
    "sliding_window": 6,
    "head_dim": 8,
    "global_head_dim": 16,
    "vocab_size_per_layer_input": 257,
    "hidden_size_per_layer_input": 8,
}

ENGINES: dict[str, Callable[[], Engine]] = {
    "fake": FakeEngine,
    "llama": partial(tiny, "llama"),
    "mistral": partial(tiny, "mistral", sliding_window=6),
    "qwen2": partial(tiny, "qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "gemma4": partial(tiny, "gemma4_text", **SHARED),
    "static": partial(tiny, "llama", static=True),
    "openvino": partial(loaded, ModelSpec()),
    "torch": partial(loaded, ModelSpec(engine="torch")),
}
#: The tiny models have torch's cache too, so the built-in one on it runs under the mark.
MARKS = {"openvino": pytest.mark.model, "torch": [pytest.mark.model, pytest.mark.thorough]}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=MARKS.get(n, ())) for n in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    return ENGINES[request.param]()


def alone(engine: Engine, tokens: Sequence[int]) -> Logits:
    """Logits after `tokens`, of a session of their own: float32 [V]."""
    session = engine.open()
    logits = session.forward(tokens, chain_parents(len(tokens)), (len(tokens) - 1,))[0]
    session.close()
    return logits


def chain(tokens: Sequence[int]) -> NewRows:
    return NewRows(tokens, chain_parents(len(tokens)), range(len(tokens)))


@st.composite
def trees(draw: st.DrawFn, *, least: int = 1) -> NewRows:
    """A few tokens that hang from one another; logits of all of them are wanted."""
    tokens = draw(st.lists(TOKENS, min_size=least, max_size=6))
    parents = [draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
    return NewRows(tokens, parents, range(len(tokens)))


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found[::-1]


def assert_each_is_alone(engine: Engine, sequences: int, data: st.DataObject) -> None:
    """Trees of other shapes, rows kept and rejected, texts cut back, holes taken out, and moves to
    another cache, in any order.
    """
    cache, texts = engine.cache(sequences), [list[int]() for _ in range(sequences)]
    for _ in range(data.draw(st.integers(2, 6))):
        asked = [data.draw(trees(least=int(sequences == 1))) for _ in texts]
        if not any(new.tokens for new in asked):
            continue
        logits = cache.run(asked)
        for i, new in enumerate(asked):
            row = data.draw(st.integers(-1, len(new.tokens) - 1))
            path = path_to(row, new.parents)
            kept = [new.tokens[at] for at in path]
            if path:
                expected = alone(engine, texts[i] + kept)
                assert np.abs(logits[i][row] - expected).max() < TOLERANCE
            cache.keep(i, path)
            texts[i] += kept
        deed = data.draw(st.sampled_from(["go on", "rewind", "take out holes", "move"]))
        if deed == "rewind":
            i = data.draw(st.integers(0, sequences - 1))
            length = data.draw(st.integers(0, len(texts[i])))
            cache.rewind(i, length)
            del texts[i][length:]
        elif deed == "take out holes":
            cache.compact()
            assert cache.held == max(map(len, texts))
        elif deed == "move" and sequences == 1:
            length = data.draw(st.integers(0, len(texts[0])))
            arrays = cache.export(0, length)
            assert all(array.shape[2] == length for array in arrays.values())
            cache.close()
            cache = engine.cache()
            cache.load(length, arrays)
            del texts[0][length:]
        assert cache.lengths == tuple(map(len, texts))
    cache.close()


@pytest.mark.parametrize("sequences", [1, 3])
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_sequence_computes_what_it_would_alone(
    engine: Engine, sequences: int, data: st.DataObject
) -> None:
    assert_each_is_alone(engine, sequences, data)


@pytest.mark.thorough
@pytest.mark.parametrize("sequences", [1, 3])
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_they_do_so_time_and_again(engine: Engine, sequences: int, data: st.DataObject) -> None:
    assert_each_is_alone(engine, sequences, data)


def test_all_sequences_may_begin_with_one_text(engine: Engine) -> None:
    session = engine.open()
    session.forward([5, 6, 7], chain_parents(3), ())
    session.keep(range(3))
    cache = engine.cache(2)
    cache.load(3, session.export(3))
    found = cache.run([chain([9]), chain([11, 12])])
    assert np.abs(found[0][0] - alone(engine, [5, 6, 7, 9])).max() < TOLERANCE
    assert np.abs(found[1][1] - alone(engine, [5, 6, 7, 11, 12])).max() < TOLERANCE


def test_hidden_states_are_each_sequences_own(engine: Engine) -> None:
    """One value for all sessions of a torch engine: whoever ran last had replaced the others'."""
    cache, session = engine.cache(2), engine.open()
    cache.run([chain([5, 6, 7]), chain([9])])
    mine = cache.hidden_states(1)
    session.forward([9], (-1,), (0,))
    assert cache.hidden_states(0).shape[0] == 3
    assert np.array_equal(cache.hidden_states(1), mine)
    assert np.abs(mine - session.hidden_states()).max() < TOLERANCE


def test_holes_are_taken_out_once_reading_them_has_cost_a_copy(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.engines.cache.COMPACTION_BASE", 100)
    monkeypatch.setattr("backend.engines.cache.COMPACTION_PER_ROW", 1)
    cache = engine.cache(2)
    texts = [[5] * 8, [6] * 4]
    cache.run([chain(text) for text in texts])
    for i, text in enumerate(texts):
        cache.keep(i, range(len(text)))
    held = []
    for _ in range(16):
        cache.run([NewRows([5] * 12, [-1] * 12, (0,)), chain([7])])
        cache.keep(0, [0])
        cache.keep(1, [0])
        held.append(cache.held)
    assert max(held) < 16 * 12 / 2
    found = cache.run([chain([9]), NewRows()])[0][0]
    assert np.abs(found - alone(engine, [5] * 24 + [9])).max() < TOLERANCE


def test_a_cache_of_nothing_but_holes_goes_on(engine: Engine) -> None:
    """States of no rows were written back: the next pass failed within OpenVINO's plugin, and so
    did every later one of the same model.
    """
    cache = engine.cache()
    cache.run([NewRows([5, 6], [-1, -1])])
    cache.keep(0, [])
    cache.compact()
    assert np.abs(cache.run([chain([9])])[0][0] - alone(engine, [9])).max() < TOLERANCE


def test_what_a_model_cannot_compute_is_refused_whatever_the_engine(engine: Engine) -> None:
    """The fake took trees for models without them, so that no test saw who sent some, and OpenVINO
    read beyond its model's positions.
    """
    able = replace(engine.capabilities, tree=False, batch=False, max_context=4)
    session = Session(Cache(engine.store(1), able))
    session.forward([5, 6], [-1, 0], ())
    session.keep([0, 1])
    with pytest.raises(RuntimeError, match="takes no tree"):
        session.forward([7, 8], [-1, -1], ())
    with pytest.raises(DerbyError, match="5 tokens long and this model reads at most 4"):
        session.forward([7, 8, 9], [-1, 0, 1], ())
    session.forward([7, 8], [-1, 0], (1,))
    with pytest.raises(RuntimeError, match="one sequence a pass"):
        FakeEngine(capabilities=able).cache(2)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_recurrent_cache_is_the_text_that_it_says_whatever_it_went_through(
    data: st.DataObject,
) -> None:
    """Chains of which any row is the last one kept, texts cut anywhere, checkpoints, and moves to
    another cache, in any order; the store refuses a state that it need not have.
    """
    engine, text = FakeEngine(capabilities=RECURRENT), list[int]()
    cache = engine.cache()
    for _ in range(data.draw(st.integers(2, 8))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=6))
        logits = cache.run([chain(tokens)])[0]
        for row in range(len(tokens)):
            assert np.array_equal(logits[row], engine.logits(text + tokens[: row + 1]))
        kept = data.draw(st.integers(0, len(tokens)))
        cache.keep(0, range(kept))
        text += tokens[:kept]
        deed = data.draw(st.sampled_from(["go on", "rewind", "checkpoint", "move"]))
        if deed == "rewind":
            length = data.draw(st.integers(0, len(text)))
            cache.rewind(0, length)
            assert cache.lengths[0] <= length
            assert cache.lengths[0] == length or length < len(text)
        elif deed == "checkpoint":
            cache.checkpoint(0)
        elif deed == "move" and cache.checkpoints(0):
            length = data.draw(st.sampled_from(cache.checkpoints(0)))
            arrays = cache.export(0, length)
            cache = engine.cache()
            cache.load(length, arrays)
        del text[cache.lengths[0] :]


def recurrent(text: Sequence[int], *, checkpoint: int = 0) -> Cache:
    """A cache that has computed the text one token after another, since a checkpoint perhaps."""
    cache = FakeEngine(capabilities=RECURRENT).cache()
    for i, token in enumerate(text):
        if i == checkpoint:
            cache.checkpoint(0)
        cache.run([chain([token])])
        cache.keep(0, [0])
    return cache


def test_a_recurrent_text_is_cut_to_the_last_pass_to_a_checkpoint_or_to_nothing() -> None:
    for checkpoint in (0, 3):
        for length, left in ((8, 8), (7, 7), (6, checkpoint), (3, checkpoint), (2, 0), (0, 0)):
            cache = recurrent(range(8), checkpoint=checkpoint)
            cache.rewind(0, length)
            assert cache.lengths == (left,)
            assert cache.checkpoints(0) == tuple(sorted({left, checkpoint * (left > 0)} - {0}))


def test_what_a_recurrent_cache_need_not_have_is_refused() -> None:
    cache = recurrent(range(4))
    with pytest.raises(RuntimeError, match="export of 2 of 4"):
        cache.export(0, 2)
    cache.run([NewRows([4, 5, 6], chain_parents(3), (2,))])
    with pytest.raises(RuntimeError, match="behind which there are no logits"):
        cache.keep(0, [0])
    cache.keep(0, range(3))
    with pytest.raises(RuntimeError, match="takes no tree"):
        cache.run([NewRows([1, 2], [-1, -1])])
    with pytest.raises(RuntimeError, match="one sequence a pass"):
        FakeEngine(capabilities=RECURRENT).cache(2)
    with pytest.raises(ValueError, match="one chain of tokens a pass"):
        replace(FakeEngine().capabilities, rewinds="last pass")


def test_a_pass_that_fails_midway_leaves_no_recurrent_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some layers have gone on, others have not: what is kept then is no text's."""
    cache = recurrent(range(4), checkpoint=2)

    def fail(_: object, __: object) -> None:
        raise MemoryError

    monkeypatch.setattr("backend.engines.fake.RecurrentStore.run", fail)
    with pytest.raises(MemoryError):
        cache.run([chain([5])])
    assert cache.lengths == (0,)
    assert cache.checkpoints(0) == ()


def test_misuse_is_refused(engine: Engine) -> None:
    cache = engine.cache(2)
    for tokens, links, rows in (
        ([], [], []),
        ([1], [-1, 0], []),
        ([1, 2], [-1, 1], []),
        ([1], [-2], []),
        ([1], [-1], [1]),
    ):
        with pytest.raises(RuntimeError):
            cache.run([NewRows(tokens, links, rows), NewRows()])
    cache.run([NewRows([1, 2, 3], (-1, 0, 0)), NewRows()])
    with pytest.raises(RuntimeError, match="before keep"):
        cache.run([chain([1]), NewRows()])
    for path in ([2, 0], [1, 2], [3], [-1]):
        with pytest.raises(RuntimeError, match="not a path"):
            cache.keep(0, path)
    with pytest.raises(RuntimeError, match="compact before keep"):
        cache.compact()
    cache.keep(0, [0, 2])
    with pytest.raises(RuntimeError, match="rewind"):
        cache.rewind(1, 1)
    with pytest.raises(RuntimeError, match="export of 3 of 2"):
        cache.export(0, 3)
    with pytest.raises(RuntimeError, match="not empty"):
        cache.load(1, {})
    with pytest.raises(RuntimeError, match="load all at once"):
        Session(cache, 1).load(1, {})
    with pytest.raises(RuntimeError, match=r"another model|arrays for"):
        engine.open().load(1, {"strange": np.zeros((1, 1, 1, 1), np.float32)})
    cache.close()
    cache.close()
    with pytest.raises(RuntimeError, match="closed"):
        cache.run([chain([1]), NewRows()])


def test_the_last_sequence_to_leave_closes_the_cache() -> None:
    engine = FakeEngine()
    cache = engine.cache(2)
    one, other = (Session(cache, i) for i in range(2))
    one.close()
    one.close()
    assert engine.open_sessions == 1
    assert other.forward([1], (-1,), (0,)).shape == (1, 257)
    other.close()
    assert engine.open_sessions == 0
