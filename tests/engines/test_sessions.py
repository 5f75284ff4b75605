"""The contract of sessions, whatever the engine, its masks and its layers: a session computes what
one that never held anything but its text would, whatever it went through; what it returns stays as
it is; and misuse is refused. Passes of fixed widths, as CUDA runs them, and those replayed as
kernels alone are held to a cache that grows.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from cpu_graph import Recorder
from families import tiny_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.engine import Engine
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.engines.torch.captured import CapturedSession, uncaptured
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.types import HiddenStates, Layers, Logits, ModelSpec, chain_parents

pytestmark = pytest.mark.usefixtures("one_thread")

#: fp32 kernels round differently for different numbers of rows; logits are up to about 35. A wrong
#: mask or position moves logits by tenths.
TOLERANCE = 5e-3

#: Tokens that every model here has. The built-in model never saw its special ones, those below 17,
#: within a text: transformers' own fp32 logits of 192, 5, 3 are 4e-2 off those of float64, and of
#: 160 random texts of these tokens 1e-3 at most.
TOKENS = st.integers(17, 250)

GROWING = ("llama", "mistral window", "qwen2 windows", "gemma4")
FIXED = ("gpt2", "qwen2 windows", "gemma3", "gemma3n", "phi3 longrope")
REPLAYED = ("llama", "mistral window")

ENGINES = [
    "fake",
    *GROWING,
    *(f"fixed {family}" for family in FIXED),
    *(f"replayed {family}" for family in REPLAYED),
    pytest.param("openvino", marks=pytest.mark.model),
    # The tiny models have torch's cache, too.
    pytest.param("torch", marks=[pytest.mark.model, pytest.mark.thorough]),
]


@pytest.fixture(scope="module", params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(name: str) -> Engine:
    passes, _, family = name.partition(" ")
    if passes == "fixed":
        return tiny_engine(family, uncaptured)
    if passes == "replayed":
        return tiny_engine(family, Recorder())
    if name in ("openvino", "torch"):
        return LoadedModels(idle_warm_up=True).get(ModelSpec(engine=name), print)
    return FakeEngine() if name == "fake" else tiny_engine(name)


@pytest.fixture(scope="module")
def reference(name: str, engine: Engine) -> Engine:
    """What the engine must equal: the same model over a cache that grows."""
    passes, _, family = name.partition(" ")
    if passes not in ("fixed", "replayed"):
        return engine
    session = engine.open()
    assert isinstance(session, CapturedSession)
    session.close()
    return tiny_engine(family)


@pytest.fixture(scope="module")
def layers(name: str) -> Layers:
    """Those whose hidden states are shown; Gemma 3n hands its layers four at once."""
    return () if "gemma3n" in name else (1,)


def alone(
    engine: Engine, tokens: Sequence[int], layers: Layers = ()
) -> tuple[Logits, HiddenStates | None]:
    """Logits [V] behind `tokens` and their hidden state [D], of a session of their own."""
    session = engine.open(layers=layers)
    logits = session.forward(tokens, chain_parents(len(tokens)), (len(tokens) - 1,))[0]
    hidden = session.hidden_states(layers)[-1] if layers else None
    session.close()
    return logits, hidden


def assert_alone(engine: Engine, tokens: Sequence[int], logits: Logits) -> None:
    assert np.abs(logits - alone(engine, tokens)[0]).max() < TOLERANCE


def chain(session: Session, tokens: Sequence[int]) -> Logits:
    """The logits of a chain of tokens, which stay pending."""
    return session.forward(tokens, chain_parents(len(tokens)), range(len(tokens)))


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    path: list[int] = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_session_is_its_text_whatever_it_went_through(
    engine: Engine, reference: Engine, layers: Layers, data: st.DataObject
) -> None:
    """Trees of other shapes, rows kept and rejected, texts cut back, and moves to another session,
    in any order.
    """
    session, text = engine.open(layers=layers), list[int]()
    for _ in range(data.draw(st.integers(2, 6))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=9))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
        rows = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4))
        row = data.draw(st.integers(-1, len(tokens) - 1))
        logits = session.forward(tokens, parents, [*rows, row] if row >= 0 else rows)
        path = path_to(row, parents)
        accepted = [tokens[at] for at in path]
        if path:
            want, hidden = alone(reference, text + accepted, layers)
            assert np.abs(logits[-1] - want).max() < TOLERANCE
            if hidden is not None:
                assert np.abs(session.hidden_states(layers)[row] - hidden).max() < TOLERANCE
        session.keep(path)
        text += accepted
        turn = data.draw(st.sampled_from(["go on", "truncate", "move"]))
        length = data.draw(st.integers(0, len(text)))
        if turn == "truncate":
            session.truncate(length)
            del text[length:]
        elif turn == "move":
            arrays = session.save(length)
            assert all(array.shape[2] == length for array in arrays.values())
            session.close()
            session = engine.open(layers=layers)
            session.load(text[:length], arrays)
            del text[length:]
        assert session.length == len(text)
    session.close()


def test_what_a_pass_returned_is_no_other_sessions(
    engine: Engine, reference: Engine, layers: Layers
) -> None:
    """Whatever memory passes share: logits and hidden states are copies."""
    one, other = engine.open(layers=layers), engine.open(layers=layers)
    logits = chain(one, [25, 26, 27])
    before, hidden = logits.copy(), one.hidden_states(layers) if layers else None
    other_logits = chain(other, [29])
    assert np.array_equal(logits, before)
    if hidden is not None:
        assert np.array_equal(one.hidden_states(layers), hidden)
        assert (len(hidden), len(other.hidden_states(layers))) == (3, 1)
    assert_alone(reference, [29], other_logits[0])
    one.keep(range(3))
    assert_alone(reference, [25, 26, 27, 30], chain(one, [30])[0])
    one.close()
    other.close()


def test_branches_that_are_longer_than_a_window_see_what_they_should(
    engine: Engine, reference: Engine
) -> None:
    """A window goes by positions, not by where rows were put."""
    session = engine.open()
    chain(session, [35, 36])
    session.keep(range(2))
    parents, tokens = (-1, -1, *range(14)), range(40, 56)
    logits = session.forward(tokens, parents, (14, 15))
    for row in (14, 15):
        path = [tokens[at] for at in path_to(row, parents)]
        assert len(path) == 8
        assert_alone(reference, [35, 36, *path], logits[row - 14])
    session.close()


def test_rejected_rows_leave_nothing_behind(engine: Engine, reference: Engine) -> None:
    """More of them than any cache bears without a copy, and a text of none but those."""
    session = engine.open()
    session.forward([25, 26], [-1, -1], ())
    session.keep([])
    chain(session, [25] * 8)
    session.keep(range(8))
    for _ in range(16):
        session.forward([25] * 12, [-1] * 12, (0,))
        session.keep([0])
    assert_alone(reference, [25] * 24 + [29], chain(session, [29])[0])
    session.close()


def test_room_is_made_where_more_comes_than_was_stated(
    name: str, engine: Engine, reference: Engine
) -> None:
    """Also for a text that is loaded. Longrope models read no more than 64 tokens."""
    rows = 60 if "longrope" in name else 120 if name in ("openvino", "torch") else 600
    session, text = engine.open(16), [20 + i % 50 for i in range(rows)]
    for start in range(0, rows, 60):
        logits = chain(session, text[start : start + 60])
        if start + 60 == rows:
            assert_alone(reference, text, logits[-1])
        session.keep(range(60))
    other = engine.open()
    other.load(text, session.save(rows))
    session.truncate(rows // 2)
    for each, length in ((session, rows // 2), (other, rows)):
        assert_alone(reference, [*text[:length], 77], chain(each, [77])[0])
        each.close()


def test_a_text_beyond_the_positions_of_a_model_is_refused(engine: Engine) -> None:
    session = engine.open()
    session._max_context = 4
    session.forward([25, 26], [-1, 0], ())
    session.keep([0, 1])
    with pytest.raises(DerbyError, match=r"5; .*4"):
        session.forward([27, 28, 29], [-1, 0, 1], ())
    session.forward([27, 28], [-1, 0], (1,))


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
        chain(session, [1])
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
