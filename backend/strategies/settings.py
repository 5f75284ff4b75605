"""What a column drafts with: the settings of each kind, with range, default and line of help."""

from dataclasses import dataclass, field, replace
from typing import Any

from backend.engines.registry import copy_spec
from backend.types import ModelSpec

PRECISIONS = ("fp32", "int8", "int4")

#: Drafts that are no model's name: the trained head, and the same behind prompt lookup.
TRAINED, HYBRID = "trained", "hybrid"


def setting(default: Any, label: str, text: str, low: float = 0, high: float = 0) -> Any:
    """A dataclass field that users may set; numbers within low..high."""
    return field(default=default, metadata={"label": label, "help": text, "low": low, "high": high})


def auto(text: str) -> Any:
    return setting(default=True, label="Auto", text=text)


@dataclass(frozen=True, slots=True)
class NoDrafting:
    """Nothing is proposed."""


@dataclass(frozen=True, slots=True)
class DraftModelDrafting:
    auto: bool = auto("Draft only as much as pays here, at most K.")
    k: int = setting(
        8, "K", "Tokens drafted a round; more pay only while most are accepted.", 1, 16
    )
    draft: str = setting(
        HYBRID,
        "Draft",
        "hybrid: prompt lookup, else the trained draft; trained: that alone; int4 or int8: that "
        "copy of the target; or a model with its tokenizer.",
    )


@dataclass(frozen=True, slots=True)
class LookupDrafting:
    auto: bool = auto("Copy only as much as pays here, at most K.")
    k: int = setting(8, "K", "Tokens copied after a match.", 1, 32)
    ngram: int = setting(
        3, "n-gram", "Longest ending that is looked up; shorter ones follow.", 1, 8
    )
    branches: int = setting(2, "Branches", "Occurrences whose continuations are tried.", 1, 4)


@dataclass(frozen=True, slots=True)
class LookaheadDrafting:
    auto: bool = auto("Choose W, N and G by what passes cost here, or none at all.")
    window: int = setting(
        5, "Window W", "Columns of the lookahead branch: guesses made at once.", 2, 32
    )
    level: int = setting(3, "Level N", "Length of the n-grams: N - 1 tokens are guessed.", 2, 8)
    guesses: int = setting(5, "Guess set G", "n-grams verified in each forward pass.", 1, 32)
    seeded: bool = setting(
        default=True,
        label="Seed the pool",
        text="Also collect n-grams of the prompt and the output.",
    )


Drafting = NoDrafting | DraftModelDrafting | LookupDrafting | LookaheadDrafting


def draft_spec(target: ModelSpec, draft: str) -> ModelSpec:
    """Which model drafts: a precision means that copy of the target.

    Where no head was trained, its place is the int4 copy's.
    """
    precision = "int4" if draft in (TRAINED, HYBRID) else draft
    if precision not in PRECISIONS:
        return replace(target, name=draft)
    return copy_spec(target, precision)
