"""A trained head's sizes, and its file: safetensors, its matrices as int8 with a scale a row."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.types import ModelSpec

SHIPPED = Path(__file__).parents[3] / "assets" / "draft" / "head.safetensors"

#: How the name of a draft ends that is a trained head's file.
HEAD_SUFFIX = ".safetensors"

#: Targets that the shipped head was trained for, by name.
TRAINED_FOR = ("built-in",)

#: Rows of a head's cache beside those that it attends to. A round's guesses lie there, behind the
#: text: more of them than this would displace rows that the text still needs.
SPARE = 32


Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """`hidden`, the head counts and so on are the target's, the rest the head's own: how many
    `layers` it has, and which of them, from 0, read the target's features.

    It attends to the last `window` tokens only, so its cost does not grow with the context.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    theta: float
    layers: int
    reads: tuple[int, ...]
    window: int = 256

    @property
    def slots(self) -> int:
        """Rows of its cache."""
        return self.window + SPARE

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def shape_of(config: dict[str, Any], layers: int, reads: tuple[int, ...]) -> HeadShape:
    """The head that suits a Llama-shaped target with this config.json."""
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return HeadShape(
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        eps=config["rms_norm_eps"],
        theta=config.get("rope_theta") or rope["rope_theta"],
        layers=layers,
        reads=reads,
    )


@dataclass(frozen=True, slots=True)
class HeadFile:
    """`weights` are TorchHead's by name, float32. `tokens` int64 [V'], ascending, are the target's
    ids that the head can draft. `digest` is the file's SHA-256, `target` the fingerprint of the
    model that it was trained for.
    """

    shape: HeadShape
    weights: Weights
    tokens: NDArray[np.int64]
    digest: str
    target: str


def head_for(target: ModelSpec) -> Path | None:
    """The file of the head that was trained for this model, if there is one."""
    return SHIPPED if target.name in TRAINED_FOR and SHIPPED.is_file() else None


def write_head(
    path: Path, shape: HeadShape, weights: Weights, tokens: NDArray[np.int64], target: str
) -> None:
    """Write `path`, whole or not at all. `target` is the fingerprint of the model it is for."""
    from safetensors.numpy import save_file

    arrays: dict[str, NDArray[np.generic]] = {"tokens": tokens.astype(np.int32)}
    for name, value in weights.items():
        if value.ndim == 2:
            scale = np.abs(value).max(1, keepdims=True) / 127
            arrays[name] = np.round(value / np.maximum(scale, 1e-12)).astype(np.int8)
            arrays[f"{name}.scale"] = scale.astype(np.float32)
        else:
            arrays[name] = value.astype(np.float32)
    partial = path.with_suffix(".partial")
    save_file(arrays, partial, metadata={"shape": json.dumps(asdict(shape)), "target": target})
    partial.replace(path)


def read_head(path: Path) -> HeadFile:
    """Raises DerbyError if the file is not one that `write_head` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            target = file.metadata()["target"]
            stated = json.loads(file.metadata()["shape"])
            shape = HeadShape(**{**stated, "reads": tuple(stated["reads"])})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tokens = arrays.pop("tokens").astype(np.int64)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DerbyError(f"{path.name} is not a trained draft ({error}): restore it.") from error
    weights = {
        name: value.astype(np.float32) * arrays[f"{name}.scale"] if value.ndim == 2 else value
        for name, value in arrays.items()
        if not name.endswith(".scale")
    }
    return HeadFile(shape, weights, tokens, hashlib.sha256(path.read_bytes()).hexdigest(), target)
