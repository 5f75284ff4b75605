"""What a tree of new tokens sees, from its parent links."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.types import chain_parents


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each token follows the one before it, the first one the context."""
    return tuple(parents) == chain_parents(len(parents))


def depths(parents: Sequence[int]) -> NDArray[np.int64]:
    """Depth of each token below the context, 0 for those that hang from it: int64 [n]."""
    if is_chain(parents):
        return np.arange(len(parents))
    found = np.zeros(len(parents), dtype=np.int64)
    for i, parent in enumerate(parents):
        found[i] = found[parent] + 1 if parent >= 0 else 0
    return found


def visibility(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Which new tokens each new token sees, itself and its ancestors: bool [n, n].

    Raises RuntimeError unless parents come before their children.
    """
    n = len(parents)
    if is_chain(parents):
        order = np.arange(n)
        return order[:, None] >= order
    seen = np.eye(n, dtype=np.bool_)
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise RuntimeError(f"token {i} names token {parent} as its parent")
        if parent >= 0:
            seen[i] |= seen[parent]
    return seen


def require_path(rows: Sequence[int], parents: Sequence[int]) -> None:
    """Raise RuntimeError unless `rows` lead from the context down, each the next one's parent."""
    above = -1
    for row in rows:
        if not 0 <= row < len(parents) or parents[row] != above:
            raise RuntimeError(f"kept rows {list(rows)} are not a path in {list(parents)}")
        above = row
