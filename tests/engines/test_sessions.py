"""A session, whatever its engine: it computes what a cache that never held anything but its text
would.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from families import random_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.engine import Engine
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.text import ByteTokenizer
from backend.types import Logits, ModelSpec, chain_parents

#: fp32 kernels round differently for different numbers of rows; logits are up to about 35. A wrong
#: mask or position moves logits by tenths.
TOLERANCE = 5e-3

#: Tokens that every model here has. The built-in model never saw its special ones, those below 17,
#: within a text: transformers' own fp32 logits of 192, 5, 3 are 4e-2 off those of float64, and of
#: 160 random texts of these tokens 1e-3 at most.
TOKENS = st.integers(17, 250)


def tiny(kind: str, *, static: bool = False, **changes: Any) -> Engine:
    """A random model of transformers, over a growing cache or over fixed widths."""
    from backend.engines.torch.captured import uncaptured
    from backend.engines.torch.engine import TorchEngine

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


def forward(session: Session, tokens: Sequence[int]) -> Logits:
    """The logits of a chain of tokens, which stay pending."""
    return session.forward(tokens, chain_parents(len(tokens)), range(len(tokens)))


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found[::-1]


def assert_it_is_its_text(engine: Engine, data: st.DataObject) -> None:
    """Trees of other shapes, rows kept and rejected, texts cut back, and moves to another session,
    in any order.
    """
    session, text = engine.open(), list[int]()
    for _ in range(data.draw(st.integers(2, 6))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=6))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
        logits = session.forward(tokens, parents, range(len(tokens)))
        row = data.draw(st.integers(-1, len(tokens) - 1))
        path = path_to(row, parents)
        kept = [tokens[at] for at in path]
        if path:
            assert np.abs(logits[row] - alone(engine, text + kept)).max() < TOLERANCE
        session.keep(path)
        text += kept
        deed = data.draw(st.sampled_from(["go on", "truncate", "move"]))
        length = data.draw(st.integers(0, len(text)))
        if deed == "truncate":
            session.truncate(length)
            del text[length:]
        elif deed == "move":
            arrays = session.save(length)
            assert all(array.shape[2] == length for array in arrays.values())
            session.close()
            session = engine.open()
            session.load(text[:length], arrays)
            del text[length:]
        assert session.length == len(text)
    session.close()


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_session_is_its_text_whatever_it_went_through(
    engine: Engine, data: st.DataObject
) -> None:
    assert_it_is_its_text(engine, data)


@pytest.mark.thorough
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_it_is_so_time_and_again(engine: Engine, data: st.DataObject) -> None:
    assert_it_is_its_text(engine, data)


def test_hidden_states_are_each_sessions_own(engine: Engine) -> None:
    """One value for all sessions of a torch engine: whoever ran last had replaced the others'."""
    one, other = engine.open(), engine.open()
    forward(one, [5, 6, 7])
    mine = one.hidden_states()
    forward(other, [9])
    assert mine.shape[0] == 3
    assert np.array_equal(one.hidden_states(), mine)
    assert other.hidden_states().shape[0] == 1


def test_rejected_rows_leave_nothing_behind(engine: Engine) -> None:
    """More of them than any cache bears without a copy, and a text of none but those."""
    session = engine.open()
    session.forward([5, 6], [-1, -1], ())
    session.keep([])
    forward(session, [5] * 8)
    session.keep(range(8))
    for _ in range(16):
        session.forward([5] * 12, [-1] * 12, (0,))
        session.keep([0])
    assert np.abs(forward(session, [9])[0] - alone(engine, [5] * 24 + [9])).max() < TOLERANCE


def test_room_is_made_where_more_comes_than_was_stated(engine: Engine) -> None:
    session, text = engine.open(16), [20 + i % 50 for i in range(300)]
    for start in range(0, 300, 60):
        logits = forward(session, text[start : start + 60])
        session.keep(range(60))
    assert np.abs(logits[-1] - alone(engine, text)).max() < TOLERANCE
    assert session.bytes >= 300 * engine.row_bytes


def test_a_text_beyond_the_positions_of_a_model_is_refused(engine: Engine) -> None:
    """OpenVINO read beyond them."""
    session = engine.open()
    session._max_context = 4
    session.forward([5, 6], [-1, 0], ())
    session.keep([0, 1])
    with pytest.raises(DerbyError, match=r"5; .*4"):
        session.forward([7, 8, 9], [-1, 0, 1], ())
    session.forward([7, 8], [-1, 0], (1,))


def test_a_state_that_cannot_be_cut_back_takes_no_tree_and_is_cut_to_nothing() -> None:
    session = FakeEngine(guesses="none").open()
    forward(session, range(4))
    session.keep(range(4))
    with pytest.raises(RuntimeError, match="takes no tree"):
        session.forward([7, 8], [-1, -1], ())
    session.truncate(4)
    assert session.tokens == [0, 1, 2, 3]
    session.truncate(3)
    assert session.tokens == []


def test_misuse_is_refused(engine: Engine) -> None:
    session = engine.open()
    for tokens, links, rows in (
        ([], [], []),
        ([1], [-1, 0], []),
        ([1, 2], [-1, 1], []),
        ([1], [-2], []),
        ([1], [-1], [1]),
    ):
        with pytest.raises(RuntimeError):
            session.forward(tokens, links, rows)
    session.forward([1, 2, 3], (-1, 0, 0), ())
    with pytest.raises(RuntimeError, match="3 pending"):
        forward(session, [1])
    for path in ([2, 0], [1, 2], [3], [-1]):
        with pytest.raises(RuntimeError, match="not a path"):
            session.keep(path)
    session.keep([0, 2])
    with pytest.raises(RuntimeError, match="truncate"):
        session.truncate(3)
    with pytest.raises(RuntimeError, match="3 of 2 tokens"):
        session.save(3)
    with pytest.raises(RuntimeError, match="not empty"):
        session.load([1], {})
    with pytest.raises(RuntimeError, match="another model"):
        engine.open().load([1], {"strange": np.zeros((1, 1, 1, 1), np.float32)})
    session.close()
    session.close()
