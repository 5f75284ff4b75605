"""The kinds of settings that a strategy may declare, each of which checks and writes its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Len
from pydantic import AfterValidator

from backend.errors import check_range, either, unknown
from backend.grammar.sources import GrammarSource, shipped
from backend.untrusted import read_as

#: A grammar setting without a grammar, and with the user's own.
NO_GRAMMAR, OWN = "none", "own"

#: What `k` is, whatever guesses.
K_HELP = "Tokens guessed per pass, at most."

#: What naming a size sets: who names one wants that size.
NAMED_SIZE = {"auto": False}


def _without_comma(name: str) -> str:
    if "," in name:
        raise ValueError(f"{name!r:.60} has a comma, which separates settings: rename it")
    return name


#: The name of a model, a file or an address.
Name = Annotated[str, Len(1, 200), AfterValidator(_without_comma)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that a user may set, a line of text. `fixes` are other settings that naming this
    one sets, unless they are named too.
    """

    name: str
    label: str
    help: str
    default: Any
    fixes: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)

    kind: ClassVar[Any] = Name  # the type of its values, as pydantic reads them

    def parse(self, value: Any, title: str) -> Any:
        """`value`, typed or as text, as this setting keeps it. `title` is whose setting it is.

        Raises DerbyError for anything that it cannot be.
        """
        return read_as(self.kind, value, f"{title}: {self.label}")

    def text(self, value: Any) -> str:
        """A kept value as the command line takes it."""
        return str(value)


@dataclass(frozen=True, slots=True)
class WholeNumber(Setting):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    kind = int

    def parse(self, value: Any, title: str) -> int:
        number: int = Setting.parse(self, value, title)
        check_range(f"{title}: {self.label}", number, self.low, self.high)
        return number


@dataclass(frozen=True, slots=True)
class Flag(Setting):
    """On or off."""

    kind = bool

    def text(self, value: bool) -> str:  # noqa: FBT001 (the value itself)
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Choice(Setting):
    """One of `options`."""

    options: tuple[str, ...]

    def parse(self, value: Any, title: str) -> str:
        return read_as(Literal[self.options], value, f"{title}: {self.label}")


@dataclass(frozen=True, slots=True)
class ModelChoice(Setting):
    """One of `options`, or the name of a model."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerChoice(Setting):
    """A server by its name among those that are offered, or by its address."""


@dataclass(frozen=True, slots=True)
class CodeChoice(Setting):
    """One of `options`, or a folder whose code runs: no visitor names that."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrammarChoice(Setting):
    """A shipped grammar by its name, a source, or none."""

    def parse(self, value: Any, title: str) -> GrammarSource | None:
        if value is None or isinstance(value, GrammarSource):
            return value
        if value == NO_GRAMMAR:
            return None
        known = shipped()
        if not isinstance(value, str) or value not in known:
            raise unknown("grammar", value, (NO_GRAMMAR, *known))
        return known[value]

    def text(self, value: GrammarSource | None) -> str:
        if value is None:
            return NO_GRAMMAR
        return value.name if shipped().get(value.name) == value else OWN


def values_of(setting: Setting) -> str:
    """What a setting may be, in words; "" where its help says it."""
    match setting:
        case WholeNumber(low=low, high=high):
            return f"{low} to {high}"
        case Choice(options=options) | CodeChoice(options=options):
            return either(options)
        case ModelChoice(options=options):
            return either([*options, "a model"])
        case GrammarChoice():
            return either([NO_GRAMMAR, OWN, *shipped()])
        case _:
            return ""


#: What prompt lookup looks up, whoever does it.
NGRAM = WholeNumber("ngram", "n-gram", "Tokens of the longest ending looked up.", 3, 1, 8)

#: Whether a strategy chooses its sizes itself.
AUTO = Flag("auto", "Auto", "Choose the sizes that are fastest here.", default=True)


def grammar_choice(default: GrammarSource | None) -> GrammarChoice:
    """A column's setting, with the grammar that it usually has."""
    text = "The grammar that the text follows."
    return GrammarChoice("grammar", "Grammar", text, default)
