"""The kinds of settings that a strategy may declare, each of which checks and writes its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from annotated_types import Ge, Le, Len

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.kvcache.sources import (
    EARLIER_ANSWERS,
    THIS_ANSWER,
    CacheSource,
    SnapshotFile,
    is_snapshot_id,
)
from backend.untrusted import read_as

#: A grammar setting without a grammar, and with the user's own.
NO_GRAMMAR, OWN = "none", "own"

#: Where a column's cache may begin, in the command line's words. A snapshot's id stands for that
#: file.
CACHE_WORDS: Mapping[str, CacheSource] = {"call": THIS_ANSWER, "session": EARLIER_ANSWERS}

#: The name of a model, a file or an address.
Name = Annotated[str, Len(1, 200)]


class Setting(Protocol):
    """One value that a user may set. `fixes` are other settings that naming this one sets, unless
    they are named too.
    """

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def help(self) -> str: ...

    @property
    def default(self) -> Any: ...

    @property
    def fixes(self) -> Mapping[str, Any]: ...

    def parse(self, value: Any, title: str) -> Any:
        """`value`, typed or as text, as this setting keeps it. `title` is whose setting it is.

        Raises DerbyError for anything that it cannot be.
        """
        ...

    def text(self, value: Any) -> str:
        """A kept value as the command line takes it."""
        ...


@dataclass(frozen=True, slots=True)
class _Declared:
    """What every setting declares. `kind` is the type of its values, as pydantic reads them."""

    name: str
    label: str
    help: str
    default: Any
    fixes: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)

    @property
    def kind(self) -> Any:
        return Name

    def parse(self, value: Any, title: str) -> Any:
        return read_as(self.kind, value, f"{title}: {self.label}")

    def text(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class WholeNumber(_Declared):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    @property
    def kind(self) -> Any:
        return Annotated[int, Ge(self.low), Le(self.high)]


@dataclass(frozen=True, slots=True)
class Flag(_Declared):
    """On or off."""

    @property
    def kind(self) -> Any:
        return bool

    def text(self, value: bool) -> str:  # noqa: FBT001 (the value itself)
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Choice(_Declared):
    """One of `options`: the value as it is written, and the label to show for it. `aliases` are
    other words for some of them.
    """

    options: tuple[tuple[str, str], ...]
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def kind(self) -> Any:
        return Literal[tuple(value for value, _ in self.options)]

    def parse(self, value: Any, title: str) -> str:
        return _Declared.parse(self, self.aliases.get(str(value).lower(), value), title)


@dataclass(frozen=True, slots=True)
class ModelChoice(_Declared):
    """One of `options`, or the name of a model."""

    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TextLine(_Declared):
    """A line of text, such as an address."""


@dataclass(frozen=True, slots=True)
class ServerChoice(_Declared):
    """A server by its name among those that are offered, or by its address."""


@dataclass(frozen=True, slots=True)
class GrammarChoice:
    """A shipped grammar by its name, a source, or none."""

    default: GrammarSource | None = None
    name: str = "grammar"
    label: str = "Grammar"
    help: str = "What the text must be; yours is in its own tab."
    fixes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def parse(self, value: Any, title: str) -> GrammarSource | None:
        if value is None or isinstance(value, GrammarSource):
            return value
        if value == NO_GRAMMAR:
            return None
        known = shipped()
        if not isinstance(value, str) or value not in known:
            raise DerbyError(
                f"There is no grammar {value!r:.60}; choose {NO_GRAMMAR} or a shipped one: "
                f"{', '.join(known)}."
            )
        return known[value]

    def text(self, value: GrammarSource | None) -> str:
        if value is None:
            return NO_GRAMMAR
        return value.name if shipped().get(value.name) == value else OWN


#: What a column does about parts of its JSON Schema that the grammar engine cannot hold.
RELAX = Flag(
    "relax",
    "Relax the schema",
    "What a JSON Schema asks beyond any grammar (uniqueItems, if, not, some formats) is left out, "
    "and checked once the text has ended; off: it is refused.",
    default=False,
)


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """Which caches a column may begin from."""

    default: CacheSource = THIS_ANSWER
    name: str = "cache"
    label: str = "Cache"
    help: str = "Whose keys and values to begin from; or a snapshot's id."
    options: tuple[tuple[str, str], ...] = (
        ("call", "this answer"),
        ("session", "my earlier answers too"),
    )
    fixes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def parse(self, value: Any, title: str) -> CacheSource:
        if isinstance(value, CacheSource):
            return value
        if isinstance(value, str) and value in CACHE_WORDS:
            return CACHE_WORDS[value]
        if is_snapshot_id(value):
            return SnapshotFile(value)
        raise DerbyError(
            f"{title}: cache is {value!r:.60}; it must be call (this answer alone), session (your "
            "earlier answers too) or a snapshot's id of 16 hexadecimal digits."
        )

    def text(self, value: CacheSource) -> str:
        if isinstance(value, SnapshotFile):
            return value.id
        return next(word for word, source in CACHE_WORDS.items() if source == value)
