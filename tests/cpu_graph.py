"""A CUDA graph for the CPU: notes the kernels of a run and launches them again, without Python."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from backend.engines.torch.captured import Run

#: What a capture must not contain: it would have the device wait for the host.
ASKING = {"_local_scalar_dense", "nonzero", "_to_cpu", "item", "is_nonzero"}


class Kernels(TorchDispatchMode):
    """Notes what is launched, and launches it again on the same tensors, as a CUDA graph would: no
    Python runs, and no tensor is another one than when it was captured.
    """

    def __init__(self) -> None:
        super().__init__()
        self._launched: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ASKING, func
        results = func(*args, **(kwargs or {}))
        self._launched.append((func, args, kwargs or {}, results))
        return results

    def replay(self) -> None:
        with torch.inference_mode():
            for func, args, kwargs, results in self._launched:
                again = func(*args, **kwargs)
                for old, new in zip(tensors(results), tensors(again), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def tensors(results: Any) -> list[torch.Tensor]:
    parts = results if isinstance(results, tuple | list) else [results]
    return [part for part in parts if isinstance(part, torch.Tensor)]


class Recorder:
    """Captures runs as `Kernels`, and notes how often."""

    def __init__(self) -> None:
        self.captured = 0

    def __call__(self, run: Run) -> Run:
        run()  # once before, as on the device
        self.captured += 1
        kernels = Kernels()
        with kernels:
            run()
        return kernels.replay
