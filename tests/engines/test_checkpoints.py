"""What engines make of checkpoints whose files are whole and whose content is not, or is packed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chat_model
import families
import numpy as np
import pytest
import torch
from damaged import Damage, with_weights
from safetensors.torch import load_file, save_file

from backend.bench.runner import raced
from backend.engines.torch.engine import open_torch
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, chain_parents

MATRIX = "model.layers.1.mlp.up_proj.weight"


def spoiled(tensors: dict[str, Any]) -> None:
    tensors[MATRIX][0, 0] = float("nan")


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Damage], Path]:
    """Makes a tiny model whose files are damaged."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))

    def make(damage: Damage) -> Path:
        folder = chat_model.make(tmp_path / "model")
        damage(folder)
        return folder

    return make


@pytest.mark.parametrize("engine", ["torch", pytest.param("openvino", marks=pytest.mark.thorough)])
def test_weights_that_are_not_numbers_fail_their_columns(
    damaged: Callable[[Damage], Path], engine: str
) -> None:
    """One NaN among the weights made an empty text, "identical" and 2.42 times as fast."""
    spec = ModelSpec(str(damaged(with_weights(spoiled))), engine)
    columns = tuple(map(parse_column, ("kv", "lookup", "stateless")))
    for sampling in (0, 1):
        board = raced(Race(Request("Hi", 4 + sampling), columns, spec), LoadedModels())
        for score in board.scores:
            assert score.state == "failed"
            assert "not numbers (NaN)" in score.message


#: What the numbers of 4 bits stand for (OCP Microscaling Formats, 2023: E2M1).
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
CODES = torch.cat([VALUES, -VALUES])

#: Experts' widths are multiples of 32, a block's length.
GPT_OSS = families.USUAL | {
    "intermediate_size": 64,
    "head_dim": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def packed(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts' weights [E, in, out] in MXFP4: codes, two a byte, [E, out, in / 32, 16]; exponents
    [E, out, in / 32]; and the weights that they stand for.
    """
    experts, fan_in, fan_out = weights.shape
    blocks = weights.transpose(1, 2).reshape(experts, fan_out, fan_in // 32, 32)
    exponents = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 2
    codes = (blocks[..., None] / 2 ** exponents[..., None] - CODES).abs().argmin(-1)
    stood_for = (CODES[codes] * 2**exponents).reshape(experts, fan_out, fan_in).transpose(1, 2)
    pairs = codes[..., 0::2] | codes[..., 1::2] << 4
    scales = (exponents[..., 0] + 127).to(torch.uint8)
    return pairs.to(torch.uint8), scales, stood_for.contiguous()


def test_mxfp4_runs_on_torch_as_the_weights_that_it_stands_for(tmp_path: Path) -> None:
    """transformers unpacked the experts to bf16, and an engine of fp32 computed them so."""
    plain, stored = tmp_path / "plain", tmp_path / "stored"
    families.random_model("gpt_oss", **GPT_OSS).save_pretrained(plain)
    families.byte_tokenizer().save_pretrained(plain)
    shutil.copytree(plain, stored)
    unpacked, tensors = {}, {}
    for name, weights in load_file(plain / "model.safetensors").items():
        unpacked[name] = tensors[name] = weights
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            del tensors[name]
            codes, scales, unpacked[name] = packed(weights)
            tensors |= {f"{name}_blocks": codes, f"{name}_scales": scales}
    save_file(unpacked, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (stored / "config.json").write_text(json.dumps(config))

    def logits(folder: Path) -> Any:
        session = open_torch(ModelSpec(str(folder), "torch"), print).open()
        return session.forward([1, 2, 3], chain_parents(3), (0, 1, 2))

    assert np.array_equal(logits(stored), logits(plain))
