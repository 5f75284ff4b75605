"""A trained head's sizes, its file (safetensors, its matrices as int8 with a scale a row), and what
it takes of its target's.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.engines.engine import no_trained_draft
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


Floats = NDArray[np.float32]
Weights = dict[str, Floats]

#: The target's embeddings, of which input and output may be one.
INPUT, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"

#: What safetensors calls the types that weights come in; bfloat16 is the first half of float32.
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


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


@dataclass(frozen=True, slots=True)
class HeadFile:
    """`weights` are TorchHead's by name, float32. `tokens` int64 [V'], ascending, are the target's
    ids that the head can draft. `target` is the fingerprint of the
    model that it was trained for.
    """

    shape: HeadShape
    weights: Weights
    tokens: NDArray[np.int64]
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
            arrays[name], arrays[f"{name}.scale"] = int8_rows(value)
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
    return HeadFile(shape, weights, tokens, target)


def int8_rows(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Codes [O, I] and scales [O, 1] of a matrix [O, I]; what was read of such codes gives them
    back.
    """
    scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float32)
    return np.round(matrix / np.maximum(scale, 1e-12)).astype(np.int8), scale


def embeddings(folder: Path) -> tuple[Floats, Floats]:
    """Input and output embeddings [V, D] of the model in `folder`; one if tied."""
    table = tensor(folder, INPUT)
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    return table, table if tied else tensor(folder, OUTPUT)


def tensor(folder: Path, name: str) -> Floats:
    """One tensor of a folder's safetensors files, float32; it is read where it is looked at. Raises
    DerbyError if none has it.
    """
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(size)).get(name)
        if entry is not None and entry["dtype"] in TYPES:
            kind, place = TYPES[entry["dtype"]], 8 + size + entry["data_offsets"][0]
            values = np.memmap(path, kind, "c", place, tuple(entry["shape"]))
            if kind is np.uint16:
                values = (values.astype(np.uint32) << 16).view(np.float32)
            return np.asarray(values, dtype=np.float32)
    raise no_trained_draft(folder.name)
