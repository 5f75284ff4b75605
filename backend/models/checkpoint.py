"""Checks a checkpoint's files before anything loads them: each defect is one sentence that names
the file and what to do.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from backend.errors import DerbyError

#: What a file of Git LFS begins with until it is fetched.
_POINTER = b"version https://git-lfs"

#: Bytes of a file's beginning and end that are looked at.
_END = 1024

#: The package that reads weights of a format, by the `quant_method` of a config.json. transformers
#: reads any other format without a package, or not at all.
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


def require_readable(folder: Path, name: str, config: object) -> None:
    """Raise DerbyError for weights or a tokenizer of the model `name` that are incomplete, and for
    weights in a format whose package is not installed. Reads the files' first and last bytes.
    """
    for path in sorted(folder.glob("*.safetensors")):
        _require_whole(path, name)
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        _require_object(tokenizer, name)
    stated = config.get("quantization_config") if isinstance(config, dict) else None
    method = str(stated.get("quant_method", "")) if isinstance(stated, dict) else ""
    package = READERS.get(method, "")
    if package and not _installed(package):
        raise DerbyError(
            f"The weights of {name!r} are quantised as {method}, and the package {package}, which "
            "reads them, is not installed: install it for the torch engine, or choose the model's "
            "plain weights."
        )


def _installed(package: str) -> bool:
    """Whether a package can be imported, also one inside another."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


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
            f"{path.name} of {name!r} is damaged or incomplete ({error!s:.100}): fetch it again."
        ) from error


def _require_object(path: Path, name: str) -> None:
    """Raise DerbyError unless the file begins and ends as one JSON object: a tokenizer has up to
    tens of megabytes, which are parsed once, when it is loaded.
    """
    with path.open("rb") as file:
        first = file.read(_END).lstrip()[:1]
        file.seek(max(0, path.stat().st_size - _END))
        last = file.read().rstrip()[-1:]
    if (first, last) != (b"{", b"}"):
        raise DerbyError(f"{path.name} of {name!r} is damaged or incomplete: fetch it again.")
