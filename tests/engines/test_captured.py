"""Passes of fixed widths equal those over a cache that grows, and can be captured: replayed as
kernels alone, without the Python that launched them, they still do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from captured import Recorder
from families import random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from backend.engines.session import Session
from backend.engines.torch.captured import (
    FIRST_CAPACITY,
    WIDTHS,
    Capture,
    capacity_for,
    uncaptured,
    width_for,
)
from backend.engines.torch.engine import TorchEngine, open_torch
from backend.text import ByteTokenizer
from backend.types import Logits, ModelSpec, chain_parents

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1100,
}
WINDOW = 6
LONGEST = 1100

#: Tiny models: grouped queries, windows in every layer or in some, learnt positions, eager
#: attention with two masks, layers that share keys and values, rotary positions that transformers
#: would change with the length.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LONGEST},
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma3n_text": {
        "head_dim": 8,
        "sliding_window": WINDOW,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": 2 * ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": 257,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "phi3": {
        "pad_token_id": 0,
        "original_max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.5] * 4,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 64,
        },
    },
}


def build(model: Any, capture: Capture | None) -> TorchEngine:
    return TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), LONGEST, capture=capture)


MODELS = {kind: random_model(kind, **{**SMALL, **changes}) for kind, changes in KINDS.items()}
GROWING = {kind: build(model, None) for kind, model in MODELS.items()}
STATIC = {kind: build(model, uncaptured) for kind, model in MODELS.items()}
REPLAYED = build(MODELS["llama"], Recorder())


def assert_close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def feed(session: Session, tokens: Sequence[int]) -> Logits:
    """Add a chain to the context; float32 [V] after its last token."""
    logits = session.forward(tokens, chain_parents(len(tokens)), [len(tokens) - 1])
    session.keep(range(len(tokens)))
    return logits[0]


def path(parents: Sequence[int], row: int) -> list[int]:
    rows: list[int] = []
    while row >= 0:
        rows.append(row)
        row = parents[row]
    return rows[::-1]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], tuple[int, ...]]:
    n = draw(st.integers(1, 9))
    tokens = draw(st.lists(st.integers(0, 255), min_size=n, max_size=n))
    return tokens, tuple(draw(st.integers(-1, i - 1)) for i in range(n))


def assert_equal_whatever_is_done(data: st.DataObject, engine: TorchEngine, kind: str) -> None:
    """Run the same deeds on both; compare all that comes back."""
    one, other = engine.open(), GROWING[kind].open()
    for _ in range(data.draw(st.integers(1, 6))):
        tokens, links = data.draw(trees())
        rows = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4))
        assert_close(one.forward(tokens, links, rows), other.forward(tokens, links, rows))
        assert_close(one.hidden_states(), other.hidden_states())
        kept = path(links, data.draw(st.integers(-1, len(tokens) - 1)))
        one.keep(kept)
        other.keep(kept)
        deed = data.draw(st.sampled_from(["go on", "truncate", "move to another session"]))
        if deed == "truncate":
            length = data.draw(st.integers(0, one.length))
            one.truncate(length)
            other.truncate(length)
        elif deed == "move to another session":
            length = data.draw(st.integers(0, one.length))
            mine, theirs = one.save(length), other.save(length)
            assert list(mine) == list(theirs)
            for name, array in mine.items():
                assert array.dtype == theirs[name].dtype
                assert_close(array, theirs[name])
            tokens = one.tokens[:length]
            one.close()
            one, other = engine.open(), GROWING[kind].open()
            one.load(tokens, theirs)  # what either has written, the other reads
            other.load(tokens, mine)
        assert one.length == other.length
    one.close()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(st.data())
def test_fixed_widths_change_nothing(kind: str, data: st.DataObject) -> None:
    assert STATIC[kind]._fixed is not None
    assert_equal_whatever_is_done(data, STATIC[kind], kind)


@settings(max_examples=25)
@given(st.data())
def test_replayed_passes_change_nothing(data: st.DataObject) -> None:
    """Whatever a pass depends on is in its input buffers: nothing of it is in Python."""
    assert_equal_whatever_is_done(data, REPLAYED, "llama")


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text"])
def test_every_kind_of_mask_can_be_replayed(kind: str) -> None:
    session, plain = build(MODELS[kind], Recorder()).open(), GROWING[kind].open()
    for text in ([5, 9, 11, 200, 7], [3], [8, 8, 1], [60], [4, 4]):
        assert_close(feed(session, text), feed(plain, text))


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "gemma3_text"])
def test_a_window_goes_by_positions_and_not_by_slots(kind: str) -> None:
    """The last rows of two long branches do not see their own roots, wherever those were put."""
    links = (-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert len(path(links, 15)) > WINDOW
    session, plain = STATIC[kind].open(), GROWING[kind].open()
    assert_close(feed(session, [5, 6]), feed(plain, [5, 6]))
    rows, tokens = range(16), range(40, 56)
    assert_close(session.forward(tokens, links, rows), plain.forward(tokens, links, rows))


def test_sessions_share_inputs_and_keep_their_own_caches() -> None:
    engine = build(MODELS["llama"], Recorder())
    one, two = engine.open(), engine.open()
    feed(one, [1, 2, 3])
    assert_close(feed(two, [7]), feed(GROWING["llama"].open(), [7]))
    assert_close(feed(one, [4]), feed(GROWING["llama"].open(), [1, 2, 3, 4]))


def test_a_pass_reads_and_writes_the_same_memory_every_time() -> None:
    """A graph would go on reading where its inputs were when it was captured."""
    seen: dict[int, set[tuple[int, ...]]] = {}

    def note(_module: Any, _args: Any, kwargs: Any) -> None:
        ids, positions, cache = (
            kwargs[name] for name in ("input_ids", "position_ids", "past_key_values")
        )
        layers = [buffer for layer in cache.layers for buffer in (layer.keys, layer.values)]
        places = tuple(tensor.data_ptr() for tensor in (ids, positions, *layers))
        seen.setdefault(ids.shape[1], set()).add(places)

    session = STATIC["llama"].open()
    hook = MODELS["llama"].register_forward_pre_hook(note, with_kwargs=True)
    try:
        for n in (1, 2, 3, 1, 5, 8, 2, 1, 60, 64, 7):
            feed(session, range(n))
    finally:
        hook.remove()
    assert set(seen) == {1, 2, 4, 8, 64}
    assert all(len(places) == 1 for places in seen.values())
    session.close()


@pytest.mark.parametrize("engine", [STATIC["llama"], REPLAYED], ids=["run", "replayed"])
def test_a_cache_grows_across_its_capacities(engine: TorchEngine) -> None:
    """A text of more rows than the first cache, and than the second, keeps all that it held."""
    rng = np.random.default_rng(2)
    text = [int(token) for token in rng.integers(0, 256, 2 * FIRST_CAPACITY + 60)]
    session, plain = engine.open(), GROWING["llama"].open()
    for at in range(0, len(text), 60):
        assert_close(feed(session, text[at : at + 60]), feed(plain, text[at : at + 60]))
    session.truncate(FIRST_CAPACITY - 3)
    plain.truncate(FIRST_CAPACITY - 3)
    tree, links = range(9), (-1, 0, 0, 1, 2, 4, 5, -1, 7)
    assert_close(session.forward(tree, links, [6, 8]), plain.forward(tree, links, [6, 8]))
    session.keep([0, 2, 4, 5, 6])
    plain.keep([0, 2, 4, 5, 6])
    assert_close(feed(session, [50]), feed(plain, [50]))
    session.close()


def test_no_pass_of_a_text_of_known_length_is_captured_within_it() -> None:
    """Past 512, 1,024, ... rows the next cache's graphs were captured inside the timed pass."""
    recorder = Recorder()
    session = build(MODELS["llama"], recorder).open(LONGEST)
    captured = recorder.captured
    for _ in range(LONGEST // 60):
        feed(session, range(60))
    assert session.length > 2 * FIRST_CAPACITY
    assert recorder.captured == captured
    session.close()


def test_a_capture_does_not_go_by_what_an_earlier_pass_left() -> None:
    """The buffers of a width held the place of a long text's last row: capturing the passes of a
    smaller cache wrote behind its end, which on a device ends the process.
    """
    engine = build(MODELS["llama"], Recorder())
    session = engine.open()
    for _ in range(FIRST_CAPACITY // 64):
        feed(session, range(64))
    feed(session, [1])
    assert_close(feed(engine.open(), [9]), feed(GROWING["llama"].open(), [9]))


def test_a_loaded_context_may_need_a_larger_cache() -> None:
    plain = GROWING["llama"].open()
    for _ in range(9):
        feed(plain, range(64))
    session = STATIC["llama"].open()
    session.load(plain.tokens, plain.save(plain.length))
    assert_close(feed(session, [50]), feed(plain, [50]))
    other = STATIC["gpt2"].open()
    with pytest.raises(RuntimeError, match="arrays"):
        other.load(plain.tokens[:3], dict(list(plain.save(3).items())[:2]))


def test_the_last_positions_of_a_context_can_be_used() -> None:
    """Rows that pad a pass stand at a position that there is."""
    for kind in ("llama", "gpt2"):
        session, plain = STATIC[kind].open(), GROWING[kind].open()
        for size in (*[64] * 17, 9):
            assert_close(feed(session, [7] * size), feed(plain, [7] * size))
        assert session.length == LONGEST - 3
        tokens, links = [1, 2, 3, 4, 5], (-1, -1, 1, 2, 1)
        assert_close(session.forward(tokens, links, [3]), plain.forward(tokens, links, [3]))


def test_a_pass_wider_than_any_graph_runs_as_it_is() -> None:
    n = WIDTHS[-1] + 9
    session, plain = REPLAYED.open(), GROWING["llama"].open()
    links = [-1, *[0] * (n - 1)]
    rows = [0, 1, 2, 77, n - 1]
    assert_close(session.forward(range(n), links, rows), plain.forward(range(n), links, rows))


def test_widths_and_capacities_are_the_next_ones() -> None:
    assert [width_for(n) for n in (1, 2, 3, 5, 64, 65, 129)] == [1, 2, 4, 8, 64, 128, 129]
    for rows in (1, FIRST_CAPACITY, FIRST_CAPACITY + 1, 5 * FIRST_CAPACITY):
        assert rows <= capacity_for(rows) < max(2 * rows, FIRST_CAPACITY + 1)


def test_results_stay_what_they_were() -> None:
    """They are copies: the next pass, of any session, writes its own to the same places."""
    session = STATIC["llama"].open()
    logits = session.forward([1, 2], [-1, 0], [0, 1])
    kept, before = logits.copy(), session.hidden_states().copy()
    feed(STATIC["llama"].open(), [9, 9])
    np.testing.assert_array_equal(logits, kept)
    np.testing.assert_array_equal(session.hidden_states(), before)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("falcon", {"alibi": True}),
        ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                       "shared_expert_intermediate_size": 48}),
    ],
)  # fmt: skip
def test_models_that_no_graph_can_hold_keep_a_growing_cache(
    kind: str, changes: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(kind, **{**SMALL, **changes})
    engine = build(AutoModelForCausalLM.from_config(config), uncaptured)
    assert engine._fixed is None
    assert feed(engine.open(), [1, 2]).shape == (257,)


def test_layers_of_different_shapes_keep_a_growing_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama", **SMALL)
    layer = model.model.layers[1].self_attn
    layer.num_key_value_groups = 4
    for name in ("k_proj", "v_proj"):
        setattr(layer, name, torch.nn.Linear(32, 8))
    engine = build(model, uncaptured)
    assert engine._fixed is None


@pytest.mark.thorough
@pytest.mark.model
def test_the_built_in_model_writes_the_same_over_fixed_widths() -> None:
    spec = ModelSpec(engine="torch")
    plain = open_torch(spec, print)
    fixed = TorchEngine(spec, plain.model, plain.tokenizer, 8192, capture=uncaptured)
    prompt = plain.tokenizer.encode("Name three colours.", chat=True)
    one, other = plain.open(), fixed.open()
    first, second = feed(one, prompt), feed(other, prompt)
    for _ in range(12):
        np.testing.assert_allclose(first, second, atol=5e-4, rtol=0)
        assert first.argmax() == second.argmax()
        first, second = feed(one, [int(first.argmax())]), feed(other, [int(second.argmax())])
    tree, links = (21, 22, 23, 24, 25), (-1, -1, 0, 1, 2)
    got, want = other.forward(tree, links, [3, 4]), one.forward(tree, links, [3, 4])
    np.testing.assert_allclose(got, want, atol=5e-4, rtol=0)
