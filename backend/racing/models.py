"""The models that are loaded, kept within a budget of memory."""

import gc
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from backend.costs.measure import costs_of, known_costs, one_row_seconds
from backend.costs.pass_costs import Costs
from backend.engines.base import Engine
from backend.engines.draft import OpenNetwork
from backend.engines.heads.draft import HeadNetwork
from backend.engines.heads.file import SHIPPED, read_head
from backend.engines.heads.opening import open_head, place_for
from backend.errors import DerbyError
from backend.grammar.grammars import Grammars
from backend.libraries.registry import declared
from backend.limits import PRIVATE, Limits
from backend.models.hub import HUB_ID, hub_folder
from backend.racing.sessions import KeptSessions
from backend.racing.usual import size
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Overrides the budget; in bytes.
BUDGET_VARIABLE = "DECODE_DERBY_MODEL_BYTES"

#: Of the memory there is: the rest is for KV caches, activations, the page and everybody else.
SHARE = 0.6

#: Where Linux says what a container may use: a number of bytes, or "max".
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Steps of warming up after which a model serves most races at full speed.
WARM_ENOUGH = 10

#: Seconds after which a new model is warm enough as well: beside passes so slow that they take as
#: long, what the first of a width takes longer is nothing.
WARM_SECONDS = 4.0

WARMED_UP = object()

Say = Callable[[str], None]


class LoadedModels:
    """Keeps the models used last, so that a race rarely loads one, each once however many columns
    use it; in `sessions` those of earlier runs, in `grammars` what grammar columns share.

    Their weights take at most `budget` bytes; None: what `model_budget` says. Trained heads and KV
    caches are not counted. A new model is warmed up at once, for WARM_SECONDS at most, or, if
    `idle_warm_up`, only as far as most races need; the owner then calls `warm_up` whenever it has
    nothing better to do.
    """

    def __init__(
        self,
        budget: int | None = None,
        *,
        idle_warm_up: bool = False,
        grammars: Grammars | None = None,
        limits: Limits = PRIVATE,
    ) -> None:
        self.limits = limits
        self.sessions = KeptSessions()
        self.grammars = grammars or Grammars()
        self._budget = budget
        self._at_once = WARM_ENOUGH if idle_warm_up else None
        self._cold: dict[ModelSpec, Iterator[None]] = {}
        self._loaded: OrderedDict[ModelSpec, Any] = OrderedDict()  # the last used last
        self._needed: dict[ModelSpec, int] = {}  # by one race, with the bytes of their weights
        self._costs: dict[ModelSpec, Costs] = {}
        self._priced: set[ModelSpec] = set()  # their costs were measured, or could not be
        self._calls: dict[ModelSpec, float] = {}
        self._heads: dict[tuple[str, str, Path, int], OpenNetwork] = {}

    @property
    def budget(self) -> int:
        """Bytes that the weights of all loaded models may take. Raises DerbyError if the
        environment states none that can be read.
        """
        return model_budget() if self._budget is None else self._budget

    def require_room(self, specs: Iterable[ModelSpec], say: Say) -> None:
        """Have these models, and no others, stay loaded together from now on: what one race needs.

        Fetches those of the Hub, but loads none of them. Raises DerbyError, with both figures, if
        they exceed the budget.
        """
        asked = tuple(dict.fromkeys(specs))
        needed = {spec: self._weight_bytes(spec, say) for spec in asked}
        total, budget = sum(needed.values()), self.budget
        if total > budget:
            each = ", ".join(f"{spec}: {size(count)}" for spec, count in needed.items())
            raise DerbyError(
                f"The models asked for take {size(total)} of memory ({each}) and "
                f"{size(budget)} may be used: choose fewer or smaller ones, or set "
                f"{BUDGET_VARIABLE} to more bytes."
            )
        self._needed = needed

    def has(self, spec: ModelSpec) -> bool:
        """Whether the model is loaded."""
        return spec in self._loaded

    def get(self, spec: ModelSpec, say: Say) -> Any:
        """The engine, or the library's model, for `spec`, loaded if need be; `say` is told in one
        sentence what takes time.

        One that `require_room` was not asked for is a need of its own: others may make room for
        it. Raises DerbyError for an unknown engine, model, precision or device, and for a model
        that exceeds the budget by itself.
        """
        if spec not in self._loaded:
            if spec not in self._needed:
                self.require_room((spec,), say)
            self._evict(self._needed[spec])
            self._fetch(spec, say)
            self._require_peak(spec, say)
            kind = declared(spec.engine)
            if not kind.loads_at_once:
                say(f"Loading {spec}...")
            engine = self._loaded[spec] = kind.open(spec, say)
            # It may have turned out larger than was estimated.
            self._needed[spec] = engine.weight_bytes
            self._evict(0)
            self._cold[spec] = engine.warm_up()
            self.warm_up(self._at_once, WARM_SECONDS)
        self._loaded.move_to_end(spec)
        return self._loaded[spec]

    def _require_peak(self, spec: ModelSpec, say: Say) -> None:
        """Raise DerbyError unless there is room for what opening a model takes on the way."""
        peak_bytes = declared(spec.engine).peak_bytes
        peak = peak_bytes(spec, say) if peak_bytes else 0
        self._evict(peak)
        if peak > (free := max(0, self.budget - self._in_use())):
            raise DerbyError(
                f"Converting {spec} takes up to {size(peak)} of memory, once, and {size(free)} may "
                "be used: choose fewer or smaller models, or set "
                f"{BUDGET_VARIABLE} to more bytes."
            )

    def fetch(self, name: str, say: Say) -> None:
        """Have the files of the Hub model `name` here; any other name is left alone. Raises
        DerbyError for what cannot be had.
        """
        if HUB_ID.fullmatch(name):
            hub_folder(name, say, download=bool(self.limits.hub))

    def _fetch(self, spec: ModelSpec, say: Say) -> None:
        """Have the files of a model of the Hub here."""
        if not declared(spec.engine).models:
            self.fetch(spec.name, say)

    def _weight_bytes(self, spec: ModelSpec, say: Say) -> int:
        """Bytes of a model's weights, estimated if it is not loaded; 0 if it cannot be had, which
        is for its own column to tell.
        """
        if spec in self._loaded:
            return self._loaded[spec].weight_bytes
        try:
            self._fetch(spec, say)
            return declared(spec.engine).estimate_bytes(spec, say)
        except DerbyError as error:
            log.info("the size of %s cannot be told: %s", spec, error)
            return 0

    def _evict(self, wanted: int) -> None:
        """Drop the models used longest ago, but none that is needed, until so many bytes are free
        or nothing is left to drop.
        """
        dropped = False
        for spec in [spec for spec in self._loaded if spec not in self._needed]:
            if self._in_use() + wanted <= self.budget:
                break
            self.sessions.close(self._loaded.pop(spec))
            self._cold.pop(spec, None)
            dropped = True
        if dropped:
            names = {spec.name for spec in self._loaded}
            self._heads = {key: head for key, head in self._heads.items() if key[0] in names}
            gc.collect()  # before anything else is loaded: engines hold cycles

    def _in_use(self) -> int:
        return sum(engine.weight_bytes for engine in self._loaded.values())

    def costs(self, engine: Engine) -> Costs:
        """What passes of a loaded engine are known to cost. The same object until `price` measures:
        whoever runs passes tells it what they took.
        """
        if engine.spec not in self._costs:
            self._costs[engine.spec] = known_costs(engine)
        return self._costs[engine.spec]

    def price(self, engine: Engine, say: Say, *, remeasure: bool = False) -> None:
        """Measure what passes of a loaded engine cost if that was never tried, or `remeasure`."""
        if engine.guesses == "none":  # it has passes of one width
            return
        if remeasure or engine.spec not in self._priced:
            self._priced.add(engine.spec)
            self._costs[engine.spec] = costs_of(engine, say, remeasure=remeasure)

    def call_seconds(self, draft: Engine) -> float:
        """What a pass over one row takes of a loaded model that drafts: as it is known, or else
        timed once.
        """
        costs = self.costs(draft).now
        if not costs.assumed:
            return costs.one_row
        if draft.spec not in self._calls:
            self._calls[draft.spec] = one_row_seconds(draft)
        return self._calls[draft.spec]

    def head(self, target: Engine, path: Path, say: Say) -> OpenNetwork:
        """What opens the trained head in the file `path`. Raises DerbyError if it is not one, or
        another model's.
        """
        written = path.stat().st_mtime_ns if path.is_file() else 0  # training does so anew
        key = (target.spec.name, place_for(target.spec), path, written)
        if key not in self._heads:
            file = read_head(path)
            if path != SHIPPED and file.target != target.fingerprint:
                raise DerbyError(
                    f"The draft {path.name} was trained for another model than "
                    f"{target.spec.name!r}: train one for it with python -m experiments train."
                )
            self._heads[key] = partial(HeadNetwork, open_head(file, target.spec, key[1], say))
        return self._heads[key]

    def warm_up(self, steps: int | None = 1, seconds: float = inf) -> bool:
        """Do so many steps of warming up (None: all), but begin none after so many seconds; False
        if nothing is left to do.
        """
        done, began = 0, perf_counter()
        while self._cold and done != steps and perf_counter() - began < seconds:
            spec, warming = next(reversed(self._cold.items()))
            if next(warming, WARMED_UP) is WARMED_UP:
                del self._cold[spec]
            else:
                done += 1
        return bool(self._cold)


def model_budget() -> int:
    """Bytes: what the environment states, or a share of the memory that this process may use.

    Raises DerbyError if the environment states anything but a whole number above 0.
    """
    stated = os.environ.get(BUDGET_VARIABLE, "").strip()
    if not stated:
        return int(SHARE * _memory())
    if not stated.isdecimal() or int(stated) == 0:
        raise DerbyError(
            f"{BUDGET_VARIABLE} is {stated!r:.60}; it must be a number of bytes above 0, such as "
            "8000000000."
        )
    return int(stated)


def _memory() -> int:
    """Bytes of the machine, or of the container if that has less."""
    import psutil

    total = psutil.virtual_memory().total
    try:
        return min(total, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):
        return total
