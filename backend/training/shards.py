"""Synthesised conversations on disk: files of tokens, and beside each its target's features."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.training.whole_files import whole
from backend.types import HiddenStates

#: Who wrote a token: a template or a given beginning, the target as the user, the target as itself
#: (greedy, or sampled at temperature 0.7).
GIVEN, QUESTION, GREEDY, SAMPLED = range(4)


#: Gives HiddenStates [n, F] of each text, int64 [n].
FeaturesOf = Callable[[Sequence[NDArray[np.int64]]], list[HiddenStates]]

T = TypeVar("T")


class Text(NamedTuple):
    """One conversation: tokens int64 [n], which of them are an answer's, bool [n], and the
    target's features of them as bf16 bits, uint16 [n, F].
    """

    tokens: NDArray[np.int64]
    answers: NDArray[np.bool_]
    features: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Shard:
    """`path` is the file of tokens: `tokens` uint16 or uint32 [N], `kind` uint8 [N], `offsets`
    int64 [texts + 1].
    """

    path: Path

    @property
    def features_path(self) -> Path:
        return self.path.with_suffix(".features.npy")

    def texts(self) -> Iterator[Text]:
        """Its conversations; the features stay on disk until they are read."""
        with np.load(self.path) as stored:
            tokens, kind, offsets = stored["tokens"], stored["kind"], stored["offsets"]
        features = np.load(self.features_path, mmap_mode="r")
        for a, b in pairwise(offsets):
            yield Text(tokens[a:b].astype(np.int64), kind[a:b] >= GREEDY, features[a:b])

    def add_features(self, features_of: FeaturesOf) -> None:
        """Write the target's features of its conversations, unless they are there. Raises
        DerbyError if the disk has no room for them.
        """
        if self.features_path.exists():
            return
        with np.load(self.path) as stored:
            tokens, offsets = stored["tokens"].astype(np.int64), stored["offsets"]
        texts = [tokens[a:b] for a, b in pairwise(offsets)]
        states = torch.from_numpy(np.concatenate(features_of(texts)))
        bits = states.bfloat16().view(torch.uint16).numpy()
        free = shutil.disk_usage(self.path.parent).free
        if bits.nbytes > free:
            raise DerbyError(
                f"{self.features_path.name} takes {bits.nbytes / 1e6:.0f} MB and "
                f"{str(self.path.parent)!r} has {free / 1e6:.0f} MB left: make room there, or ask "
                "for fewer tokens."
            )
        with whole(self.features_path) as file:
            np.save(file, bits)

    def answer_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs in answers."""
        with np.load(self.path) as stored:
            return np.bincount(stored["tokens"][stored["kind"] >= GREEDY], minlength=vocab_size)


def shards_in(folder: Path) -> list[Shard]:
    """The complete shards of a folder, in order."""
    return [Shard(path) for path in sorted(folder.glob("shard-?????.npz"))]


def groups(texts: Iterable[T], length: Callable[[T], int], most: int) -> list[list[T]]:
    """Consecutive texts in groups of at most `most` tokens, counted as if all texts of a group were
    as long as its last one. A group has at least one text.
    """
    found: list[list[T]] = [[]]
    for text in texts:
        if (len(found[-1]) + 1) * length(text) > most and found[-1]:
            found.append([])
        found[-1].append(text)
    return found
