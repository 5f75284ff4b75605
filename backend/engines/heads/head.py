"""A trained head: its sizes, its file (safetensors, matrices as int8 with a scale a row), what it
takes of its target's, and how it drafts on whichever library runs it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.draft import DraftNetwork
from backend.engines.engine import no_trained_draft
from backend.errors import DerbyError
from backend.types import HiddenStates, Logits, ModelSpec

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


def read_head(path: Path) -> HeadFile:
    """Raises DerbyError if the file is not one that training wrote."""
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


#: Added to the attention score of a row that must not be seen.
HIDDEN = np.float32(-1e9)

#: The position of an empty slot: before every window.
EMPTY = -(1 << 31)

#: Rows that a round's first pass usually reads.
USUAL = 3

#: More bytes than a processor's caches hold.
CACHES = 1 << 26


class Ring(Protocol):
    """A head's cache of one text: the row of position p lies in slot p modulo their number, and one
    slot more takes the rows that pad a pass.
    """

    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        """Run n rows and put them into their slots; `visible` [n, slots + 1]: what each sees of the
        ring, beside the rows up to itself. Logits [1, V'] and hidden state [1, D] of the last row.
        See TorchHead.forward for the other shapes.
        """
        ...

    def close(self) -> None:
        """Give back what is lent."""
        ...


class Head(Protocol):
    """A loaded head; it holds no text.

    `vocabulary` int64 [V'] are the target's ids of its logits; `seconds` is what a pass takes
    in a round, on average.
    """

    shape: HeadShape
    vocabulary: NDArray[np.int64]
    seconds: float

    def open(self) -> Ring:
        """An empty cache for a new text."""
        ...


class HeadNetwork(DraftNetwork):
    """A head as a DraftNetwork: a row stands for a token and the target's hidden state of the token
    before it. What a row sees is decided here, by the positions of the ring's rows.
    """

    name = title = "trained draft"
    layers = (-1,)

    def __init__(self, head: Head) -> None:
        self.seconds = head.seconds
        self.vocabulary = head.vocabulary
        self.window = head.shape.window
        self._ring = head.open()
        self._rows = np.full(head.shape.slots + 1, EMPTY, dtype=np.int64)  # positions
        self._state = np.zeros((1, head.shape.hidden), dtype=np.float32)  # that it predicted last

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        positions = np.arange(position, position + len(tokens))
        visible = self._rows > positions[:, None] - self.window
        logits, self._state = self._ring.run(states, tokens, positions, visible)
        self._rows[positions % (len(self._rows) - 1)] = positions
        return logits

    def guess(self, position: int, token: int) -> Logits:
        return self.read(position, [token], self._state, wanted=True)

    def rewind(self, length: int) -> None:
        self._rows[self._rows >= length] = EMPTY

    def close(self) -> None:
        self._ring.close()


def bias_of(visible: NDArray[np.bool_], width: int) -> Floats:
    """What a pass of `width` rows, whose last ones see of the ring what `visible` [n, slots + 1]
    says, adds to its scores: [width, slots + 1 + width]. The rows in front pad it: the others see
    none of them.
    """
    n, slots = visible.shape
    bias = np.full((width, slots + width), HIDDEN)
    bias[width - n :, :slots][visible] = 0
    bias[:, slots:][np.tri(width, dtype=bool)] = 0
    bias[width - n :, slots : slots + width - n] = HIDDEN
    return bias


def call_seconds(head: Head, widths: Sequence[int], repeats: int = 10) -> float:
    """Mean seconds of a pass as rounds make them: the first reads a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    network, others = HeadNetwork(head), np.zeros(CACHES, np.uint8)

    def seconds(rows: int) -> float:
        states = np.zeros((rows, head.shape.hidden), np.float32)
        start = perf_counter()
        network.read(0, [0] * rows, states, wanted=True)
        return perf_counter() - start

    for width in widths:  # each is slow at first
        seconds(width)
    first: list[float] = []
    second: list[float] = []
    for _ in range(repeats):
        others += 1
        first.append(seconds(USUAL))
        second.append(seconds(1))
    network.close()
    return (median(first) + median(second)) / 2
