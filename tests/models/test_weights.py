"""A model's size is read from its files' headers, without its weights."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from backend.engines.registry import engine_named
from backend.models.weights import count_weights
from backend.types import ModelSpec


def test_weights_are_counted_in_all_files_whatever_they_are_stored_as(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"max_position_embeddings": 64, "vocab_size": 32})
    )
    first = {"a": np.zeros((32, 8), np.float32), "scale": np.zeros((), np.float32)}
    save_file(first, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros((5, 4, 2), np.float16)}, tmp_path / "model-2.safetensors")
    assert count_weights(str(tmp_path), print) == 32 * 8 + 1 + 40
    for engine, precision, size in (("torch", "bf16", 2), ("torch", "fp32", 4)):
        spec = ModelSpec(str(tmp_path), engine, precision)
        assert engine_named(engine).estimate_bytes(spec, print) == 297 * size
    exact = engine_named("openvino").estimate_bytes(ModelSpec(str(tmp_path)), print)
    small = engine_named("openvino").estimate_bytes(
        ModelSpec(str(tmp_path), precision="int4"), print
    )
    assert small < exact / 4 < exact == 297 * 4
