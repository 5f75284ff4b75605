"""Checks a checkpoint's files before anything loads them: each defect is one sentence that names
the file and what to do.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backend.errors import DerbyError

log = logging.getLogger(__name__)

#: What a file of Git LFS begins with until it is fetched.
_POINTER = b"version https://git-lfs"

#: Bytes of a file's beginning and end that are looked at.
_END = 1024

#: JSON files beside the weights. Each must be an object.
_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")

#: The package with which transformers reads weights of a format on any machine, by the
#: `quant_method` of a config.json.
READERS: Mapping[str, str] = {
    "aqlm": "aqlm",
    "auto-round": "auto_round",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed_tensors",
    "fp8": "triton",
    "gptq": "gptqmodel",
    "hqq": "hqq",
    "quanto": "optimum.quanto",
    "quark": "quark",
    "torchao": "torchao",
    "vptq": "vptq",
}

#: Formats that transformers unpacks to plain weights as it loads them, without a package.
UNPACKED = ("mxfp4",)

#: How libraries ask for leave to run code of a repository.
_FOREIGN_CODE = re.compile("trust_remote_code|custom code|remote code", re.IGNORECASE)


def require_readable(folder: Path, name: str) -> None:
    """Raise DerbyError for files of the model `name` that are incomplete or damaged, and for
    weights in a format that nothing here reads. Of weights and tokenizer it reads the first and
    last bytes.
    """
    for path in sorted(folder.glob("*.safetensors")):
        _require_whole(path, name)
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        _require_object(tokenizer, name)
    settings = {
        file: read_object(folder / file, name) for file in _SETTINGS if (folder / file).is_file()
    }
    _require_reader(settings["config.json"], name)


def read_object(path: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of the model `name`. Raises DerbyError if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DerbyError(
            f"The {path.name} of {name!r} is not JSON ({error!s:.100}): fetch it again."
        ) from error
    if not isinstance(found, dict):
        raise DerbyError(f"The {path.name} of {name!r} is not a JSON object: fetch it again.")
    return found


def _require_reader(config: Mapping[str, Any], name: str) -> None:
    """Raise DerbyError unless the format of the weights can be read here."""
    method = quantised_as(config)
    package = READERS.get(method, "")
    if not method or is_unpacked(config) or (package and _installed(package)):
        return
    install = f"install the package {package} for the torch engine, or " if package else ""
    raise DerbyError(
        f"The weights of {name!r} are quantised as {method:.40}, which no engine here can read: "
        f"{install}choose the model's plain weights."
    )


def is_unpacked(config: Mapping[str, Any]) -> bool:
    """Whether the weights are plain ones once they are loaded, though they are stored otherwise."""
    return quantised_as(config) in UNPACKED


def quantised_as(config: Mapping[str, Any]) -> str:
    """The format of the weights by a config.json; "" if they are plain."""
    parts = [config, config.get("text_config")]
    for part in filter(lambda each: isinstance(each, dict), parts):
        stated = part.get("quantization_config") or part.get("compression_config")
        if isinstance(stated, dict):
            bits = stated.get("load_in_4bit") or stated.get("load_in_8bit")
            return str(stated.get("quant_method") or ("bitsandbytes" if bits else "MLX"))
        if part.get("quantization"):
            return "MLX"
    return ""


def require_convertible(folder: Path, name: str) -> None:
    """Raise DerbyError unless transformers can make a plain model of the files and finds all of its
    weights; none are kept in memory. Of a model that is more than a causal language model, nothing
    is said.
    """
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    stated = read_object(folder / "config.json", name)
    method = quantised_as(stated)
    if method and not is_unpacked(stated):
        raise DerbyError(
            f"The weights of {name!r} are quantised as {method:.40}, which OpenVINO's converter "
            f"cannot read: choose the torch engine, or the model's plain weights."
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            return
        load: Any = AutoModelForCausalLM.from_pretrained
        _, loaded = load(
            folder,
            dtype=torch.float32,
            device_map={"": "meta"},
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told below
        )
    except Exception as error:  # whatever a configuration or weights of others make it raise
        raise loading_error(name, f"The model {name!r} cannot be loaded", error) from error
    require_all_weights(loaded, name)


def require_all_weights(loaded: Mapping[str, Collection[Any]], name: str) -> None:
    """Raise DerbyError for weights that the model `name` lacks, or whose shapes are not those of
    its configuration: transformers would draw them at random. `loaded` is its loading report.
    """
    if misfits := sorted(loaded["mismatched_keys"]):
        tensor, stored, wanted = misfits[0]
        raise DerbyError(
            f"The shapes of {_tensors(misfits)} of {name!r} do not fit its config.json, the first "
            f"being {tensor:.100}: {_shape(stored)} instead of {_shape(wanted)}. Fetch weights and "
            "config.json again."
        )
    if missing := sorted(loaded["missing_keys"]):
        raise DerbyError(
            f"The weights of {name!r} lack {_tensors(missing)} that its config.json asks for, the "
            f"first being {missing[0]:.100}: fetch them again."
        )


def _tensors(found: Collection[Any]) -> str:
    return f"{len(found):,} tensors" if len(found) > 1 else "1 tensor"


def _shape(sizes: Collection[int]) -> str:
    return " x ".join(map(str, sizes)) or "1"


def loading_error(name: str, what: str, error: Exception) -> DerbyError:
    """What a library said that could not read a model's files, as one sentence: `what` could not
    be done. A suggestion to run code of the model's repository is not passed on.
    """
    log.info("%s: %s", what, error, exc_info=error)
    if _FOREIGN_CODE.search(str(error)):
        return DerbyError(
            f"The model {name!r} needs code from its own repository, which Decode Derby does not "
            f"run: choose a model of a standard architecture."
        )
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return DerbyError(f"{what} ({said:.200}): choose another model, or fetch its files again.")


def _installed(package: str) -> bool:
    """Whether a package can be imported, also one inside another. A folder of that name where the
    program was started, which holds a model perhaps, has no origin.
    """
    try:
        found = find_spec(package)
    except ModuleNotFoundError:
        return False
    return found is not None and found.origin is not None


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
