"""The engines there are: ours, and those that other installed packages declare."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from backend.engines.engine import EngineDeclaration
from backend.engines.fake import FAKE
from backend.engines.openvino.engine import OPENVINO
from backend.engines.torch.engine import TORCH
from backend.errors import unknown
from backend.plugins import load_declared
from backend.types import ModelSpec

GROUP = "decode_derby.engines"
OURS = (OPENVINO, TORCH, FAKE)


@cache
def engines() -> Mapping[str, EngineDeclaration]:
    """Every engine by name, ours first."""
    return MappingProxyType(load_declared(GROUP, EngineDeclaration, OURS))


def engine_named(name: str) -> EngineDeclaration:
    """Raises DerbyError for an unknown name."""
    known = engines()
    if name not in known:
        raise unknown("engine", name, known)
    return known[name]


def offered_engines(*, demo: bool = False) -> tuple[str, ...]:
    """Names of the engines that run models, or of those that stand in for one."""
    return tuple(name for name, engine in engines().items() if engine.demo == demo)


def all_precisions() -> tuple[str, ...]:
    """Every precision that some engine runs, each once, in the order of the engines."""
    return tuple(dict.fromkeys(p for engine in engines().values() for p in engine.precisions))


def copy_spec(target: ModelSpec, precision: str) -> ModelSpec:
    """Where a copy of the target in another precision runs: on the target's own engine if that has
    it, else on the CPU by the first engine that does. A model that its engine brings is its own
    copy. Raises DerbyError for a precision that no engine has.
    """
    own = engine_named(target.engine)
    if own.models:
        return target
    if precision in own.precisions:
        return replace(target, precision=precision)
    for other in engines().values():
        if precision in other.precisions and not other.models:
            return ModelSpec(target.name, other.name, precision, "CPU")
    raise unknown("precision", precision, all_precisions())


def of_each(what: Callable[[EngineDeclaration], str]) -> str:
    """Something of each engine that runs models, for the command line."""
    runs = (engine for engine in engines().values() if not engine.demo)
    return "; ".join(f"{engine.name}: {what(engine)}" for engine in runs) + "."
