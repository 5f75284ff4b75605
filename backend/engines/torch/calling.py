"""How a transformers model wants to be called, and its numbers as numpy has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Calling:
    """How this model wants to be called.

    `window` is the number of positions that a sliding-window layer sees, itself included (None:
    no such layer); `by_layer_type` says that it takes one mask per layer type. `positions` is
    False where the model counts them itself, from the rows in the cache. `cache` is what it calls
    its cache.
    """

    device: torch.device
    dtype: torch.dtype
    window: int | None = None
    by_layer_type: bool = False
    positions: bool = True
    cache: str = "past_key_values"


def to_bits(rows: torch.Tensor) -> NDArray[Any]:
    """A tensor of host memory as an array of its own; bf16, which numpy lacks, as its bits."""
    bits = rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows
    return bits.numpy().copy()


def from_bits(array: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """The tensor that `to_bits` made an array of, a copy in host memory."""
    rows = torch.from_numpy(np.array(array))
    return rows.view(dtype) if rows.dtype == torch.int16 else rows.to(dtype)
