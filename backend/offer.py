"""What the operator of a page offers: engines with their precisions and devices, models by their
titles, servers by their names, and limits. A title never names a place on this machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from backend.engines.engine import EngineDeclaration
from backend.engines.registry import engine_named
from backend.errors import DerbyError, unknown
from backend.libraries.server import is_address
from backend.limits import PRIVATE, Limits
from backend.models.files import BUILT_IN, HUB_ID, SUFFIX, is_gguf, is_path, path_of
from backend.strategies.column import Column, settings_of
from backend.strategies.settings import CodeChoice, ServerChoice
from backend.types import ModelSpec


@dataclass(frozen=True, slots=True)
class Offer:
    """The first ones of engines, their precisions and their devices are the defaults. `models` are
    titles, the first of which is the default, `servers` names of servers.
    """

    engines: tuple[EngineDeclaration, ...]
    models: tuple[str, ...]
    limits: Limits = PRIVATE
    servers: tuple[str, ...] = ()

    @property
    def unlisted(self) -> bool:
        """Whether visitors may name models of the Hub and servers that the operator does not list,
        and give libraries grammars of their own.
        """
        return self.limits.hub

    def options(self, what: str, engine: str = "") -> tuple[str, ...]:
        """The engines, or the "precision" or "device" of an engine; "": of any."""
        if what == "engine":
            return tuple(each.name for each in self.engines)
        chosen = [each for each in self.engines if engine in ("", each.name)]
        names = (each.precisions if what == "precision" else each.devices() for each in chosen)
        return tuple(dict.fromkeys(chain.from_iterable(names)))

    def require_model(self, name: str) -> str:
        """The name. Raises DerbyError unless it is a title, or a Hub id where those are allowed."""
        if name in self.models or (self.unlisted and HUB_ID.fullmatch(name)):
            return name
        others = ["a Hub id such as owner/model"] if self.unlisted else []
        raise unknown("model", name, [*self.models, *others])

    def require_place(self, engine: str, precision: str, device: str) -> None:
        """Raise DerbyError unless these are offered. "" stands for a choice made elsewhere."""
        for what, name in (("engine", engine), ("precision", precision), ("device", device)):
            offered = self.options(what, engine)
            if name and name not in offered:
                raise unknown(what, name, offered)

    def require_column(self, column: Column, target: ModelSpec) -> None:
        """Raise DerbyError unless visitors may race the column, in a race on `target`."""
        for name in filter(None, (column.model.name, *column.drafts.values())):
            self.require_model(name)
        if column.strategy.loads:
            spec, library = column.target(target), column.strategy.library
            declared = library.declaration if library else None  # whatever engines are offered
            there = replace(self, engines=(declared,)) if declared else self
            there.require_place(spec.engine, spec.precision, spec.device)
        for name, field in settings_of(column.strategy).items():
            value = column.settings()[name]
            if isinstance(field, CodeChoice) and value not in field.options:
                raise unknown("code", value, field.options)
            if not isinstance(field, ServerChoice) or value in self.servers:
                continue
            if not (self.unlisted and is_address(value)):
                raise unknown("server", value, [*self.servers, "another column"])


def offer_of(
    names: Sequence[str],
    models: Iterable[str] = (BUILT_IN,),
    limits: Limits = PRIVATE,
    servers: Iterable[str] = (),
) -> Offer:
    """What these engines offer on this machine: models by their titles, and those that the engines
    bring themselves. Raises DerbyError for an unknown engine.
    """
    engines = tuple(map(engine_named, names))
    titles = tuple(models)
    # The default model must be one that the default engine knows.
    ordered = dict.fromkeys(name for engine in engines for name in engine.models or titles)
    every = tuple(ordered | dict.fromkeys(titles))
    return Offer(engines, every, limits, tuple(servers))


def titled(models: Sequence[str], engines: Sequence[str]) -> Mapping[str, str]:
    """A title for each of an operator's models, and what it stands for: a Hub id, or the absolute
    path of a folder or GGUF file, whose own name is the title, with a number where that is taken.
    Raises DerbyError for any other; an engine that brings its own models also accepts its own
    names.
    """
    own = any(engine_named(engine).models for engine in engines)
    titles: dict[str, str] = {}
    for name in models:
        title, place = name, name
        if is_path(name):
            path = path_of(name)
            if not path.is_dir() and not (is_gguf(path.name) and path.is_file()):
                raise DerbyError(f"There is no model folder {name!r}: check the path.")
            title, place = path.name, str(path)
        elif not own and name != BUILT_IN and not HUB_ID.fullmatch(name):
            raise DerbyError(
                f"There is no model {name!r}: write a folder or GGUF file starting with '/', '.' "
                "or '~', or a Hub id such as owner/model."
            )
        number, end = 2, -len(SUFFIX) if is_gguf(title) else len(title)
        stem, suffix = title[:end], title[end:]
        while {BUILT_IN: BUILT_IN, **titles}.get(title, place) != place:
            title, number = f"{stem}-{number}{suffix}", number + 1
        titles[title] = place
    return titles
