"""What the operator of this page offers: engines, their precisions and devices, and models.

Visitors choose by label or number and never name a path; what goes back to them names none.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from backend.engines.declaration import EngineDeclaration
from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.libraries.library import Library
from backend.limits import PRIVATE, Limits
from backend.models.files import BUILT_IN, HUB_ID, is_ready_made
from backend.models.gguf import SUFFIX
from backend.racing.race import MAX_COLUMNS
from backend.racing.usual import usual_precision
from backend.types import ModelSpec

HUB = "hub"

#: A model's label that can stand in a column's text; others go by their keys.
_PLAIN_LABEL = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine with the precisions and devices to choose from; the first ones are the defaults."""

    engine: str
    title: str
    precisions: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """`models` are names as engines take them; the first one is the default. `limits` are those of
    one race. `servers` are names of servers.
    """

    runtimes: tuple[Runtime, ...]
    models: tuple[str, ...]
    limits: Limits = PRIVATE
    servers: tuple[str, ...] = ()

    @property
    def hub(self) -> bool:
        """Whether visitors may name models of the Hub that the operator does not list."""
        return self.limits.hub_downloads > 0

    def has(self, name: str) -> bool:
        """Whether visitors may run the model of that name, as engines take it."""
        return _whole(name) in self.models or (self.hub and HUB_ID.fullmatch(name) is not None)

    def runtime(self, engine: str) -> Runtime | None:
        return next((r for r in self.runtimes if r.engine == engine), None)

    def around(self, library: Library | None) -> "Offer":
        """What a library's columns may choose from: where it runs, whatever engines are offered."""
        declared = library.declaration if library else None
        return replace(self, runtimes=(_runtime(declared),)) if declared else self

    @property
    def most_columns(self) -> int:
        return min(self.limits.columns, MAX_COLUMNS)

    @property
    def labels(self) -> dict[str, str]:
        """The models' keys, "0", "1", ..., and the labels to show for them."""
        return {str(i): _label(name) for i, name in enumerate(self.models)}

    @property
    def names(self) -> list[str]:
        """How each model is written in a column: by its label, or by its key where the label cannot
        be used.
        """
        labels = list(self.labels.values())
        return [
            label
            if labels.count(label) == 1 and _PLAIN_LABEL.fullmatch(label) and not label.isdigit()
            else key
            for key, label in self.labels.items()
        ]

    def usual_precision(self, key: str, engine: str) -> tuple[str, str]:
        """The precision at which a model, given by its key, runs by default, and a sentence that
        says why if it is not the engine's first precision. Only local folders with weights to
        load are looked at: the size of others is not known yet, or takes a conversion.
        """
        runtime = self.runtime(engine) or self.runtimes[0]
        name = self.models[int(key)] if key in self.labels else ""
        if not (_is_path(name) and _holds_weights(Path(name))):
            return runtime.precisions[0], ""
        chosen, why = usual_precision(ModelSpec(name, runtime.engine), lambda _: None)
        return chosen, f"{self.public(why)}: {chosen} is what it runs at by default." if why else ""

    def model_named(self, written: str) -> str:
        """A model's name for the engines, which a column writes so: one of the operator's, or a Hub
        id. Raises DerbyError for any other.
        """
        names = self.names
        if written in names:
            return self.models[names.index(written)]
        if self.hub and HUB_ID.fullmatch(written):
            return written
        more = ", or a Hub id such as owner/model" if self.hub else ""
        raise DerbyError(
            f"There is no model {written!r:.60} on this page; choose one of {_list(names)}{more}."
        )

    def written(self, name: str) -> str:
        """How a column writes a model, by its name for the engines."""
        return self.names[self.models.index(name)] if name in self.models else name

    def options(self, what: str, engine: str = "") -> tuple[str, ...]:
        """The engines, or the "precision" or "device" of an engine; "": of any."""
        if what == "engine":
            return tuple(runtime.engine for runtime in self.runtimes)
        runtimes = [runtime for runtime in self.runtimes if engine in ("", runtime.engine)]
        names = (r.precisions if what == "precision" else r.devices for r in runtimes)
        return tuple(dict.fromkeys(chain.from_iterable(names)))

    def require_place(self, engine: str, precision: str, device: str) -> None:
        """Raise DerbyError unless these are offered. "" stands for the race's own choice, which is
        not checked.
        """
        title = next((f"{r.title} has" for r in self.runtimes if r.engine == engine), "There is")
        for what, name in (("engine", engine), ("precision", precision), ("device", device)):
            offered = self.options(what, engine)
            if name and name not in offered:
                there = "There is" if what == "engine" else title
                raise DerbyError(
                    f"{there} no {what} {name!r:.60} here; choose from {_list(offered)}."
                )

    def require_target(self, target: ModelSpec) -> None:
        """Raise DerbyError unless a column may run there. The model's name is not checked."""
        self.require_place(target.engine, target.precision, target.device)

    def public(self, text: str) -> str:
        """`text` with the operator's paths replaced by their labels, wherever a path can begin."""
        # Longest first: one folder may lie in another.
        for name in sorted(filter(_is_path, self.models), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(name)}", lambda _, name=name: _label(name), text)
        return text


def _runtime(engine: EngineDeclaration) -> Runtime:
    return Runtime(engine.name, engine.title, engine.precisions, engine.devices())


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _is_path(name: str) -> bool:
    return name.startswith((".", "~")) or Path(name).is_absolute()


def _holds_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or is_ready_made(folder)


def _label(name: str) -> str:
    return Path(name).name if _is_path(name) else name


def _whole(name: str) -> str:
    """A model's name as engines get it here: a local path is made absolute. A short path such as
    "." could not be told from a full stop in a sentence.
    """
    # As it is written: a link to a folder is labelled by its own name.
    return os.path.abspath(Path(name).expanduser()) if _is_path(name) else name  # noqa: PTH100


def offer_of(
    names: Sequence[str],
    models: Sequence[str] = (BUILT_IN,),
    limits: Limits = PRIVATE,
    servers: Iterable[str] = (),
) -> Offer:
    """What these engines offer on this machine: `models`, and those that they bring themselves.

    Raises DerbyError for an unknown engine.
    """
    chosen = [engine_named(name) for name in names]
    runtimes = tuple(map(_runtime, chosen))
    # The default model must be one that the default engine knows.
    named = [_whole(name) for name in models]
    ordered = dict.fromkeys(name for e in chosen for name in e.models or named)
    return Offer(runtimes, tuple(ordered | dict.fromkeys(named)), limits, tuple(servers))


def models_named(models: Sequence[str], engines: Sequence[str]) -> tuple[str, ...]:
    """These models as engines get them: folders and files by their absolute paths. Raises
    DerbyError unless each is a folder, a GGUF file or a Hub id. An engine that brings its own
    models also accepts its own names.
    """
    own = any(engine_named(engine).models for engine in engines)
    for name in models:
        if _is_path(name):
            path = Path(name).expanduser()
            if not path.is_dir() and not (path.suffix == SUFFIX and path.is_file()):
                raise DerbyError(f"There is no model folder {name!r}: check the path.")
        elif not own and name != BUILT_IN and not HUB_ID.fullmatch(name):
            raise DerbyError(
                f"There is no model {name!r}: write a folder or GGUF file starting with '/', '.' "
                "or '~', or a Hub id such as owner/model."
            )
    return tuple(map(_whole, models))
