"""The target's features of synthesised conversations, kept beside them as bf16."""

import shutil
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.training.shards import Shard
from backend.training.targets import Target
from backend.training.whole_files import whole
from backend.types import HiddenStates


def add_features(shard: Shard, target: Target) -> None:
    """Write the shard's file of features, uint16 [N, D], unless it is there. Raises DerbyError if
    the disk has no room for it.
    """
    if shard.features_path.exists():
        return
    with np.load(shard.path) as stored:
        tokens, offsets = stored["tokens"].astype(np.int64), stored["offsets"]
    bits = np.concatenate([as_bf16(target.features(tokens[a:b])) for a, b in pairwise(offsets)])
    free = shutil.disk_usage(shard.path.parent).free
    if bits.nbytes > free:
        raise DerbyError(
            f"{shard.features_path.name} takes {bits.nbytes / 1e6:.0f} MB and "
            f"{str(shard.path.parent)!r} has {free / 1e6:.0f} MB left: make room there, or ask for "
            "fewer tokens."
        )
    with whole(shard.features_path) as file:
        np.save(file, bits)


def as_bf16(values: HiddenStates) -> NDArray[np.uint16]:
    """float32 values rounded to bf16, to even on a tie, as their bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
