"""GGUF files: each turned once into an ordinary Hugging Face folder, float32 and tokenizer."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from backend.errors import DerbyError
from backend.models.cache_folder import cache_dir
from backend.models.digests import sha256_of
from backend.models.gguf_header import ANY_FILE, GgufHeader, read_header
from backend.models.gguf_tokenizer import tokenizer_from_gguf
from backend.models.prepared import intact, prepared

SUFFIX = ".gguf"

#: How the names of the cache's folders begin that are made of such files.
PREFIX = "gguf-"

#: Raise the version whenever the code below writes something else.
RECIPE = "gguf v1: fp32 and tokenizer from"

#: What a model's publisher may have put beside the file, and what then counts instead of it.
TOKENIZER = "tokenizer.json"
BESIDE = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)

#: Rotary positions that are scaled: transformers does not read how from a GGUF file.
SCALED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

#: Bytes of disk that a folder takes beside its weights, at most.
BESIDE_WEIGHTS = 64 << 20

#: Bytes a weight while the file is converted: transformers holds it dequantised, and the model.
ON_THE_WAY = 9


def split_parts(file: str, names: Iterable[str]) -> list[str]:
    """Those of the names that are parts of one model in several files, of which `file` is the first
    (NAME-00001-of-00003.gguf): of one in a single file, that alone.
    """
    start, split, count = file.rpartition("-00001-of-")
    parts = re.compile(rf"{re.escape(start)}-\d{{5}}-of-{re.escape(count)}")
    return [name for name in names if name == file or (split and parts.fullmatch(name))]


def gguf_in(folder: Path, name: str) -> Path | None:
    """The one GGUF file of a folder, None if there is none. Raises DerbyError for several."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    names = [path.name for path in found]
    if len(found) > 1 and split_parts(names[0], names) != names:
        listed = ", ".join(path.name for path in found[:5])
        raise DerbyError(
            f"{name!r} holds {len(found)} GGUF files ({listed:.300}): name one of them, a folder's "
            "as folder/FILE, the Hub's as owner/model:FILE."
        )
    return found[0] if found else None


def gguf_folder(path: Path, say: Callable[[str], None]) -> Path:
    """The model in a GGUF file as a Hugging Face folder. Raises DerbyError for one that cannot be
    read, whose tokenizer is not known, or that exceeds the memory.
    """
    beside = [path.parent / name for name in BESIDE if (path.parent / TOKENIZER).is_file()]
    sources = [path, *(file for file in beside if file.is_file())]
    digests = [sha256_of(file) for file in sources]
    recipe = f"{RECIPE} {hashlib.sha256(' '.join(digests).encode()).hexdigest()}"
    name = folder_name(digests[0])
    if intact(cache_dir() / name, recipe):
        return cache_dir() / name
    header = read_header(path)
    require_readable(header, path.name)

    def build(folder: Path) -> None:
        say(f"Converting {path.name}...")
        convert(path, folder, header)
        for file in sources[1:]:
            shutil.copyfile(file, folder / file.name)

    return prepared(name, recipe, build, 4 * header.weights + BESIDE_WEIGHTS, say)


def folder_name(digest: str) -> str:
    """The cache's folder that is made of the GGUF file with this SHA-256."""
    return f"{PREFIX}{digest[:16]}"


def require_readable(header: GgufHeader, name: str) -> None:
    """Raise DerbyError for a file whose model would not be the one that was meant."""
    import psutil

    if header.fields.get("split.count", 0) > 1:
        raise DerbyError(
            f"{name!r:.100} is one of {header.fields['split.count']} parts: join them with "
            "llama-gguf-split --merge."
        )
    scaling = header.of_architecture("rope.scaling.type")
    if scaling not in (None, "none") or any(tensor in header.tensors for tensor in SCALED):
        raise DerbyError(
            f"{name!r:.100} scales its rotary positions in a way that is not read from GGUF files "
            f"here: choose the model's safetensors, {ANY_FILE}."
        )
    needed, available = ON_THE_WAY * header.weights, psutil.virtual_memory().available
    if needed > available:
        raise DerbyError(
            f"Converting {name!r:.100} takes {needed / 1e9:.1f} GB of memory and only "
            f"{available / 1e9:.1f} GB are available: choose a smaller model, "
            f"{ANY_FILE}."
        )


def convert(path: Path, folder: Path, header: GgufHeader) -> None:
    """Write the model of a GGUF file into `folder`: fp32 safetensors, configs, tokenizer; the last
    only where none lies beside the file. Raises DerbyError for what cannot be converted.
    """
    beside = (path.parent / TOKENIZER).is_file()
    tokenizer = None if beside else tokenizer_from_gguf(header.fields)
    _write_weights(path, folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    ends = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ids = sorted({header.fields[name] for name in ends if name in header.fields})
    if len(ids) > 1:  # transformers knows of the first alone
        stated = folder / "generation_config.json"
        known = json.loads(stated.read_text()) if stated.is_file() else {}
        stated.write_text(json.dumps(known | {"eos_token_id": ids}))


def _write_weights(path: Path, folder: Path) -> None:
    """By transformers, from a folder that holds nothing but the file: no code, no other config."""
    import torch
    from transformers import AutoModelForCausalLM

    with TemporaryDirectory(dir=folder) as scratch:
        alone = Path(scratch) / f"model{SUFFIX}"
        try:
            alone.symlink_to(path.absolute())
        except OSError:  # Windows allows links to few
            shutil.copyfile(path, alone)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                scratch,
                gguf_file=alone.name,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
            )
        except OSError as error:
            if error.errno:
                raise
            raise _unreadable(path, error) from error
        except Exception as error:
            # Whatever a file that it was not made for makes it raise.
            raise _unreadable(path, error) from error
        model, found = loaded
        if missing := sorted(found["missing_keys"]):
            raise DerbyError(
                f"{path.name!r:.100} lacks the weights of {missing[0]}: fetch it again, or choose "
                "another file."
            )
        model.save_pretrained(folder)


def _unreadable(path: Path, error: Exception) -> DerbyError:
    said = (str(error).strip() or type(error).__name__).partition(os.linesep)[0]
    return DerbyError(
        f"transformers cannot read {path.name!r:.100} ({said:.200}): choose the model's "
        f"safetensors, {ANY_FILE}."
    )
