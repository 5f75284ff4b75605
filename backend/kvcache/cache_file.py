"""A file of KV caches: a safetensors file whose metadata is one JSON object and its digest.

A reader gets the object that was written, or a ValueError. The arrays have a digest of their own
(`digest_of`) if whoever writes puts it into the object. Digests find damage, not forgery.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.models.prepared import flush
from backend.types import Arrays

FORMAT = "decode-derby-cache-2"


@dataclass(frozen=True, slots=True)
class CacheFile:
    """An open file. `content` is its JSON object."""

    content: dict[str, Any]
    _file: safe_open

    def arrays(self) -> Arrays:
        """Copies of all arrays. Raises ValueError."""
        with _damage():
            return {name: self._file.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118

    def rows(self, length: int) -> Arrays:
        """Copies of the first `length` entries along axis 2 of all arrays. Raises ValueError."""
        with _damage():
            return {
                name: self._file.get_slice(name)[:, :, :length]
                for name in self._file.keys()  # noqa: SIM118
            }


@contextmanager
def open_file(path: Path) -> Iterator[CacheFile]:
    """Open a file for as long as it is read. Raises ValueError for anything but what `write_file`
    wrote, OSError for what cannot be read.
    """
    with _damage(), safe_open(path, "np") as file:
        yield CacheFile(_content(file.metadata() or {}), file)


def _content(metadata: Mapping[str, str]) -> dict[str, Any]:
    form, text = metadata.get("format", ""), metadata.get("content", "")
    if not form.startswith("decode-derby-"):
        raise ValueError("it is not a file of Decode Derby")
    if form != FORMAT:
        raise ValueError(f"its format is {form!r:.60}, and this version reads {FORMAT!r}")
    if metadata.get("sha256") != _digest(text):
        raise ValueError("its header is not the one that was saved")
    return json.loads(text)


def text_of(content: Mapping[str, Any]) -> str:
    """The JSON of an object. Raises ValueError, TypeError or RecursionError if it has none."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def write_file(path: Path, text: str, arrays: Arrays, *, durable: bool = True) -> None:
    """Put a file that its owner alone can read in place, once all of it is written; after any error
    there is none. `text` is the JSON object's. `durable`: the disk holds it before this returns.

    Raises OSError, or ValueError for arrays that no such file can hold.
    """
    partial = path.with_suffix(".partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        partial.chmod(0o600)  # a umask may have taken away the owner's rights
        metadata = {"format": FORMAT, "content": text, "sha256": _digest(text)}
        try:
            save_file(dict(arrays), partial, metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        if durable:
            flush(partial)
        partial.replace(path)
        if durable:
            flush(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def digest_of(arrays: Arrays) -> str:
    """Hex SHA-256 over names, dtypes, shapes and values."""
    made = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        made.update(f"{name!r} {array.dtype.name} {array.shape}".encode())
        made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return made.hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _damage() -> Iterator[None]:
    """What safetensors finds wrong, as a ValueError."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(f"it is damaged ({error})") from error
