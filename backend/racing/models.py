"""Loaded models, by what they are."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from backend.costs.measure import costs_of
from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.heads.base import Head
from backend.heads.file import SHIPPED, read_head
from backend.kvcache.prefix_cache import PrefixCache
from backend.types import ModelSpec

#: Bits of warming up after which a model serves most races at full speed.
USUAL = 10
DONE = object()


class LoadedModels:
    """Keeps the models used last, at most `capacity` of them, so that a race rarely loads one;
    and in `prefixes` the KV caches of earlier runs.

    A new model is warmed up at once, or, if `idle_warm_up`, only as far as most races need; the
    owner then calls `warm_up` whenever it has nothing better to do.
    """

    def __init__(self, capacity: int = 4, *, idle_warm_up: bool = False) -> None:
        self.prefixes = PrefixCache()
        self._capacity = capacity
        self._at_once = USUAL if idle_warm_up else None
        self._cold: dict[ModelSpec, Iterator[None]] = {}
        self._loaded: OrderedDict[ModelSpec, Engine] = OrderedDict()
        self._costs: dict[ModelSpec, PassCosts] = {}
        self._heads: dict[tuple[str, Path], Head] = {}

    def get(self, spec: ModelSpec, say: Callable[[str], None]) -> Engine:
        """The engine for `spec`, loaded if need be; `say` is told in one sentence what takes time.

        Raises DerbyError for an unknown engine, model, precision or device.
        """
        if spec not in self._loaded:
            while len(self._loaded) >= self._capacity:
                oldest, _ = self._loaded.popitem(last=False)
                self._cold.pop(oldest, None)
            declared = engine_named(spec.engine)
            if not declared.loads_at_once:
                say(f"Loading {spec}...")
            self._loaded[spec] = engine = declared.open(spec, say)
            self._cold[spec] = engine.warm_up()
            self.warm_up(self._at_once)
        self._loaded.move_to_end(spec)
        return self._loaded[spec]

    def costs(
        self, engine: Engine, say: Callable[[str], None], *, remeasure: bool = False
    ) -> PassCosts:
        """What passes of a loaded engine cost; measured if that was never tried, or `remeasure`."""
        if remeasure or engine.spec not in self._costs:
            self._costs[engine.spec] = costs_of(engine, say, remeasure=remeasure)
        return self._costs[engine.spec]

    def head(self, target: Engine, path: Path, say: Callable[[str], None]) -> Head:
        """The trained head in a file. Raises DerbyError if it is not one, or another model's."""
        key = target.spec.name, path
        if key not in self._heads:
            from backend.heads.openvino_head import open_openvino_head

            file = read_head(path)
            if path != SHIPPED and file.target != target.fingerprint:
                raise DerbyError(
                    f"The draft {path.name} was trained for another model than "
                    f"{target.spec.name!r}: train one for it with python -m backend train."
                )
            self._heads[key] = open_openvino_head(file, target.spec, say)
        return self._heads[key]

    def warm_up(self, bits: int | None = 1) -> bool:
        """Do so many bits of warming up (None: all); False if nothing is left to do."""
        done = 0
        while self._cold and done != bits:
            spec, warming = next(reversed(self._cold.items()))
            if next(warming, DONE) is DONE:
                del self._cold[spec]
            else:
                done += 1
        return bool(self._cold)
