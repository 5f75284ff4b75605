"""What is torch's own: chunks, masks by layer, failures, models. Its caches: test_cache.py."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from backend.engines.torch.engine import TorchEngine, open_torch
from backend.engines.torch.growing import FIRST_CAPACITY
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
WINDOW = 6


def build(config: Any) -> TorchEngine:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)  # sharp attention shows a wrong mask
    return TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 512)


ENGINE = build(AutoConfig.for_model("llama", **SMALL))


def reference(text: list[int], engine: TorchEngine = ENGINE) -> Logits:
    """float32 [V] after `text`, computed from nothing by the model itself."""
    with torch.inference_mode():
        return engine._model(torch.tensor([text]), use_cache=False).logits[0, -1].numpy()


def assert_close(got: Logits, want: Logits) -> None:
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def feed(session: Any, tokens: list[int]) -> Logits:
    """Add a chain to the context; float32 [V] after its last token."""
    logits = session.forward(tokens, chain_parents(len(tokens)), [len(tokens) - 1])
    session.keep(range(len(tokens)))
    return logits[0]


def path(parents: tuple[int, ...], row: int) -> list[int]:
    rows: list[int] = []
    while row >= 0:
        rows.append(row)
        row = parents[row]
    return rows[::-1]


CONTEXT = [5, 9, 11, 200, 7, 33, 2, 8, 99, 120]
TREE = (21, 22, 23, 24, 25, 26, 27, 28)
LINKS = (-1, -1, 0, 1, 2, 3, 3, 6)


def test_prefill_in_chunks_equals_prefill_at_once() -> None:
    text = [int(t) for t in np.random.default_rng(1).integers(0, 256, 2 * FIRST_CAPACITY - 40)]
    session = ENGINE.open()
    last = [feed(session, text[i : i + 100]) for i in range(0, len(text), 100)][-1]
    assert session.length == len(text)
    assert_close(last, feed(ENGINE.open(), text))
    assert_close(last, reference(text))


@pytest.mark.parametrize(
    "config",
    [
        AutoConfig.for_model("llama", **SMALL),
        AutoConfig.for_model("mistral", **SMALL, sliding_window=WINDOW),
        AutoConfig.for_model(
            "qwen2", **SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
    ],
    ids=["full attention", "every layer slides", "some layers slide"],
)
def test_every_row_of_a_tree_equals_its_own_chain(config: Any) -> None:
    engine = build(config)
    session = engine.open()
    feed(session, CONTEXT[:4])
    feed(session, CONTEXT[4:])
    wanted = [7, 4, 5, 0]
    logits = session.forward(TREE, LINKS, wanted)
    assert logits.dtype == np.float32
    assert logits.shape == (len(wanted), VOCABULARY)
    for row, got in zip(wanted, logits, strict=True):
        assert_close(got, reference(CONTEXT + [TREE[i] for i in path(LINKS, row)], engine))
    session.keep([1, 3, 6])
    assert_close(feed(session, [50]), reference([*CONTEXT, 22, 24, 27, 50], engine))


def test_rows_nobody_asks_for_cost_no_vocabulary_product(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    head = ENGINE._model.lm_head
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

    hook = ENGINE._model.model.layers[1].register_forward_hook(fail)
    try:
        with pytest.raises(MemoryError):
            session.forward([1, 2], [-1, 0], [1])
    finally:
        hook.remove()
    assert session.length == len(CONTEXT)
    assert_close(feed(session, [4]), reference([*CONTEXT, 4]))


def test_a_text_beyond_the_models_context_is_refused_with_both_lengths() -> None:
    session = ENGINE.open()
    feed(session, [7] * 511)
    session.forward([1, 2], [-1, -1], ())  # two alternatives for the last position
    session.keep([1])
    with pytest.raises(DerbyError, match=r"513.*512"):
        session.forward([1], [-1], [0])


def test_a_model_that_is_opened_again_is_tapped_once() -> None:
    """Each opening of a model that had been placed ahead added another hook to its passes."""
    model = ENGINE._model
    again = TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 512)
    assert len(model.get_decoder()._forward_hooks) == 1
    one, other = ENGINE.open(), again.open()
    feed(one, CONTEXT)
    feed(other, [1])
    assert one.hidden_states().shape == (len(CONTEXT), 64)
    assert other.hidden_states().shape == (1, 64)


def test_state_space_models_are_refused_by_type() -> None:
    config = AutoConfig.for_model(
        "mamba", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(DerbyError, match="'mamba'"):
        TorchEngine(ModelSpec(), model, ByteTokenizer(), 512)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"precision": "int4"}, "fp32, bf16 or fp16"), ({"device": "CUDA:99"}, "CPU")],
)
def test_what_is_not_there_is_refused_before_loading(change: dict[str, str], named: str) -> None:
    spec = dataclasses.replace(ModelSpec(engine="torch"), **change)
    with pytest.raises(DerbyError, match=named):
        open_torch(spec, lambda _: None)


@pytest.fixture(scope="module")
def built_in() -> TorchEngine:
    return open_torch(ModelSpec(engine="torch"), lambda _: None)


def test_the_built_in_model_writes_what_generate_writes(built_in: TorchEngine) -> None:
    prompt = built_in.tokenizer.encode("Name three colours.", chat=True)
    ids = torch.tensor([prompt])
    want = built_in._model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
    )
    session = built_in.open()
    text = [*prompt, int(feed(session, prompt).argmax())]
    while len(text) < want.shape[1]:
        text.append(int(feed(session, text[-1:]).argmax()))
    assert text == want[0].tolist()
    assert built_in.capabilities.max_context == 8192


def test_the_built_in_models_tree_rows_equal_their_chains(built_in: TorchEngine) -> None:
    prompt = built_in.tokenizer.encode("Name three colours.", chat=True)
    session, chain = built_in.open(), built_in.open()
    feed(session, prompt)
    feed(chain, prompt)
    rows = session.forward(TREE, LINKS, [5, 7])
    for row, got in zip([5, 7], rows, strict=True):
        want = feed(chain, [TREE[i] for i in path(LINKS, row)])
        chain.truncate(len(prompt))
        np.testing.assert_allclose(got, want, atol=5e-4, rtol=0)
