"""How large a model is, read from the headers of its weight files."""

import json
import math
from pathlib import Path

from backend.models.files import Say, model_files


def count_weights(name: str, say: Say) -> int:
    """Number of weights of the model called `name`, which is fetched if need be.

    Raises DerbyError if there is no such model.
    """
    return weights_in(model_files(name, say).folder)


def weights_in(folder: Path) -> int:
    """Number of weights of the model in a folder."""
    return sum(map(_count, folder.glob("*.safetensors")))


def _count(path: Path) -> int:
    """Numbers in a safetensors file: 8 bytes say how long the JSON is that lists their shapes."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return sum(math.prod(tensor["shape"]) for tensor in header.values())
