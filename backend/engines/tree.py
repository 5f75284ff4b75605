"""What a tree of new tokens sees, from its parent links."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.types import chain_parents


class Tree(NamedTuple):
    """n tokens that hang from one another or from the context. Nobody may write to its arrays.

    `chain`: each follows the one before it. `depths` int64 [n]: 0 for those that hang from the
    context; `levels` of them there are. `seen` bool [n, n]: which tokens each token sees, itself
    and its ancestors.
    """

    chain: bool
    depths: NDArray[np.int64]
    levels: int
    seen: NDArray[np.bool_]


@lru_cache(maxsize=128)  # most passes have the shape of an earlier one
def tree_of(parents: tuple[int, ...]) -> Tree:
    """The tree of these parent links, -1 for the context.

    Raises RuntimeError unless parents come before their children.
    """
    n, depths = len(parents), list[int]()
    seen = np.eye(n, dtype=np.bool_)
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise RuntimeError(f"token {i}, parent {parent}")
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            seen[i] |= seen[parent]
    seen.setflags(write=False)
    found = np.array(depths, dtype=np.int64)
    found.setflags(write=False)
    return Tree(parents == chain_parents(n), found, max(depths, default=-1) + 1, seen)


def require_path(rows: Sequence[int], parents: Sequence[int]) -> None:
    """Raise RuntimeError unless `rows` lead from the context down, each the next one's parent."""
    above = -1
    for row in rows:
        if not 0 <= row < len(parents) or parents[row] != above:
            raise RuntimeError(f"not a path: {list(rows)}")
        above = row
