"""What a GGUF file says of itself, read without trusting it: metadata, and how its tensors lie.

The gguf package makes objects of whatever counts a file states; here every count is checked against
what the file holds. Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3.
"""

import math
import os
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from backend.errors import DerbyError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

#: struct's letters for the kinds of values; two have none.
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

#: What runs any such file as it is: for sentences on those that cannot be read here.
ANY_FILE = "or take the engine llamacpp, which make llamacpp installs"

#: A vocabulary of half a million with its merges has two million values and 40 MB.
MOST_VALUES = 4_000_000
MOST_BYTES = 128 << 20
MOST_TENSORS = 100_000
MOST_DIMENSIONS = 4


class GgufTensor(NamedTuple):
    """Dimensions in numpy's order, ggml's number of the format, and its bytes in the file."""

    shape: tuple[int, ...]
    kind: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors, by name."""

    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @property
    def weights(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def of_architecture(self, name: str) -> Any:
        """A field that the architecture's name precedes, None if there is none."""
        return self.fields.get(f"{self.fields.get('general.architecture')}.{name}")


def read_header(path: Path, *, whole: bool = True) -> GgufHeader:
    """Raises DerbyError for what is no GGUF file, or one beyond the limits above. `whole`: nor for
    one that ends before its tensors do.
    """
    try:
        with path.open("rb") as file:
            return _Reader(file).header(whole=whole)
    except (ValueError, struct.error, MemoryError, RecursionError) as error:
        raise DerbyError(
            f"{path.name!r:.100} is no GGUF file that can be read here ({error}): fetch it again, "
            "or choose another."
        ) from error


class _Reader:
    """Reads a header from its start. Raises ValueError and struct.error for one that is none."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._values = 0

    @cached_property
    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def header(self, *, whole: bool) -> GgufHeader:
        if self._bytes(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensors, pairs = self._number("I"), self._number("Q"), self._number("Q")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version:#x}; {VERSIONS} are known")
        if tensors > MOST_TENSORS:
            raise ValueError(f"it states {tensors:,} tensors; {MOST_TENSORS:,} are allowed")
        self._count(pairs)
        fields = {self._string(): self._value(self._number("I")) for _ in range(pairs)}
        stated = dict(self._tensor() for _ in range(tensors))
        step = fields.get("general.alignment", 32)
        if not isinstance(step, int) or not 0 < step <= 1 << 16:
            raise ValueError(f"its alignment is {step!r:.20}")
        first = -(-self._file.tell() // step) * step
        placed = {
            name: tensor._replace(start=first + tensor.start, end=first + tensor.end)
            for name, tensor in stated.items()
        }
        for name, tensor in placed.items():
            if whole and tensor.end > self._size:
                raise ValueError(f"its tensor {name!r:.60} ends beyond the file")
        return GgufHeader(fields, placed)

    def _bytes(self, count: int) -> bytes:
        if count > min(MOST_BYTES, self._size) - self._file.tell():
            raise ValueError("its header is cut off, or too long")
        return self._file.read(count)

    def _number(self, letter: str) -> Any:
        (number,) = struct.unpack(f"<{letter}", self._bytes(struct.calcsize(f"<{letter}")))
        return number

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _count(self, more: int) -> None:
        self._values += more
        if self._values > MOST_VALUES:
            raise ValueError(f"its header holds more than {MOST_VALUES:,} values")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            self._count(count)
            if inner in NUMBERS:
                letters = f"<{count}{NUMBERS[inner]}"
                return list(struct.unpack(letters, self._bytes(struct.calcsize(letters))))
            return [self._value(inner) for _ in range(count)]
        if kind not in NUMBERS:
            raise ValueError(f"it holds a value of the unknown kind {kind}")
        return self._number(NUMBERS[kind])

    def _tensor(self) -> tuple[str, GgufTensor]:
        """Its name, and the tensor as it lies behind the start of all tensors."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self._string(), self._number("I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"its tensor {name!r:.60} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        kind, start = self._number("I"), self._number("Q")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return name, GgufTensor(shape, kind, start, start + math.prod(shape) // block * size)
