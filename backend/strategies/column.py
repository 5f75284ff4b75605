"""A column of a race: a strategy with its settings and, if it wants, a model of its own."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.decoding.sampling import COLDEST
from backend.engines.registry import all_precisions, engine_named, engines, of_each
from backend.errors import DerbyError, either, unknown
from backend.grammar.sources import GrammarSource, shipped
from backend.models.files import short_title
from backend.strategies.declaration import Strategy
from backend.strategies.libraries import SERVER
from backend.strategies.registry import strategies
from backend.strategies.settings import (
    OWN,
    ModelChoice,
    Name,
    Setting,
    grammar_choice,
)
from backend.types import ModelSpec
from backend.untrusted import read_as


@dataclass(frozen=True, slots=True)
class OwnModel:
    """What a column runs on instead of the race's target; "" means the race's choice."""

    name: str = ""
    engine: str = ""
    precision: str = ""
    device: str = ""

    def over(self, default: ModelSpec, precisions: Sequence[str] = ()) -> ModelSpec:
        """The model meant. On another engine, what is not named is that engine's usual choice, the
        first of its `precisions`.
        """
        name, engine = self.name or default.name, self.engine or default.engine
        if engine == default.engine:
            precision, device = default.precision, default.device
        else:
            precision, device = (precisions or engine_named(engine).precisions)[0], "CPU"
        return ModelSpec(name, engine, self.precision or precision, self.device or device)

    @property
    def place(self) -> str:
        """Engine, precision and device as the command line takes them behind "@"."""
        return "/".join(filter(None, (self.engine, self.precision, self.device)))


RACE_MODEL = OwnModel()


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is the strategy's. `values` are those of all settings by name, its own first."""

    name: str
    values: tuple[tuple[str, Any], ...]
    model: OwnModel = RACE_MODEL

    @property
    def strategy(self) -> Strategy:
        return strategies()[self.name]

    @property
    def title(self) -> str:
        return self.strategy.title

    @property
    def gist(self) -> str:
        """What it does, in about six words."""
        strategy, grammar = self.strategy, self.grammar
        keeps_to = f'the grammar "{grammar.name}"' if grammar else "no grammar"
        gist = strategy.gist if isinstance(strategy.gist, str) else strategy.gist(self.settings())
        return gist.replace("{grammar}", keeps_to) or strategy.description

    def traits(self) -> dict[str, str]:
        """What is not usual of the column, in words: its model by its short name, where that runs,
        and its settings.
        """
        model, changed = self.model, self.changed()
        traits = {"model": short_title(model.name), "engine": model.engine}
        traits |= {"precision": model.precision, "device": model.device}
        if self.name == SERVER.name:  # in their own words
            traits, changed = {**changed, "at": self.settings()["at"].removeprefix("http://")}, {}
        for name, text in changed.items():
            traits[name] = f"{name}={short_title(text) if name in self.drafts else text}"
        return {name: text for name, text in traits.items() if text}

    def __str__(self) -> str:
        """The column as the command line takes it; `parse_column` reads it back."""
        changed = self.changed()
        head = f"{self.name}@{self.model.place}" if self.model.place else self.name
        if self.name == SERVER.name:
            changed.pop("at", "")
            head = f"@{self.settings()['at']}"
        if self.model.name:
            changed = {"model": self.model.name} | changed
        settings = ",".join(f"{name}={text}" for name, text in changed.items())
        return f"{head}:{settings}" if settings else head

    def changed(self) -> dict[str, str]:
        """The settings that differ from the usual ones, written out.

        What naming another setting brings about is said by that one: k=8, not auto=false.
        """
        fields, usual = settings_of(self.strategy), default_column(self.name).settings()
        values = self.settings()
        changed = {name for name, value in values.items() if value != usual[name]}
        written: set[str] = set()
        for name in changed:
            bring = {n for n, f in fields.items() if (name, values[name]) in f.fixes.items()}
            written |= (bring & changed or bring) or {name}
        # And what naming one would set, but is not so here, has to be said.
        for name in tuple(written):
            written |= {n for n, value in fields[name].fixes.items() if values[n] != value}
        return {name: fields[name].text(values[name]) for name in fields if name in written}

    def settings(self) -> dict[str, Any]:
        """What a user may set, by name, with this column's values."""
        return dict(self.values)

    def with_settings(self, values: Mapping[str, Any]) -> "Column":
        """This column with other settings. Raises DerbyError for an unknown name or a bad value."""
        fields = settings_of(self.strategy)
        for name in values:
            if name not in fields:
                raise DerbyError(
                    f"{self.title} has no setting {name!r:.60}: choose {either(fields)}."
                )
        changed: dict[str, Any] = {}
        for name, value in values.items():
            implied = {k: v for k, v in fields[name].fixes.items() if k not in values}
            changed |= {**implied, name: fields[name].parse(value, self.title)}
        return replace(self, values=tuple({**self.settings(), **changed}.items()))

    def on(self, model: OwnModel) -> "Column":
        """This column on that model. Raises DerbyError for a column that runs elsewhere."""
        if not self.strategy.loads and model != RACE_MODEL:
            place = model.place or model.name
            raise DerbyError(f"{self.title} runs elsewhere: remove {place!r:.60}.")
        if model.name:
            read_as(Name, model.name, f"{self.title}: model")
        return replace(self, model=model)

    @property
    def drafts(self) -> dict[str, str]:
        """The models that settings name, by setting, without copies of the column's own model."""
        fields, copies = settings_of(self.strategy), all_precisions()
        return {
            name: value
            for name, value in self.values
            if isinstance(field := fields[name], ModelChoice)
            and value not in {*field.options, *copies}
        }

    def target(self, default: ModelSpec) -> ModelSpec:
        """The model that the column runs on in a race whose own choice is `default`. A library
        takes over precision and device from an engine like it.
        """
        library = self.strategy.library
        if library is None or library.declaration is None:
            return self.model.over(default)
        precisions = library.declaration.precisions
        if default.engine == library.like and default.precision in precisions:
            default = replace(default, engine=library.name)
        return replace(self.model, engine=library.name).over(default, precisions)

    @property
    def grammar(self) -> GrammarSource | None:
        return self.settings().get("grammar")

    def lossless(self, temperature: float) -> bool:
        """True if it writes what plain decoding does under the same grammar; False: a text of its
        own, drawn from the same distribution.
        """
        return temperature < COLDEST or self.strategy.lossless(self.settings())

    @property
    def automatic(self) -> bool:
        """True if it leaves its sizes to the run: naming one of them would end that."""
        values, fields = self.settings(), settings_of(self.strategy).values()
        return any(values[k] != fixed for field in fields for k, fixed in field.fixes.items())

    @property
    def plain(self) -> bool:
        """True if it decodes token by token with a cache: what it writes, and how fast, is what
        others on its model and grammar are compared with. A server's column is taken for one.
        """
        strategy = self.strategy
        if strategy.library is None:
            return strategy.keeps_cache and not strategy.guesses
        equivalent = strategy.equivalent(self.settings())
        return not (equivalent.lookup or equivalent.draft or equivalent.missing)


#: Traits in which columns of all strategies are compared by their names.
_SHARED = {"model", "engine", "precision", "device", "grammar"}


def names_of(columns: Sequence[Column]) -> list[str]:
    """What to call each column of a line-up: its title, with what differs within the line-up and
    nothing else, and a number where nothing does.
    """
    traits = [(column, column.traits()) for column in columns]

    def differs(column: Column, trait: str, text: str) -> bool:
        # That a column of the strategy Grammar has a grammar is no news.
        shared = trait in _SHARED and not (trait == "grammar" and column.strategy.grammar)
        return any(
            theirs.get(trait) != text
            for other, theirs in traits
            if other.name == column.name or (shared and other.strategy.loads)
        )

    names: list[str] = []
    for column, own in traits:
        text = ", ".join(text for trait, text in own.items() if differs(column, trait, text))
        names.append(f"{column.title} ({text})" if text else column.title)
    return [
        f"{name} #{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def baseline_of(columns: Sequence[Column], without: Collection[int] = ()) -> int | None:
    """The column that the others are compared with, but for those `without`: the first plain one,
    ours before a library's; of these one without a grammar goes first, and then one on the race's
    own model. None: there is none.
    """
    plain = [
        (column.grammar is not None, not column.strategy.ours, column.model != RACE_MODEL, i)
        for i, column in enumerate(columns)
        if column.plain and i not in without
    ]
    return min(plain)[-1] if plain else None


def settings_of(strategy: Strategy) -> dict[str, Setting]:
    """All settings of a strategy's columns by name: its own, then those of every local column."""
    fields: list[Setting] = list(strategy.settings)
    if strategy.ours:
        fields.append(grammar_choice(shipped().get(strategy.grammar)))
    return {field.name: field for field in fields}


def default_column(name: str) -> Column:
    """A strategy's column with its default settings. Raises DerbyError for an unknown name."""
    known = strategies()
    if name not in known:
        raise unknown("column", name, known)
    fields = settings_of(known[name])
    return Column(name, tuple((key, field.default) for key, field in fields.items()))


#: A server's column: its name or address, then settings.
_SERVED = re.compile(r"@([^,]+?)(?::(\w+\s*=.*))?")


def parse_column(text: str, own: GrammarSource | None = None) -> Column:
    """The column that `name[@engine/precision/device][:setting=value,...]` describes, or
    `@server[:setting=value,...]` by a server's name or address.

    Any of the three places may be left out; "model=NAME" among the settings names another model.
    "grammar=own" means `own`, which is also the grammar of a column that has one by default, unless
    it names another. Raises DerbyError for anything else.
    """
    spelled = text.strip()
    if served := _SERVED.fullmatch(spelled):  # a server's column as its strategy's with settings
        spelled = f"{SERVER.name}:at={','.join(filter(None, served.groups()))}"
    head, _, rest = spelled.partition(":")
    name, at, place = head.partition("@")
    column = default_column(name)
    values: dict[str, Any] = {}
    for part in filter(str.strip, rest.split(",")):
        key, sign, value = part.partition("=")
        if not sign:
            raise DerbyError(f"Write settings in column {text!r:.80} as name=value.")
        values[key.strip()] = value.strip()
    model = _place(place, text, column.strategy) if at else RACE_MODEL
    if "model" in values and column.strategy.loads:
        name = read_as(Name, values.pop("model"), f"{column.title}: model")
        model = replace(model, name=name)
    if own and column.grammar:
        values.setdefault("grammar", OWN)
    if values.get("grammar") == OWN:
        if own is None:
            raise DerbyError(f"{text!r:.80} needs a grammar of your own: name its file.")
        values["grammar"] = own
    return column.with_settings(values).on(model)


def _place(text: str, column: str, strategy: Strategy) -> OwnModel:
    """The part after "@": engine, precision, device, each at most once, in this order; no engine
    where a library is one.
    """
    engine = precision = device = ""
    declared = strategy.library.declaration if strategy.library else None
    known = (*engines(), *all_precisions())
    for part in map(str.strip, text.split("/")):
        on = declared or (engine_named(engine) if engine else None)
        precisions = on.precisions if on else all_precisions()
        if part in engines() and not (declared or engine or precision or device):
            engine = part
        elif part in precisions and not (precision or device):
            precision = part
        elif not (device or part in known) and part.isupper() and part.replace(".", "").isalnum():
            device = part  # of some machine, such as CPU or GPU.1
        else:
            there = f"{on.name}: {on.places}." if on else of_each(lambda engine: engine.places)
            raise DerbyError(
                f"{part!r:.60} in column {column!r:.80} is unknown there: write "
                f"engine/precision/device, of {there}"
            )
    return OwnModel("", engine, precision, device)
