"""Loaded models, by what they are."""

from collections import OrderedDict
from collections.abc import Callable

from backend.engines.base import Engine
from backend.types import DerbyError, ModelSpec

ENGINES = ("openvino", "torch", "fake")


class Engines:
    """Keeps the models used last, at most `capacity` of them, so that a race rarely loads one."""

    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._loaded: OrderedDict[ModelSpec, Engine] = OrderedDict()

    def get(self, spec: ModelSpec, say: Callable[[str], None]) -> Engine:
        """The engine for `spec`, loaded if need be; `say` is told in one sentence what takes time.

        Raises DerbyError for an unknown engine, model, precision or device.
        """
        if spec not in self._loaded:
            while len(self._loaded) >= self._capacity:
                self._loaded.popitem(last=False)
            if spec.engine != "fake":
                say(f"Loading {spec}...")
            self._loaded[spec] = _open(spec, say)
        self._loaded.move_to_end(spec)
        return self._loaded[spec]


def _open(spec: ModelSpec, say: Callable[[str], None]) -> Engine:
    # Each engine's libraries take seconds to import: only the one asked for is.
    match spec.engine:
        case "openvino":
            from backend.engines.openvino_engine import open_openvino

            return open_openvino(spec, say)
        case "torch":
            from backend.engines.torch_engine import open_torch

            return open_torch(spec, say)
        case "fake":
            from backend.engines.fake import open_fake

            return open_fake(spec)
        case _:
            raise DerbyError(
                f"There is no engine {spec.engine!r}; use one of {', '.join(ENGINES)}."
            )
