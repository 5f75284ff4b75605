"""How torch modules are traced on their way to OpenVINO."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


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
