"""Whether the files of a checkpoint can be read at all, before anything loads them: each defect is
a sentence that names the file and what to do.
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backend.errors import DerbyError

#: What a file of Git LFS begins with that was not fetched.
_POINTER = b"version https://git-lfs"

#: The package that reads weights of a format, by the `quant_method` of a config.json. Formats that
#: are not named here transformers reads alone, or not at all.
READERS: Mapping[str, str] = {
    "aqlm": "aqlm",
    "auto-round": "auto_round",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed_tensors",
    "eetq": "eetq",
    "gptq": "gptqmodel",
    "hqq": "hqq",
    "quanto": "optimum.quanto",
    "quark": "quark",
    "torchao": "torchao",
    "vptq": "vptq",
}


def quantised_as(config: Mapping[str, Any]) -> str:
    """The format of a checkpoint's quantised weights, by its config.json; "": they are plain."""
    stated = config.get("quantization_config")
    return str(stated.get("quant_method", "unknown")) if isinstance(stated, dict) else ""


def require_readable(folder: Path, name: str, config: object) -> None:
    """Raise DerbyError for weights or a tokenizer of the model `name` that are not whole, and for
    weights in a format whose package is not installed. Reads the files' beginnings alone.
    """
    for path in sorted(folder.glob("*.safetensors")):
        _require_whole(path, name)
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        _require_json(tokenizer, name)
    method = quantised_as(config) if isinstance(config, dict) else ""
    package = READERS.get(method)
    if package is not None and find_spec(package.partition(".")[0]) is None:
        raise DerbyError(
            f"The weights of {name!r} are quantised as {method:.40}, which the package {package} "
            "reads and which is not installed: install it for the torch engine, or choose the "
            "model's plain weights."
        )


def _require_whole(path: Path, name: str) -> None:
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as file:
        pointer = file.read(len(_POINTER)) == _POINTER
    if pointer:
        raise DerbyError(
            f"{path.name} of {name!r} is a pointer of Git LFS, not the weights: fetch them with "
            "`git lfs pull`."
        )
    try:
        with safe_open(path, "numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise DerbyError(
            f"{path.name} of {name!r} is damaged or not whole ({error!s:.100}): fetch it anew."
        ) from error


def _require_json(path: Path, name: str) -> None:
    try:
        json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DerbyError(
            f"{path.name} of {name!r} is not whole ({error!s:.100}): fetch it anew."
        ) from error
