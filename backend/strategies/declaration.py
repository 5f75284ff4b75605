"""What a strategy declares: everything that the rest of the program knows of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.costs import Costs
from backend.decoding.sampling import Sampler
from backend.decoding.seams import Drafter
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength
from backend.engines.draft import DraftNetwork, OpenNetwork
from backend.engines.engine import Engine
from backend.errors import DerbyError
from backend.libraries.library import Library
from backend.strategies.settings import NGRAM, Setting
from backend.types import ModelSpec

#: The values of a column's settings by name.
Values = Mapping[str, Any]

#: What every local column has, beside its strategy's own settings.
TAKEN = {"grammar", "model", "engine", "precision", "device"}

#: What a column's drafter needs loaded: an EAGLE-3 draft's folder, a model, what opens a network
#: that the strategy has loaded itself, or nothing. A model that cannot be had fails the column, but
#: for a copy of the target (a model of its name): without that the drafter is built all the same.
Weights = Path | ModelSpec | OpenNetwork | None


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Prompt lookup of `lookup` tokens behind endings of up to `ngram`, `k` guessed by `draft`, or
    both; neither: plain decoding. `draft`: a model, an EAGLE-3 draft ("trained": the target's own),
    or a precision of the target's copy. `note`: why it stands for something else.

    `missing` names what libraries lack; `only` has those that do not, by their titles, and the
    settings by which their columns do it (vLLM's: speculative_config).
    """

    lookup: int = 0
    ngram: int = NGRAM.default
    draft: str = ""
    k: int = 0
    note: str = ""
    missing: str = ""
    only: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """What a column's drafter may be made of: the values of its settings, the target, what the
    target's passes cost, and the request's sampler.

    `draft` is the network that `Strategy.weights` asked for, open and empty; the drafter
    closes it. None: it asked for none, or for a copy of the target that cannot be had.
    """

    values: Values
    target: Engine
    costs: Costs
    sampler: Sampler
    draft: DraftNetwork | None = None

    def draft_length(self) -> DraftLength:
        """How many tokens a round drafts, by the settings "auto" and "k"."""
        k, branches = self.values["k"], self.target.guesses == "trees"
        if not self.values["auto"]:
            return DraftLength(k)
        seconds = 0.0 if self.draft is None else self.draft.seconds
        return AdaptiveDraftLength(self.costs, seconds, k, branches=branches)


def build_nothing(_inputs: DrafterInputs) -> Drafter:
    return Drafter()


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to decode."""

    name: str
    title: str
    description: str
    settings: tuple[Setting, ...] = ()  # its own; `Column` adds those that every column has
    #: Makes a column's drafter. Raises DerbyError for what the target cannot do.
    build: Callable[[DrafterInputs], Drafter] = build_nothing
    weights: Callable[[Values, Engine], Weights] = lambda _values, _target: None  # that build needs
    equivalent: Callable[[Values], Equivalent] = lambda _values: Equivalent()  # in libraries
    #: Whether it draws the plain one's text, or only from the same distribution.
    lossless: Callable[[Values], bool] = lambda _values: True
    verified: tuple[str, ...] = ("",)  # settings that `verify` checks
    candidates: tuple[str, ...] = ()  # settings that `tune` tries
    keeps_cache: bool = True  # False: it computes the whole text again, up to the photo finish
    grammar: str = ""  # the default of its grammar setting
    library: Library | None = None  # what decodes in place of our loop
    #: What it does in about six words, with "{grammar}" for its grammar; "": the description.
    gist: str | Callable[[Values], str] = ""

    def __post_init__(self) -> None:
        """Raise ValueError for what could only be a slip of whoever declares it."""
        names = [setting.name for setting in self.settings]
        if not (self.name.isidentifier() and self.title.strip() and self.description.strip()):
            raise ValueError(f"strategy {self.name!r}: no name, title or text")
        if len(set(names)) < len(names) or (self.ours and set(names) & TAKEN):
            raise ValueError(f"strategy {self.name!r}: names {names}")
        for setting in self.settings:
            try:
                setting.parse(setting.default, setting.name)
            except DerbyError as error:
                raise ValueError(f"strategy {self.name!r}: {error}") from error
            if set(setting.fixes) - set(names):
                raise ValueError(f"strategy {self.name!r}: {setting.name} fixes {setting.fixes}")

    @property
    def ours(self) -> bool:
        """True if our own loop decodes."""
        return self.library is None

    @property
    def loads(self) -> bool:
        """True if its columns have a model that is loaded here."""
        return self.library is None or self.library.declaration is not None

    @property
    def alone(self) -> bool:
        """True if its columns cannot be held, and so run while no other does."""
        return self.library is not None and not self.library.takes_turns

    @property
    def guesses(self) -> bool:
        """True if it proposes tokens at all."""
        return self.build is not build_nothing
