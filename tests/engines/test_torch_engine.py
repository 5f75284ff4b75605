"""What is torch's own: chunks, masks by layer, failures, models. Its sessions: test_sessions.py."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from families import random_model

from backend.engines.torch.captured import CapturedSession, uncaptured
from backend.engines.torch.engine import TorchEngine, open_torch
from backend.engines.torch.session import FIRST_CAPACITY, Target
from backend.errors import DerbyError
from backend.text import ByteTokenizer
from backend.types import Logits, ModelSpec, chain_parents

VOCABULARY = 257
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


ENGINE = TorchEngine(
    ModelSpec(engine="torch"), random_model("llama", **SMALL), ByteTokenizer(), 512
)


def reference(text: list[int]) -> Logits:
    """float32 [V] after `text`, computed from nothing by the model itself."""
    with torch.inference_mode():
        return ENGINE.model(torch.tensor([text]), use_cache=False).logits[0, -1].numpy()


def assert_close(got: Logits, want: Logits) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def feed(session: Any, tokens: list[int]) -> Logits:
    """Add a chain to the context; float32 [V] after its last token."""
    logits = session.forward(tokens, chain_parents(len(tokens)), [len(tokens) - 1])
    session.keep(range(len(tokens)))
    return logits[0]


CONTEXT = [5, 9, 11, 200, 7, 33, 2, 8, 99, 120]


def test_prefill_in_chunks_equals_prefill_at_once() -> None:
    text = [int(t) for t in np.random.default_rng(1).integers(0, 256, 2 * FIRST_CAPACITY - 40)]
    session = ENGINE.open()
    last = [feed(session, text[i : i + 100]) for i in range(0, len(text), 100)][-1]
    assert session.length == len(text)
    assert_close(last, feed(ENGINE.open(), text))
    assert_close(last, reference(text))


def test_rows_nobody_asks_for_cost_no_vocabulary_product(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    head = ENGINE.model.lm_head
    hook = head.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape[1]))
    try:
        session = ENGINE.open()
        assert session.forward(CONTEXT, chain_parents(10), ()).shape == (0, VOCABULARY)
        session.keep(range(10))
        session.forward([1, 2, 3], [-1, 0, 1], [2, 0])
    finally:
        hook.remove()
    assert seen == [0, 2]


def test_a_failed_pass_leaves_the_context_as_it_was() -> None:
    session = ENGINE.open()
    feed(session, CONTEXT)

    def fail(*_: object) -> None:
        raise MemoryError

    hook = ENGINE.model.model.layers[1].register_forward_hook(fail)
    try:
        with pytest.raises(MemoryError):
            session.forward([1, 2], [-1, 0], [1])
    finally:
        hook.remove()
    assert session.length == len(CONTEXT)
    assert_close(feed(session, [4]), reference([*CONTEXT, 4]))


def hooks() -> int:
    """How many hooks the model's layers have."""
    return sum(len(layer._forward_pre_hooks) for layer in ENGINE.model.model.layers)


def test_a_session_shows_the_states_in_front_of_the_layers_that_it_was_opened_for() -> None:
    """The hooks stayed: after one race with such a draft every pass of every column ran them."""
    inside: list[int] = []
    counting = ENGINE.model.get_decoder().register_forward_hook(lambda *_: inside.append(hooks()))
    session, plain, tokens = ENGINE.open(layers=(0, 1, -1)), ENGINE.open(), CONTEXT[:5]
    try:
        feed(session, tokens[:3])
        feed(plain, tokens[:1])
        feed(session, tokens[3:])
    finally:
        counting.remove()
    assert (inside, hooks()) == ([2, 0, 2], 0)
    with torch.inference_mode():
        every = ENGINE.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    expected = torch.cat([every[i][0] for i in (0, 1, 2)], -1)[3:].numpy()
    assert_close(session.hidden_states((0, 1, -1)), expected)
    with pytest.raises(RuntimeError, match="no hidden states"):
        plain.hidden_states((0,))


def test_layers_are_shown_beside_passes_of_fixed_widths() -> None:
    """As on CUDA: the baseline went without its graphs once a draft had asked for layers."""
    engine = TorchEngine(ModelSpec(), ENGINE.model, ByteTokenizer(), 512, capture=uncaptured)
    session, plain = engine.open(layers=(1,)), engine.open()
    assert_close(feed(session, CONTEXT), feed(plain, CONTEXT))
    assert session.hidden_states((1,)).shape == (len(CONTEXT), 64)
    assert isinstance(plain, CapturedSession)


def test_no_hook_is_left_by_a_pass_that_fails() -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    failing, session = (
        ENGINE.model.model.layers[1].register_forward_hook(fail),
        ENGINE.open(layers=(1,)),
    )
    try:
        with pytest.raises(MemoryError):
            feed(session, CONTEXT)
    finally:
        failing.remove()
    assert hooks() == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [({"precision": "int4"}, "fp32, bf16 or fp16"), ({"device": "CUDA:99"}, "CPU")],
)
def test_what_is_not_there_is_refused_before_loading(change: dict[str, str], named: str) -> None:
    spec = dataclasses.replace(ModelSpec(engine="torch"), **change)
    with pytest.raises(DerbyError, match=named):
        open_torch(spec, lambda _: None)


@pytest.mark.model
def test_the_built_in_model_writes_what_generate_writes() -> None:
    built_in = open_torch(ModelSpec(engine="torch"), lambda _: None)
    prompt = built_in.tokenizer.encode("Name three colours.", chat=True)
    ids = torch.tensor([prompt])
    want = built_in.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
    )
    session = built_in.open()
    text = [*prompt, int(feed(session, prompt).argmax())]
    while len(text) < want.shape[1]:
        text.append(int(feed(session, text[-1:]).argmax()))
    assert text == want[0].tolist()
    assert built_in.max_context == 8192


STATE = {"index_head_dim": 16, "index_n_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16}
HEADS = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("openai-gpt", {"n_embd": 32, "n_layer": 1, "n_head": 2}),  # it has no cache
        ("glm_moe_dsa", SMALL | STATE | HEADS | {"num_key_value_heads": 4}),  # one of its own, too
    ],
)
def test_a_model_that_computes_a_text_otherwise_in_several_passes_is_refused(
    kind: str, sizes: dict[str, int]
) -> None:
    model = random_model(kind, **{"vocab_size": VOCABULARY, **sizes})
    with pytest.raises(DerbyError, match=f"'{kind}'"):
        TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 64)


@pytest.mark.parametrize(
    ("kind", "guesses", "sizes"),
    [
        ("ctrl", "chains", {"n_embd": 32, "n_layer": 1, "n_head": 2, "dff": 48}),
        ("bart", "chains", {"d_model": 32}),  # it counts positions itself
        ("mamba", "none", {"hidden_size": 32, "num_hidden_layers": 1}),
    ],
)
def test_the_self_test_says_what_a_model_may_check(
    kind: str, guesses: str, sizes: dict[str, int]
) -> None:
    model = random_model(kind, vocab_size=VOCABULARY, **sizes)
    engine = TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 64)
    assert engine.guesses == guesses
    assert engine.open().forward([1, 2, 3], chain_parents(3), [2]).shape == (1, VOCABULARY)


def test_a_wrong_mask_is_noticed_by_running_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a configuration says: here every row sees all rows of its pass before it."""
    monkeypatch.setattr(Target, "masks", lambda *_: None)
    engine = TorchEngine(ModelSpec(engine="torch"), ENGINE.model, ByteTokenizer(), 512)
    assert engine.guesses == "chains"
