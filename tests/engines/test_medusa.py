"""Medusa drafts: what their heads compute, in the formats of the method's authors and of vLLM."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import byte_tokenizer, random_model
from published_drafts import write

from backend.engines.heads.published import is_published, read_published
from backend.engines.heads.torch_draft import open_published
from backend.engines.torch.engine import TorchEngine
from backend.errors import DerbyError
from backend.types import ModelSpec

SIZE, VOCABULARY, HEADS = 16, 64, 3
AUTHORS = {"medusa_num_heads": 2, "medusa_num_layers": 2}  # a file may have more than it states
VLLM = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": HEADS}

Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def target() -> TorchEngine:
    model = random_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=SIZE,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return TorchEngine(ModelSpec("tiny", "torch"), model, byte_tokenizer(), 512)


@pytest.fixture(scope="module")
def blocks() -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Of each head the weight and bias of each layer."""
    torch.manual_seed(4)
    return [[(torch.randn(SIZE, SIZE), torch.randn(SIZE)) for _ in range(2)] for _ in range(HEADS)]


def expected(state: torch.Tensor, block: list[Any], projection: torch.Tensor) -> np.ndarray:
    """Section 2.1.1 of the paper: W2 (SiLU(W1 h) + h), here with two blocks and a bias each."""
    for weight, bias in block:
        state = state + torch.nn.functional.silu(weight @ state + bias)
    return (projection @ state).numpy()


def named(blocks: list[Any], layer: str) -> Weights:
    """The tensors of all layers by their names in a file."""
    return {
        f"{layer.format(i, j)}.{kind}": tensor
        for i, block in enumerate(blocks)
        for j, pair in enumerate(block)
        for kind, tensor in zip(("weight", "bias"), pair, strict=True)
    }


@pytest.mark.parametrize("form", ["authors", "vLLM", "shared", "mapped", "mapped later", "none"])
def test_each_head_predicts_one_place_further(
    target: TorchEngine, blocks: list[Any], form: str, tmp_path: Path
) -> None:
    """With a projection of each head's own, of all, cut to fewer tokens, or the target's."""
    torch.manual_seed(5)
    projections = [torch.randn(VOCABULARY, SIZE) for _ in range(HEADS)]
    config, weights = VLLM, named(blocks, "blocks.{}.layers.{}")
    ids = torch.arange(VOCABULARY)
    if form == "authors":
        config, weights = AUTHORS, named(blocks, "{}.{}.linear")
        weights |= {f"{i}.2.weight": each for i, each in enumerate(projections)}
    elif form == "none":
        projections = [target.model.get_output_embeddings().weight.detach()] * HEADS
    elif form == "shared":
        weights["lm_heads.0.weight"] = projections[0]
        projections = projections[:1] * HEADS
    else:
        ids = ids if form == "vLLM" else torch.tensor([40, 3, 17, 9])
        cut = [each[ids] if form == "mapped" else each for each in projections]
        weights |= {f"lm_heads.{i}.weight": each for i, each in enumerate(cut)}
        weights |= {"token_map": ids} if form.startswith("mapped") else {}
    folder = write(tmp_path / "medusa", config, weights)
    assert is_published(str(folder))
    network = open_published(read_published(folder), target, print).open()
    written = sorted(ids.tolist())
    assert network.vocabulary is None or network.vocabulary.tolist() == written
    states = torch.randn(3, SIZE)
    found = network.read(1, [5, 6, 7], states.numpy(), wanted=True)
    assert found.shape == (HEADS, len(ids))
    for row, block, projection in zip(found, blocks, projections, strict=True):
        assert np.abs(row - expected(states[-1], block, projection)[written]).max() < 1e-4
    network.close()


def test_heads_of_another_target_are_refused_with_both_sizes(
    target: TorchEngine, blocks: list[Any], tmp_path: Path
) -> None:
    weights = named(blocks, "{}.{}.linear")

    def refused(name: str, said: str, changed: Weights) -> None:
        folder = write(tmp_path / name, AUTHORS, changed)
        with pytest.raises(DerbyError, match=said):
            open_published(read_published(folder), target, print)

    wide = named([[(torch.zeros(24, 24), torch.zeros(24))]], "{}.{}.linear")
    refused("wide", "of hidden size 24, and this target's is 16", wide)
    long = weights | {"0.2.weight": torch.zeros(99, SIZE)}
    refused("long", "of vocabulary size 99, and this target's is 64", long)
    far = weights | {"token_map": torch.tensor([3, 70])}
    refused("far", "writes tokens up to 70, and this target has 64", far)
    del weights["1.1.linear.weight"]
    refused("cut", r"\(blocks\.1\.1\.weight\): restore its files", weights)
