"""A sequence's cache as llama.cpp writes it into bytes, and as arrays: layer by layer, row by row.

Source: state_write of src/llama-kv-cache.cpp. Caches that are written otherwise (values transposed,
positions in several dimensions, layers of several kinds) have no arrays here.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.llamacpp.library import F16, F32
from backend.types import Arrays

#: What rows are read as, by ggml's number of the format; others are bytes.
KINDS = {F32: np.dtype(np.float32), F16: np.dtype(np.float16)}

#: A cell's position, how many sequences have it, and which.
CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])

#: Bytes before the number of cells: a mark, the sequence, the number of streams.
HEAD = 12

#: Bytes behind the cells, before the layers: whether values are transposed, how many layers there
#: are, and 8 more, which are 0.
FORM = struct.Struct("<IIQ")

#: Bytes before a layer's rows: ggml's number of the format, and bytes a row.
LAYER = struct.Struct("<iQ")


@dataclass(frozen=True, slots=True)
class Layer:
    """How a layer's keys, or its values, are stored: ggml's number, and bytes a row."""

    name: str
    kind: int
    row: int

    @property
    def dtype(self) -> np.dtype:
        return KINDS.get(self.kind, np.dtype(np.uint8))


class Layout:
    """How a model's caches are written."""

    def __init__(self, written: bytes) -> None:
        """Read it off a sequence of one token. Raises ValueError for a cache of another form."""
        at = HEAD + 4 + CELL.itemsize
        streams, cells = struct.unpack_from("<II", written, HEAD - 4)
        if (streams, cells) != (1, 1) or len(written) < at + FORM.size:
            raise ValueError("it has no cell, or several")
        transposed, count, more = FORM.unpack_from(written, at)
        if transposed or more:
            raise ValueError("its values are transposed")
        at += FORM.size
        self._mark, self._form, self._layers = written[:HEAD], written[at - FORM.size : at], []
        for kind in "kv":
            for i in range(count):
                if at + LAYER.size > len(written):
                    raise ValueError("it ends early")
                layer = Layer(f"{kind}{i}", *LAYER.unpack_from(written, at))
                self._layers.append(layer)
                at += LAYER.size + layer.row
        if at != len(written) or self.written(self.arrays(written, 1)) != written:
            raise ValueError("it holds more")

    def arrays(self, written: bytes, length: int) -> Arrays:
        """Copies of the first `length` tokens' rows, [1, 1, length, numbers] each."""
        (cells,) = struct.unpack_from("<I", written, HEAD)
        table = np.frombuffer(written, CELL, cells, HEAD + 4)
        # Cells lie in the order of the text, but for what was laid into gaps.
        order = np.argsort(table["position"], kind="stable")[:length]
        at, found = HEAD + 4 + table.nbytes + FORM.size, dict[str, NDArray[Any]]()
        for layer in self._layers:
            at += LAYER.size
            rows = np.frombuffer(written, np.uint8, cells * layer.row, at)
            taken = np.ascontiguousarray(rows.reshape(cells, layer.row)[order])
            found[layer.name] = taken.view(layer.dtype)[None, None]
            at += rows.nbytes
        if at != len(written):
            raise RuntimeError(f"{len(written)} bytes of a cache, and {at} were read")
        return found

    def written(self, arrays: Arrays) -> bytes:
        """What llama.cpp reads. Raises RuntimeError for arrays of another model."""
        forms = {layer.name: (layer.dtype, layer.row) for layer in self._layers}
        if forms != {name: (a.dtype, a[0, 0, 0].nbytes) for name, a in arrays.items()}:
            raise RuntimeError("arrays of another model")
        cells = next(iter(arrays.values())).shape[2]
        table = np.zeros(cells, CELL)
        table["position"], table["sequences"] = np.arange(cells), 1
        parts = [self._mark, struct.pack("<I", cells), table.tobytes(), self._form]
        for layer in self._layers:
            rows = np.ascontiguousarray(arrays[layer.name])
            parts += [LAYER.pack(layer.kind, layer.row), rows.tobytes()]
        return b"".join(parts)
