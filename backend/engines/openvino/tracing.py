"""How torch modules are traced on their way to OpenVINO."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class FormerCache:
    """What optimum-intel's export of LFM2 needs of Lfm2HybridConvCache, of which it takes a
    subclass: transformers had that class before 5.5.
    """

    key_cache: list[Any]

    def __init__(self, config: Any, max_batch_size: int) -> None:
        self.layer_types = config.layer_types
        self.first_attention_layer = config.layer_types.index("full_attention")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise NotImplementedError

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0


@contextmanager
def former_caches() -> Iterator[None]:
    """Have transformers' modules hold classes that they no longer have, where they lack them."""
    from transformers.models.lfm2 import modeling_lfm2

    lacking = not hasattr(modeling_lfm2, "Lfm2HybridConvCache")
    if lacking:
        setattr(modeling_lfm2, "Lfm2HybridConvCache", FormerCache)  # noqa: B010
    try:
        yield
    finally:
        if lacking:
            delattr(modeling_lfm2, "Lfm2HybridConvCache")


@contextmanager
def traced_once() -> Iterator[None]:
    """Leave out the check with which torch ends a trace: it traces the module twice more, 7 s for
    the built-in model, and says in a warning whether the values came out the same.
    """
    import torch

    trace = torch.jit.trace
    torch.jit.trace = partial(trace, check_trace=False)
    try:
        yield
    finally:
        torch.jit.trace = trace
