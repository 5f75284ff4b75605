"""The models that are loaded, within a budget of memory, and what their passes cost."""

import gc
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from backend.costs import Costs, known_costs, measured_costs, one_row_seconds
from backend.engines.draft import OpenNetwork
from backend.engines.eagle3.opening import cuda_device, open_eagle3
from backend.engines.engine import Engine
from backend.engines.registry import engine_named
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.libraries.llamacpp import LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.transformers import TRANSFORMERS
from backend.limits import PRIVATE, Limits
from backend.machine import computes_bf16
from backend.models.files import (
    BUILT_IN,
    HUB_ID,
    Say,
    fingerprint_of,
    hub_folder,
    is_ready_made,
    model_folder,
    stored_precision,
)
from backend.types import Layers, ModelSpec

#: Overrides the budget; in bytes.
BUDGET_VARIABLE = "DECODE_DERBY_MODEL_BYTES"

#: Of the memory there is: the rest is for activations, the page and everybody else.
SHARE = 0.6

#: Where Linux says what a container may use: a number of bytes, or "max".
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Seconds of warming up before a model's first race. Most races need the first of its passes alone;
#: whoever has idle moments does the others in them.
WARM_UP, FIRST_PASSES = 4.0, 0.4

#: Libraries that run models, by the names that specs have for engines.
LIBRARIES = {each.name: each.declaration for each in (TRANSFORMERS, OPENVINO_GENAI, LLAMACPP)}

#: Bytes of weights from which on a model is large: an engine's second precision is its usual one.
LARGE = 1e9


def size(count: float) -> str:
    """Bytes, as sentences tell them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def usual_spec(spec: ModelSpec, say: Say) -> ModelSpec:
    """The model at its engine's first precision, or as it is stored, or, if its weights would take
    more than LARGE bytes, at the second, which `say` is told; at bf16 only where the processor
    multiplies it: others are several times as slow then. Fetches a model of the Hub; columns tell
    of one that cannot be had. Raises DerbyError for an unknown engine.
    """
    engine = engine_named(spec.engine)
    first, second, *_ = (*engine.precisions, "")
    usual = replace(spec, precision=first)
    if spec.name == BUILT_IN or engine.models or not second:
        return usual
    if second == "bf16" and spec.device == "CPU" and not computes_bf16():
        return usual
    smaller = replace(spec, precision=second)
    try:
        folder = model_folder(spec.name, say)
        if is_ready_made(folder) and (stored := stored_precision(folder)) != first:
            return replace(spec, precision=stored)
        exact, rounded = engine.estimate_bytes(usual, say), engine.estimate_bytes(smaller, say)
    except DerbyError:
        return usual
    if exact <= LARGE or rounded >= exact:
        return usual
    say(
        f"{spec.name} would take {size(exact)} at {first} and takes {size(rounded)} at {second}, "
        f"where columns may differ in near ties: it runs at {second}, or at {first} with "
        f"--precision {first}."
    )
    return smaller


class LoadedModels:
    """Keeps the models used last, so that a race rarely loads one, each once however many columns
    use it.

    Weights and caches take at most `budget` bytes; None: what `model_budget` says. EAGLE-3 drafts
    are not counted. With `idle_warm_up` the owner calls `warm_up` when it has nothing better to do.
    """

    def __init__(
        self,
        budget: int | None = None,
        *,
        idle_warm_up: bool = False,
        limits: Limits = PRIVATE,
    ) -> None:
        self.limits = limits
        self._budget = budget
        self._warm_up = FIRST_PASSES if idle_warm_up else WARM_UP
        self._cache_bytes = 0  # of the sessions that columns have open
        self._loaded: OrderedDict[ModelSpec, Any] = OrderedDict()  # the last used last
        self._needed: set[ModelSpec] = set()
        self._failed: dict[ModelSpec, Exception] = {}
        self._cold: dict[ModelSpec, Iterator[None]] = {}
        self._costs: dict[ModelSpec, Costs] = {}
        self._drafts: dict[tuple[str, str, str], OpenNetwork] = {}

    def begin(self, needed: Iterable[ModelSpec]) -> None:
        """A race begins that needs these models: none of them makes room for another, nor do those
        that it loads beside them.
        """
        self._needed, self._failed = set(needed), {}

    def get(self, spec: ModelSpec, say: Say) -> Any:
        """The engine, or the library's model, for `spec`, loaded if need be; `say` is told in one
        sentence what takes time.

        Raises DerbyError for an unknown engine, model, precision or device, and where it has no
        room; for the rest of the race without trying again.
        """
        if spec not in self._loaded:
            if spec in self._failed:
                raise self._failed[spec]
            try:
                self._load(spec, say)
            except Exception as error:
                self._failed[spec] = error
                raise
        self._needed.add(spec)
        self._loaded.move_to_end(spec)
        return self._loaded[spec]

    def _load(self, spec: ModelSpec, say: Say) -> None:
        kind = LIBRARIES.get(spec.engine) or engine_named(spec.engine)
        if not kind.models:
            self.fetch(spec.name, say)
        peak = kind.peak_bytes(spec, say) if kind.peak_bytes else 0
        self._make_room(max(kind.estimate_bytes(spec, say), peak), f"Loading {spec}")
        if not kind.loads_at_once:
            say(f"Loading {spec}...")
        self._loaded[spec] = engine = kind.open(spec, say)
        self._free(0, beside=spec)  # it may have turned out larger than was estimated
        if isinstance(engine, Engine):
            self._cold[spec] = engine.warm_up()
        began = perf_counter()
        while perf_counter() - began < self._warm_up and self.warm_up():
            pass

    def fetch(self, name: str, say: Say) -> None:
        """Have the files of the Hub model `name` here; any other name is left alone. Raises
        DerbyError for what cannot be had.
        """
        if HUB_ID.fullmatch(name):
            hub_folder(name, say, download=self.limits.hub)

    @contextmanager
    def session(self, engine: Engine, rows: int, layers: Layers = ()) -> Iterator[Session]:
        """An empty session with room for `rows` tokens (0: it grows) that shows these layers'
        hidden states. Raises DerbyError if there is no memory for it.
        """
        cache = rows * engine.row_bytes
        self._make_room(cache, f"The KV cache of {rows:,} tokens of {engine.spec}")
        session = engine.open(rows, layers)
        self._cache_bytes += cache
        try:
            yield session
        finally:
            self._cache_bytes -= cache
            session.close()

    def _make_room(self, wanted: int, what: str) -> None:
        """Have `wanted` bytes free for `what`. Raises DerbyError, with both figures, if they are
        not, though all was dropped that the race does not need.
        """
        if wanted > (free := max(0, self._free(wanted))):
            raise DerbyError(
                f"{what} takes {size(wanted)} of memory, and {size(free)} may be used beside what "
                "is loaded: choose fewer or smaller models, fewer columns or tokens, or set "
                f"{BUDGET_VARIABLE} to more bytes."
            )

    def _free(self, wanted: int, beside: ModelSpec | None = None) -> int:
        """Bytes that are free once models that the race does not need were dropped until so many
        were.
        """

        def free() -> int:
            weights = sum(engine.weight_bytes for engine in self._loaded.values())
            return budget - weights - self._cache_bytes

        budget = model_budget() if self._budget is None else self._budget
        for spec in [spec for spec in self._loaded if spec not in {*self._needed, beside}]:
            if free() >= wanted:
                break
            del self._loaded[spec]
            self._cold.pop(spec, None)
            names = {spec.name for spec in self._loaded}
            self._drafts = {key: d for key, d in self._drafts.items() if key[0] in names}
            gc.collect()  # before anything else is loaded: engines hold cycles
        return free()

    def costs(self, engine: Engine) -> Costs:
        """What passes of a loaded engine are known to cost. The same object until they are
        measured: whoever runs passes tells it what they took.
        """
        if engine.spec not in self._costs:
            self._costs[engine.spec] = known_costs(engine)
        return self._costs[engine.spec]

    def measure_costs(self, engine: Engine, say: Say, *, remeasure: bool = False) -> None:
        """Measure what passes of a loaded engine cost if that is but assumed, or `remeasure`."""
        known = self.costs(engine)
        if remeasure or known.now.assumed:
            self._costs[engine.spec] = measured_costs(engine, known, say)

    def call_seconds(self, draft: Engine) -> float:
        """What a pass over one row takes of a model that drafts: as it is known, or timed now."""
        costs = self.costs(draft).now
        return one_row_seconds(draft) if costs.assumed else costs.one_row

    def eagle3(self, target: Engine, folder: Path, say: Say) -> OpenNetwork:
        """What opens the EAGLE-3 draft in `folder`. Raises DerbyError if it cannot draft for the
        target.
        """
        key = (target.spec.name, cuda_device(target.spec), fingerprint_of(folder))
        if key not in self._drafts:
            self._drafts[key] = open_eagle3(folder, target.spec, say)
        return self._drafts[key]

    def warm_up(self) -> bool:
        """Run one pass of which the first is slow; False if nothing is left to warm up."""
        while self._cold:
            spec, passes = next(reversed(self._cold.items()))
            if next(passes, self) is not self:
                return True
            del self._cold[spec]
        return False


def model_budget() -> int:
    """Bytes: what the environment states, or a share of the memory of the machine, or of the
    container if that has less.

    Raises DerbyError if the environment states anything but a whole number above 0.
    """
    import psutil

    if stated := os.environ.get(BUDGET_VARIABLE, "").strip():
        if not stated.isdecimal() or int(stated) == 0:
            raise DerbyError(
                f"{BUDGET_VARIABLE} is {stated!r:.60}; it must be a number of bytes above 0, such "
                "as 8000000000."
            )
        return int(stated)
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no container, or one without a limit
        total = min(total, int(CONTAINER_LIMIT.read_text()))
    return int(SHARE * total)
