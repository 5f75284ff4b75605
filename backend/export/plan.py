"""What every library's snippet is written from, and how untrusted text is written into code."""

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from backend.decoding.sampling import COLDEST
from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.heads.file import HEAD_SUFFIX, head_for
from backend.models.files import BUILT_IN
from backend.strategies.registry import CALL, Strategy
from backend.strategies.settings import (
    HYBRID,
    PRECISIONS,
    TRAINED,
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
)
from backend.types import ModelSpec, Request

#: The Hub's name of the built-in model.
BUILT_IN_ON_THE_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"

#: What is lost of a hybrid draft whose model is a copy of the target.
BOTH = "Decode Derby looks the text up first and asks the copy elsewhere: no library does both."

_ABROAD = re.compile(r"%import\s+\.")

Language = Literal["python", "bash"]
Kind = Literal["plain", "draft", "lookup", "lookahead"]


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does. `code` is "" where it has none; `note` is one or
    two sentences on what differs, or on what to use instead.
    """

    library: str
    language: Language
    code: str
    note: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What a column's run settled on; 0 stands for the strategy's own setting."""

    k: int = 0
    window: int = 0
    level: int = 0
    guesses: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model as libraries name it, and the precision of its weights."""

    name: str
    precision: str

    @property
    def quantised(self) -> bool:
        return self.precision in ("int8", "int4")

    @property
    def local(self) -> bool:
        return self.name.startswith(".") or Path(self.name).is_absolute()


@dataclass(frozen=True, slots=True)
class Plan:
    """A column's facts, settled. `shape` is a lookahead's W, N and G; `notes` hold everywhere."""

    request: Request
    model: Model
    device: str
    kind: Kind = "plain"
    k: int = 0
    ngram: int = 0
    draft: Model | None = None
    shape: str = ""
    cache: bool = True
    reuse: bool = False  # beginnings of earlier texts may be used
    limit: int = 0
    grammar: GrammarSource | None = None
    notes: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.request.sampling.temperature < COLDEST

    @property
    def imports(self) -> bool:
        """True if the grammar is not whole without other files."""
        return self.grammar is not None and bool(_ABROAD.search(self.grammar.text))

    @property
    def constraint(self) -> str:
        """The grammar's text without what our own reader would take off it."""
        if self.grammar is None:
            return ""
        return self.grammar.text.rstrip("\n") if self.grammar.kind == "regex" else self.grammar.text


def plan(strategy: Strategy, request: Request, target: ModelSpec, settings: Settings) -> Plan:
    """What the snippets of a column are written from. Raises DerbyError for an impossible name."""
    notes: list[str] = []
    if strategy.restart or strategy.single:
        notes.append("A program's slots are Decode Derby's own: this writes one text.")
    if request.sampling.temperature >= COLDEST:
        notes.append("At this temperature the library draws other tokens with the same seed.")
    plain = Plan(
        request=request,
        model=Model(_published(target.name), target.precision),
        device=target.device if target.engine == "openvino" else "CPU",
        cache=strategy.cache,
        reuse=strategy.scope != CALL,
        limit=min(request.max_new_tokens, strategy.limit or request.max_new_tokens),
        grammar=strategy.grammar,
        notes=tuple(notes),
    )
    return _drafting(plain, strategy, target, settings)


def _trained(draft: str, target: ModelSpec) -> bool:
    if draft == HYBRID:
        return head_for(target) is not None
    return draft == TRAINED or draft.endswith(HEAD_SUFFIX)


def _drafting(plain: Plan, strategy: Strategy, target: ModelSpec, settings: Settings) -> Plan:
    """The plan with what the strategy drafts, or what comes nearest to it."""
    match strategy.drafting:
        case DraftModelDrafting(k=k, draft=draft) if _trained(draft, target):
            lost = (
                f"The trained head{' beside prompt lookup' * (draft == HYBRID)} is Decode Derby's "
                "own and no library loads it: this is prompt lookup alone, and an int4 copy as "
                "the draft comes nearer."
            )
            ngram = LookupDrafting().ngram
            notes = (lost, *plain.notes)
            return replace(plain, kind="lookup", k=settings.k or k, ngram=ngram, notes=notes)
        case DraftModelDrafting(k=k, draft=draft):
            if draft == HYBRID:  # lookup, and where nothing was trained the int4 copy
                plain = replace(plain, notes=(BOTH, *plain.notes))
            draft = "int4" if draft == HYBRID else draft
            copied = replace(plain.model, precision=draft)
            made = copied if draft in PRECISIONS else replace(plain.model, name=_published(draft))
            return replace(plain, kind="draft", k=settings.k or k, draft=made)
        case LookupDrafting(k=k, ngram=ngram):
            return replace(plain, kind="lookup", k=settings.k or k, ngram=ngram)
        case LookaheadDrafting(window=window, level=level, guesses=guesses):
            level = settings.level or level
            shape = f"W={settings.window or window}, N={level}, G={settings.guesses or guesses}"
            return replace(plain, kind="lookahead", k=level - 1, shape=shape)
        case _:
            return plain


def _published(name: str) -> str:
    """A model's name where Decode Derby is not: no library expands "~" in it."""
    if name == BUILT_IN:
        return BUILT_IN_ON_THE_HUB
    try:
        possible = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise DerbyError(f"The model name {name!r} has characters that no file's can: correct it.")
    # Path's own would take "./" off, and fail for a user that this machine does not have.
    return os.path.expanduser(name)  # noqa: PTH111


def nothing(library: str, language: Language, note: str) -> Snippet:
    return Snippet(library, language, "", note)


def code(lines: Iterable[str]) -> str:
    """Lines of code as one text; "" leaves a line empty."""
    return "\n".join(lines) + "\n"


def python(text: str) -> str:
    """A Python literal of `text`, a line of code for each of its lines."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return repr(text)
    return "\n".join(["(", *(f"    {line!r}" for line in lines), ")"])


def call(target: str, function: str, arguments: Iterable[str]) -> list[str]:
    """Lines of `target = function(arguments)`, an argument a line."""
    return [f"{target} = {function}(", *(f"    {argument}," for argument in arguments), ")"]


def shell(text: str) -> str:
    """One bash word. What a terminal or an eye could take for something else is written in hex."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"
