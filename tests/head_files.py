"""Files of trained heads, written as training wrote them."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.engines.heads.head import HeadShape, Weights, int8_rows


def write_head(
    path: Path, shape: HeadShape, weights: Weights, tokens: NDArray[np.int64], target: str
) -> None:
    """Write `path`. `target` is the fingerprint of the model that it is for."""
    from safetensors.numpy import save_file

    arrays: dict[str, NDArray[np.generic]] = {"tokens": tokens.astype(np.int32)}
    for name, value in weights.items():
        if value.ndim == 2:
            arrays[name], arrays[f"{name}.scale"] = int8_rows(value)
        else:
            arrays[name] = value.astype(np.float32)
    save_file(arrays, path, metadata={"shape": json.dumps(asdict(shape)), "target": target})
