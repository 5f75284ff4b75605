"""What is torch's own: which models run, with what guesses and in which passes; what a pass asks of
the model, shows of it and leaves behind; when passes are captured; and of a checkpoint that reads
images too, the language model alone. Its sessions: test_sessions.py.
"""

from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from cpu_graph import Recorder
from families import LONGEST, random_model, tiny_engine, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from backend.engines.session import Session
from backend.engines.torch.captured import FIRST_CAPACITY, WIDTHS, CapturedSession, uncaptured
from backend.engines.torch.engine import TorchEngine, open_torch, text_config
from backend.errors import DerbyError
from backend.tokenizer import ByteTokenizer
from backend.types import Logits, ModelSpec, chain_parents

pytestmark = pytest.mark.usefixtures("one_thread")

ENGINE = tiny_engine("llama")
LAYERS = tiny_model("llama").model.layers
CONTEXT = [5, 9, 11, 200, 7, 33, 2, 8, 99, 120]


def engine_of(model: Any) -> TorchEngine:
    return TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 64, capture=uncaptured)


def assert_close(got: Logits, want: Logits) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def feed(session: Session, tokens: Any) -> Logits:
    """Add a chain to the context; float32 [V] after its last token."""
    logits = session.forward(tokens, chain_parents(len(tokens)), [len(tokens) - 1])
    session.keep(range(len(tokens)))
    return logits[0]


# Which models run ---------------------------------------------------------------------------------

STATE = {"index_head_dim": 16, "index_n_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16}
HEADS = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("openai-gpt", {"n_embd": 32, "n_layer": 1, "n_head": 2}),  # it has no cache
        # It has one of its own, too.
        ("glm_moe_dsa", families.USUAL | STATE | HEADS | {"num_key_value_heads": 4}),
    ],
)
def test_a_model_that_computes_a_text_otherwise_in_several_passes_is_refused(
    kind: str, sizes: dict[str, int]
) -> None:
    with pytest.raises(DerbyError, match=f"'{kind}'"):
        engine_of(random_model(kind, **{"vocab_size": families.VOCABULARY, **sizes}))


# A pass -------------------------------------------------------------------------------------------


def test_rows_nobody_asks_for_cost_no_vocabulary_product() -> None:
    rows: list[int] = []
    head = ENGINE.model.lm_head
    hook = head.register_forward_hook(lambda _m, inputs, _o: rows.append(inputs[0].shape[1]))
    session = ENGINE.open()
    assert session.forward(CONTEXT, chain_parents(10), ()).shape == (0, 257)
    session.keep(range(10))
    session.forward([1, 2, 3], [-1, 0, 1], [2, 0])
    hook.remove()
    assert rows == [0, 2]


def hooks() -> int:
    return sum(len(layer._forward_pre_hooks) for layer in LAYERS)


def test_a_failed_pass_leaves_the_context_as_it_was_and_no_hook() -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    session = ENGINE.open(layers=(1,))
    feed(session, CONTEXT)
    failing = LAYERS[1].register_forward_hook(fail)
    with pytest.raises(MemoryError):
        session.forward([1, 2], [-1, 0], [1])
    failing.remove()
    assert (session.length, hooks()) == (len(CONTEXT), 0)
    assert_close(feed(session, [4]), feed(ENGINE.open(), [*CONTEXT, 4]))


def test_a_session_shows_the_states_in_front_of_the_layers_that_it_was_opened_for() -> None:
    """Its own passes alone pay for that: a baseline beside it runs without hooks."""
    inside: list[int] = []
    counting = ENGINE.model.get_decoder().register_forward_hook(lambda *_: inside.append(hooks()))
    session, plain, tokens = ENGINE.open(layers=(0, 1)), ENGINE.open(), CONTEXT[:5]
    feed(session, tokens[:3])
    feed(plain, tokens[:1])
    feed(session, tokens[3:])
    counting.remove()
    assert (inside, hooks()) == ([2, 0, 2], 0)
    with torch.inference_mode():
        states = ENGINE.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[i][0] for i in (0, 1)], -1)[3:].numpy()
    assert_close(session.hidden_states((0, 1)), expected)
    with pytest.raises(RuntimeError, match="no hidden states"):
        plain.hidden_states((0,))


# Passes of fixed widths ---------------------------------------------------------------------------


def test_no_pass_of_a_text_of_known_length_is_captured_within_it() -> None:
    recorder = Recorder()
    session = tiny_engine("llama", recorder).open(LONGEST)
    captured = recorder.captured
    for _ in range(LONGEST // 60):
        feed(session, range(60))
    assert session.length > 2 * FIRST_CAPACITY
    assert recorder.captured == captured


def test_a_capture_does_not_go_by_what_an_earlier_pass_left() -> None:
    """The buffers of a width held the place of a long text's last row: capturing the passes of a
    smaller cache wrote behind its end, which on a device ends the process.
    """
    engine = tiny_engine("llama", Recorder())
    session = engine.open()
    for _ in range(FIRST_CAPACITY // 64):
        feed(session, range(64))
    feed(session, [1])
    assert_close(feed(engine.open(), [9]), feed(ENGINE.open(), [9]))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_last_positions_of_a_context_can_be_used(name: str) -> None:
    """Rows that pad a pass stand at a position that there is."""
    session, plain = tiny_engine(name, uncaptured).open(), tiny_engine(name).open()
    for size in (*[64] * 17, 9):
        assert_close(feed(session, [7] * size), feed(plain, [7] * size))
    assert session.length == LONGEST - 3
    tokens, links = [1, 2, 3, 4, 5], (-1, -1, 1, 2, 1)
    assert_close(session.forward(tokens, links, [3]), plain.forward(tokens, links, [3]))


def test_a_pass_wider_than_any_graph_runs_as_it_is() -> None:
    n = WIDTHS[-1] + 9
    session, plain = tiny_engine("llama", Recorder()).open(), ENGINE.open()
    assert isinstance(session, CapturedSession)
    links, rows = [-1, *[0] * (n - 1)], [0, 1, 2, 77, n - 1]
    assert_close(session.forward(range(n), links, rows), plain.forward(range(n), links, rows))
    assert session._shared._tensors.keys() == {(width, 0) for width in WIDTHS}, (
        "its logits stay for ever"
    )


def with_heads_that_differ_by_layer() -> Any:
    model = random_model("llama", **families.USUAL)
    layer = model.model.layers[1].self_attn
    layer.num_key_value_groups = 4
    layer.k_proj, layer.v_proj = torch.nn.Linear(64, 16), torch.nn.Linear(64, 16)
    return model


@pytest.mark.parametrize("name", ["falcon alibi", "qwen2_moe", "heads that differ by layer"])
def test_models_that_no_graph_can_hold_keep_a_growing_cache(name: str) -> None:
    engine = engine_of(
        tiny_model(name) if name in families.FAMILIES else with_heads_that_differ_by_layer()
    )
    session = engine.open()
    assert not isinstance(session, CapturedSession)
    assert feed(session, [1, 2]).shape == (257,)


# Checkpoints that read images, too ----------------------------------------------------------------


def opened(folder: Path) -> TorchEngine:
    return open_torch(ModelSpec(str(folder), "torch"), print)


def renamed(folder: Path, *changes: tuple[str, str]) -> None:
    """Call the weights of a checkpoint otherwise."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for old, new in changes:
        weights = {name.replace(old, new, 1): weight for name, weight in weights.items()}
    save_file(weights, path, metadata={"format": "pt"})


def test_weights_have_old_names_or_new_ones_and_those_that_read_images_are_left_out(
    tmp_path: Path,
) -> None:
    """Checkpoints of before transformers 4.52 call the language model's otherwise."""
    folder = families.make("mistral3", tmp_path / "model")
    engine = opened(folder)
    config: Any = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = families.auto_class(config).from_config(config)
    assert 0 < engine.weight_bytes < 4 * sum(weight.numel() for weight in model.parameters())
    new = feed(engine.open(), CONTEXT)
    renamed(folder, ("model.language_model.", "language_model.model."))
    renamed(folder, ("lm_head.", "language_model.lm_head."))
    assert_close(feed(opened(folder).open(), CONTEXT), new)


def test_a_model_is_loaded_without_what_only_reads_images(tmp_path: Path) -> None:
    """Gemma 3n's pictures need a package that is not installed; its text needs none of it."""
    folder = families.make("gemma3n", tmp_path / "model")
    alone = feed(opened(folder).open(), CONTEXT)
    renamed(folder, ("model.", "model.language_model."))
    stated = dict(families.FAMILIES["gemma3n"])
    AutoConfig.for_model("gemma3n", text_config=stated).save_pretrained(folder)
    assert_close(feed(opened(folder).open(), CONTEXT), alone)


@pytest.mark.parametrize("kind", ["t5", "qwen2_5_vl"])
def test_a_model_that_does_not_go_on_with_a_text_is_refused(kind: str) -> None:
    with pytest.raises(DerbyError, match=f"'{kind}'"):
        text_config(AutoConfig.for_model(kind))
