"""Models of the Hugging Face Hub: each fetched once into the cache folder, whole or not at all."""

import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from backend.errors import DerbyError
from backend.models.cache_folder import cache_dir
from backend.models.gguf import SUFFIX, split_parts
from backend.models.prepared import MANIFEST, intact, prepared

#: Without what the Hub does not allow in it. Behind a colon, one of the repository's GGUF files.
HUB_ID = re.compile(
    r"(?!.*(--|\.\.|\.git(:|$)))\w[\w.-]{0,95}/\w[\w.-]{0,95}(:\w[\w.-]{0,195}\.gguf)?", re.ASCII
)

#: What is fetched from the Hub: data only, top folder only, never pickles or code.
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
UNWANTED = "consolidated*"

#: A ready-made OpenVINO model, graph and weights: data as well, though its weights end in .bin.
IR = ("openvino_model.xml", "openvino_model.bin")

#: How the names of the cache's folders begin that hold such models.
PREFIX = "hub-"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Download:
    """What is to be fetched: so many bytes in `files` of one revision."""

    name: str
    revision: str | None
    files: Sequence[str]
    size: int


def hub_folder(name: str, say: Say, allow: Callable[[Download], None] = lambda _: None) -> Path:
    """The folder of the Hub model `name`: as it was fetched before, or fetched now.

    Before anything is fetched, `allow` may refuse it. Where the Hub cannot be reached, what other
    programs of this user fetched is used where it lies. Raises DerbyError for a model that cannot
    be had, and for one that exceeds the memory or the disk.
    """
    import httpx

    folder = hub_place(name)
    if not intact(folder, _recipe(name)):
        try:
            download = _download(name)
        except (httpx.HTTPError, OSError) as error:
            if (other := fetched_by_others(name)) is not None:
                return other
            raise _unreachable(name, error) from error
        allow(download)
        prepared(
            folder.name, _recipe(name), lambda into: _fetch(download, into, say), download.size, say
        )
    with suppress(OSError):
        os.utime(folder / MANIFEST)  # when it was last used
    return folder


def is_fetched(name: str) -> bool:
    """Whether the cache folder holds the Hub model `name`, whole."""
    return intact(hub_place(name), _recipe(name))


def fetched_folder(name: str) -> Path:
    """Where the Hub model `name` is if it was fetched, here or by others, or else will be."""
    return hub_place(name) if is_fetched(name) else fetched_by_others(name) or hub_place(name)


def hub_place(name: str) -> Path:
    """The folder of the cache that holds the Hub model `name`, or will."""
    return cache_dir() / f"{PREFIX}{name.replace('/', '--').replace(':', '--')}"


def fetched_by_others(name: str) -> Path | None:
    """Where other programs of this user keep the Hub model `name`, if they do."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name.partition(":")[0], local_files_only=True))
    except OSError:
        return None


def _recipe(name: str) -> str:
    version = "v2" if "-00001-of-" in name else "v1"  # the other parts were not fetched
    return f"hub {version}: {name}"


def _download(name: str) -> Download:
    """What there is to fetch, as the Hub lists it. Raises DerbyError, and what the client does."""
    from huggingface_hub import HfApi

    repository, _, file = name.partition(":")
    info = HfApi().model_info(repository, files_metadata=True, timeout=20)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    weights = _weights(name, list(sizes), file)
    others = [f for f in sizes if _is_wanted(f) and not f.endswith(".safetensors")]
    files = [*others, *weights]
    _require_loadable(name, len(weights), sum(sizes[file] for file in weights))
    return Download(name, info.sha, files, sum(sizes[file] for file in files))


def _weights(name: str, files: Sequence[str], file: str) -> list[str]:
    """The repository's files with weights: safetensors, else a ready-made OpenVINO model, else its
    GGUF file; or the one of that name. Raises DerbyError if there are several to choose from.
    """
    packed = [f for f in files if f.endswith(SUFFIX) and "/" not in f]
    if file:
        return split_parts(file, packed)
    if safe := [f for f in files if _is_wanted(f) and f.endswith(".safetensors")]:
        return safe
    if set(IR) <= set(files):
        return [*IR]
    if len(packed) > 1:
        raise DerbyError(
            f"The Hub model {name!r} has {len(packed)} GGUF files: name one, as in "
            f"{name}:{packed[0]:.100}."
        )
    return packed


def _is_wanted(file: str) -> bool:
    fits = any(fnmatchcase(file, pattern) for pattern in WANTED)
    return fits and "/" not in file and not fnmatchcase(file, UNWANTED)


def _fetch(download: Download, folder: Path, say: Say) -> None:
    # Its client would keep up to ten gigabytes of pieces beside what is fetched.
    os.environ.setdefault("HF_XET_CHUNK_CACHE_SIZE_BYTES", "0")
    import httpx
    from huggingface_hub import snapshot_download

    say(f"Downloading {download.name} ({download.size / 1e6:,.0f} MB)...")
    try:
        snapshot_download(
            download.name.partition(":")[0],
            revision=download.revision,
            local_dir=folder,
            allow_patterns=[escape(file) for file in download.files],
        )
    except (httpx.HTTPError, OSError) as error:
        raise _unreachable(download.name, error) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes


def _require_loadable(name: str, files: int, size: int) -> None:
    """Refuse, before anything is downloaded, weights that are unsafe or exceed memory."""
    import psutil

    if not files:
        raise DerbyError(
            f"The Hub model {name!r} has neither safetensors weights nor {IR[0]} nor such a GGUF "
            "file: choose one that has."
        )
    available = psutil.virtual_memory().available
    if size > available:
        raise DerbyError(
            f"The weights of {name!r} take {size / 1e9:.1f} GB and only {available / 1e9:.1f} GB "
            "of memory are available: choose a smaller model."
        )


def _unreachable(name: str, error: Exception) -> DerbyError:
    return DerbyError(
        f"The Hub model {name!r} could not be fetched ({type(error).__name__}): check the id and "
        "the network, log in if the model is gated, or use 'built-in'."
    )
