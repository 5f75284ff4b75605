"""A model drafts for itself with some of its layers: over the same weights, with the same text."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from families import random_model

from backend.costs.pass_costs import PassCosts
from backend.decoding.clock import Clock
from backend.decoding.drafter import Drafter
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.base import Session
from backend.engines.cache import Store
from backend.engines.torch.engine import TorchEngine
from backend.errors import DerbyError
from backend.events import Decided, Step
from backend.strategies.column import parse_column
from backend.strategies.declaration import DrafterInputs
from backend.strategies.layerskip import search
from backend.text import ByteTokenizer
from backend.types import ModelSpec, Request, Sampling, chain_parents

SMALL = {
    "vocab_size": 257,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

#: Layers of two kinds, of which a subset has its own order.
KINDS = ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
SLIDING = {"head_dim": 16, "sliding_window": 6, "layer_types": KINDS}

COSTS = PassCosts((1, 2, 4, 8, 16), (1e-3, 1.01e-3, 1.02e-3, 1.05e-3, 1.1e-3))
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 256, 20)]


def engine_of(kind: str) -> TorchEngine:
    model = random_model(kind, **SMALL, **(SLIDING if kind == "gemma3_text" else {}))
    return TorchEngine(ModelSpec(engine="torch"), model, ByteTokenizer(), 512)


def logits(engine: TorchEngine, text: list[int]) -> np.ndarray:
    """Those behind every token, from a cache that was filled in two passes."""
    session, made = engine.open(), []
    for part in (text[:12], text[12:]):
        made.append(session.forward(part, chain_parents(len(part)), range(len(part))))
        session.keep(range(len(part)))
    return np.concatenate(made)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_a_shorter_model_is_the_one_of_these_layers_alone_and_shares_its_weights(kind: str) -> None:
    engine = engine_of(kind)
    before = logits(engine, TEXT)
    shorter = engine.shortened([0, 2, 3])
    alone = deepcopy(engine.model)  # the same made by hand, of weights of its own
    alone.model.layers = torch.nn.ModuleList(alone.model.layers[i] for i in (0, 2, 3))
    alone.config.num_hidden_layers = 3
    if kind == "gemma3_text":
        alone.config.layer_types = [KINDS[i] for i in (0, 2, 3)]
    with torch.inference_mode():
        want = alone(torch.tensor([TEXT]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(logits(shorter, TEXT), want, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(logits(engine, TEXT), before)
    own = {parameter.data_ptr() for parameter in engine.model.parameters()}
    assert {parameter.data_ptr() for parameter in shorter.model.parameters()} < own


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("settings", ["", ":k=3"])
def test_the_text_is_the_models_own_and_the_column_says_which_layers_draft(
    settings: str, temperature: float
) -> None:
    """The random model's layers add little, so some guesses of fewer layers are right, not all."""
    engine, column = engine_of("llama"), parse_column(f"layerskip{settings}")
    sampler = Sampler(Sampling(temperature, seed=5))

    def events(drafter: Drafter) -> list[Step | Decided]:
        parts = Parts(engine.open(), engine.tokenizer, sampler, Clock(), drafter, positions=512)
        request = Request("-", 40, sampler.sampling)
        return [e for e in decode(0, TEXT, request, parts) if isinstance(e, Step | Decided)]

    build = column.strategy.build
    made = events(build(DrafterInputs(column.settings(), engine, COSTS, sampler)))
    steps = [event for event in made if isinstance(event, Step)]
    plain = [event for event in events(Drafter()) if isinstance(event, Step)]
    assert [t for step in steps for t in step.tokens] == [t for step in plain for t in step.tokens]
    # By itself (auto) it may find that layers are too dear to ask within 40 tokens.
    assert not settings or any(len(step.tokens) > 1 for step in steps)
    told = [event.why for event in made if isinstance(event, Decided)]
    assert all(str(search(engine, COSTS)) in why for why in (told[0], told[-1]))


def test_the_search_is_made_once_and_leaves_out_what_is_missed_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer whose outputs are nothing can go; it is the first to go."""
    engine, passes = engine_of("llama"), 0
    with torch.no_grad():
        engine.model.model.layers[2].self_attn.o_proj.weight.zero_()
        engine.model.model.layers[2].mlp.down_proj.weight.zero_()
    found = search(engine, COSTS)
    assert 2 not in found.kept
    assert 0 < found.agreement <= 1
    assert found.share < 1

    def count(_self: TorchEngine) -> Store:
        nonlocal passes
        passes += 1
        raise AssertionError

    monkeypatch.setattr(TorchEngine, "store", count)
    assert search(engine, COSTS) is found
    assert not passes


def test_room_for_the_whole_text_is_made_before_the_clock_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA the draft's cache grew in the middle of it, and passes were captured anew."""
    engine, column, rows = engine_of("llama"), parse_column("layerskip"), list[int]()
    monkeypatch.setattr(Session, "reserve", lambda _, length: rows.append(length))
    search(engine, COSTS)
    given = DrafterInputs(column.settings(), engine, COSTS, Sampler(Sampling()), longest=60)
    column.strategy.build(given).close()
    assert rows == [60]
    assert engine.shortened([0], captured=False).why_growing.startswith("it runs for a moment")


def test_layers_that_read_the_caches_of_others_cannot_be_left_out() -> None:
    engine = engine_of("llama")
    engine.model.config.num_kv_shared_layers = 2
    with pytest.raises(DerbyError, match="read the keys and values of others"):
        engine.shortened([0, 1])
