"""What every library's snippet is written from, and how untrusted text is written into code."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from backend.decoding.drafter import Decision
from backend.decoding.sampling import COLDEST
from backend.engines.llamacpp.abilities import AS_IT_IS
from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.models.files import BUILT_IN, BUILT_IN_TITLE
from backend.strategies.column import Column
from backend.strategies.equivalents import (
    NOTHING_DRAFTED,
    Draft,
    Equivalent,
    Lookup,
    Nothing,
    Plain,
)
from backend.strategies.settings import FRESH
from backend.types import ModelSpec, Request

#: The Hub's name of the built-in model.
BUILT_IN_ON_THE_HUB = f"HuggingFaceTB/{BUILT_IN_TITLE}"

#: torch's names of the precisions.
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: How a grammar names other files, without which it is not whole.
_ABROAD = re.compile(r"%import\s+\.")

Language = Literal["python", "bash"]
Kind = Literal["plain", "draft", "lookup"]


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
class Model:
    """A model as libraries name it, and the precision of its weights."""

    name: str
    precision: str

    @property
    def quantised(self) -> bool:
        return self.precision in ("int8", "int4")

    @property
    def packed(self) -> bool:
        """Whether it is a GGUF file, run as it is."""
        return self.precision == AS_IT_IS

    @property
    def local(self) -> bool:
        return self.name.startswith(".") or Path(self.name).is_absolute()


@dataclass(frozen=True, slots=True)
class Plan:
    """A column's facts, settled. `lacking` is what few libraries have, or none, "" if all is there:
    the rest is then the nearest to it; `trained`: the draft that it needs. `notes` hold everywhere.
    `device`: of OpenVINO; `placed`: the accelerator that torch ran on, as it names it; "": none.
    `pays_up_to` so many requests at once, None if that is unknown or no bound was found;
    `schedule`: the guesses that are best from so many requests to so many. `only`: the part of what
    the column does that the code does; "": all of it.
    """

    request: Request
    model: Model
    device: str
    placed: str = ""
    kind: Kind = "plain"
    k: int = 0
    ngram: int = 0
    draft: Model | None = None
    lacking: str = ""
    trained: str = ""
    cache: bool = True
    reuse: bool = False  # beginnings of earlier texts may be used
    limit: int = 0
    grammar: GrammarSource | None = None
    notes: tuple[str, ...] = ()
    pays_up_to: int | None = None
    schedule: tuple[tuple[int, int, int], ...] = ()
    only: str = ""

    @property
    def greedy(self) -> bool:
        return self.request.sampling.temperature < COLDEST

    @property
    def constraint(self) -> str:
        """The grammar's text without what our own reader would take off it."""
        if self.grammar is None:
            return ""
        return (
            self.grammar.text.rstrip("\r\n") if self.grammar.kind == "regex" else self.grammar.text
        )


def plan(column: Column, request: Request, default: ModelSpec, decision: Decision) -> Plan:
    """What the snippets of a column are written from: `decision` is what its run put in
    force. Raises DerbyError for an impossible name.
    """
    target, strategy = column.target(default), column.strategy
    if strategy.lane is not None:
        raise DerbyError(f"{column.label} already runs on a server: choose another column.")
    notes: list[str] = []
    if strategy.restart or strategy.single:
        notes.append("Other libraries have no slots: this code writes one text.")
    if request.sampling.temperature >= COLDEST:
        notes.append("At this temperature the library draws different tokens with the same seed.")
    on_torch, model = target.engine == "torch", _model(target)
    if model.precision != target.precision and not model.packed:
        notes.append(
            "No library runs the published weights exactly: this code quantises them again, so "
            "text and speed may differ."
        )
    plain = Plan(
        request=request,
        model=model,
        device=target.device if target.engine == "openvino" else "CPU",
        placed=target.device.lower() if on_torch and target.device != "CPU" else "",
        cache=strategy.keeps_cache,
        reuse=column.cache != FRESH,
        limit=min(request.max_new_tokens, column.limit or request.max_new_tokens),
        grammar=column.grammar,
        notes=tuple(notes),
    )
    if decision.plain:
        return _with(plain, NOTHING_DRAFTED)
    equivalent = strategy.equivalent({**column.settings(), **decision.settings}, target)
    return _with(plain, equivalent)


def _with(plain: Plan, equivalent: Equivalent) -> Plan:
    """The plan with what the column amounts to, or with what comes nearest to it."""
    match equivalent:
        case Nothing(lacking, instead, draft):
            trained = _published(draft) if draft else ""
            return replace(_with(plain, instead), lacking=lacking, trained=trained)
        case Draft(k, draft, note):
            only = f"the {draft.precision} copy" if note else ""
            plan = replace(plain, kind="draft", k=k, draft=_model(draft), only=only)
        case Lookup(k, ngram, note):
            only = "prompt lookup" if note else ""
            plan = replace(plain, kind="lookup", k=k, ngram=ngram, only=only)
        case Plain(note):
            plan = plain
    return replace(plan, notes=(note, *plan.notes)) if note else plan


def _model(spec: ModelSpec) -> Model:
    """The model as libraries know it: weights that run by published codes, in as many bits."""
    packed = spec.precision == AS_IT_IS
    if spec.name == BUILT_IN and packed:
        return Model(BUILT_IN, spec.precision)
    return Model(_published(spec.name), spec.precision.removesuffix("-exact"))


def _published(name: str) -> str:
    """A model's name where Decode Derby is not: no library expands "~" in it."""
    if name == BUILT_IN:
        return BUILT_IN_ON_THE_HUB
    try:
        possible = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise DerbyError(
            f"The model name {name!r} has characters that no file name can have: correct it."
        )
    # Path's own would take "./" off, and fail for a user that this machine does not have.
    return os.path.expanduser(name)  # noqa: PTH111


@dataclass(frozen=True, slots=True)
class Library:
    """How one library does what a plan says.

    `lookup`: how its setting for the length of prompt lookup begins. `lines`: the code, "" for an
    empty line. `notes`: sentences on it. `refused`: by kind, the grammars that it does not take: a
    sentence with {} for the name, and what to use instead. `caches`: it cannot do without a cache.
    `imports`: it reads the files that a grammar imports. `has`: what other libraries lack.
    `near`: by what it lacks, a sentence on what is like it there. `packed`: it runs GGUF files as
    they are.
    """

    name: str
    language: Language
    lookup: str
    lines: Callable[[Plan], Iterable[str]]
    notes: Callable[[Plan], Iterable[str]] = lambda _: ()
    refused: Mapping[str, str] = field(default_factory=dict)
    caches: bool = True
    imports: bool = True
    has: Set[str] = frozenset()
    near: Mapping[str, str] = field(default_factory=dict)
    packed: bool = False

    def write(self, plan: Plan) -> Snippet:
        """A column's snippet. Raises DerbyError for what cannot be written at all."""
        if missing := self._missing(plan):
            return Snippet(self.name, self.language, "", missing)
        code = "\n".join(self.lines(plan)) + "\n"
        return Snippet(self.name, self.language, code, " ".join([*plan.notes, *self.notes(plan)]))

    def _missing(self, plan: Plan) -> str:
        if plan.model.packed and not self.packed:
            return f"{self.name} computes GGUF files differently or not at all: use llama.cpp."
        if plan.lacking and plan.lacking not in self.has:
            setting = f"{self.lookup}{plan.k}"
            instead = f"{self.name} has no {plan.lacking}: use its prompt lookup with {setting}."
            return f"{instead} {self.near.get(plan.lacking, '')}".rstrip()
        if self.caches and not plan.cache:
            return f"{self.name} cannot write a text without its cache: use KV reuse."
        if plan.grammar is None:
            return ""
        name = repr(plan.grammar.name)
        if _ABROAD.search(plan.grammar.text) and not self.imports:
            return (
                f"The grammar {name} imports other files, which {self.name} cannot: copy their "
                "rules into it."
            )
        return self.refused.get(plan.grammar.kind, "").format(name)


def python(text: str) -> str:
    """A Python literal of `text`, a line of code for each of its lines."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return repr(text)
    return "\n".join(["(", *(f"    {line!r}" for line in lines), ")"])


def sampled(plan: Plan, limit: str) -> list[str]:
    """How tokens are chosen and where a text ends, as arguments that vLLM and SGLang name alike,
    but for the most tokens, which they call `limit`.
    """
    sampling = plan.request.sampling
    arguments = [f"{limit}={plan.limit}"]
    if plan.greedy:
        arguments.append("temperature=0.0")
    else:
        # -1: all. SGLang refuses 0.
        arguments += [f"temperature={sampling.temperature}", f"top_k={sampling.top_k or -1}"]
        arguments.append(f"top_p={sampling.top_p}")
    if plan.request.stop:
        arguments.append(f"stop={list(plan.request.stop)!r}")
    return arguments


def call(target: str, function: str, arguments: Iterable[str]) -> list[str]:
    """Lines of `target = function(arguments)`, an argument a line."""
    return [f"{target} = {function}(", *(f"    {argument}," for argument in arguments), ")"]


def shell(text: str) -> str:
    """One bash word. What a terminal or an eye could take for something else is written in hex."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"
