"""What the code for every library is written from, and how untrusted text is written into code."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from backend.decoding.drafter import Decision
from backend.decoding.sampling import COLDEST
from backend.errors import DerbyError
from backend.grammar.compile import composed
from backend.grammar.sources import GrammarSource
from backend.libraries.llamacpp import GGUF
from backend.models.files import BUILT_IN, BUILT_IN_TITLE
from backend.strategies.column import Column
from backend.strategies.equivalents import NOTHING_DRAFTED, Draft, Equivalent, Lookup, Nothing
from backend.strategies.settings import FRESH
from backend.types import ModelSpec, Request

#: The Hub's name of the built-in model.
BUILT_IN_ON_THE_HUB = f"HuggingFaceTB/{BUILT_IN_TITLE}"

#: torch's names of the precisions.
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Model:
    """A model as libraries name it, and the precision of its weights."""

    name: str
    precision: str

    @property
    def quantised(self) -> bool:
        return self.precision in ("int8", "int4")

    @property
    def gguf(self) -> bool:
        """Whether it is a GGUF file, run as it is."""
        return self.precision == GGUF

    @property
    def local(self) -> bool:
        return self.name.startswith(".") or Path(self.name).is_absolute()


@dataclass(frozen=True, slots=True)
class Plan:
    """A column's facts, settled. `device`: of OpenVINO; `placed`: the accelerator that torch ran
    on, as it names it; "": none. `k` tokens are guessed a round, by the model `draft`, or found by
    n-grams of at most `ngram` tokens. `lacking`: what few libraries have, and `trained` the draft
    that it needs; "": nothing. `reuse`: whether beginnings of earlier texts may be used. `notes`
    hold for every library.
    """

    request: Request
    model: Model
    device: str
    placed: str
    cache: bool
    reuse: bool
    limit: int
    grammar: GrammarSource | None
    notes: tuple[str, ...]
    kind: Literal["plain", "draft", "lookup"] = "plain"
    k: int = 0
    ngram: int = 0
    draft: Model | None = None
    lacking: str = ""
    trained: str = ""

    @property
    def greedy(self) -> bool:
        return self.request.sampling.temperature < COLDEST

    @property
    def constraint(self) -> str:
        """The grammar's text, whole and without what our own reader would take off it; "": there
        is none.
        """
        match self.grammar:
            case None:
                return ""
            case GrammarSource(kind="lark"):
                return composed(self.grammar.text)
            case _:
                return self.grammar.text.rstrip("\r\n")

    def require(self, library: str, *, has: Iterable[str] = ()) -> None:
        """Raise DerbyError for what nearly all libraries lack, unless this one `has` it."""
        if self.model.gguf and library != "llama.cpp":
            raise DerbyError(f"{library} computes GGUF files differently: use llama.cpp.")
        if self.lacking and self.lacking not in has:
            raise DerbyError(
                f"{library} has no {self.lacking}: use its prompt lookup of {self.k} tokens."
            )
        if not self.cache and library != "transformers":
            raise DerbyError(f"{library} cannot write a text without its cache: use KV reuse.")


def plan(column: Column, request: Request, default: ModelSpec, decision: Decision) -> Plan:
    """What the code for a column is written from: `decision` is what its run put in force. Raises
    DerbyError for an impossible name.
    """
    target, strategy = column.target(default), column.strategy
    notes: list[str] = []
    if request.sampling.temperature >= COLDEST:
        notes.append("At this temperature the library draws different tokens with the same seed.")
    if target.precision.endswith("-exact"):
        notes.append("No library runs the published weights exactly: this code quantises again.")
    made = Plan(
        request,
        _model(target),
        target.device if target.engine == "openvino" else "CPU",
        target.device.lower() if target.engine == "torch" and target.device != "CPU" else "",
        cache=strategy.keeps_cache,
        reuse=column.cache != FRESH,
        limit=min(request.max_new_tokens, column.limit or request.max_new_tokens),
        grammar=column.grammar,
        notes=tuple(notes),
    )
    if decision.plain:
        return _with(made, NOTHING_DRAFTED)
    return _with(made, strategy.equivalent({**column.settings(), **decision.settings}, target))


def _with(made: Plan, equivalent: Equivalent) -> Plan:
    """The plan with what the column amounts to, or with what comes nearest to it."""
    if isinstance(equivalent, Nothing):
        trained = _published(equivalent.draft) if equivalent.draft else ""
        return replace(_with(made, equivalent.instead), lacking=equivalent.lacking, trained=trained)
    if equivalent.note:
        made = replace(made, notes=(equivalent.note, *made.notes))
    match equivalent:
        case Draft(k, draft):
            return replace(made, kind="draft", k=k, draft=_model(draft))
        case Lookup(k, ngram):
            return replace(made, kind="lookup", k=k, ngram=ngram)
        case _:
            return made


def _model(spec: ModelSpec) -> Model:
    precision = spec.precision.removesuffix("-exact")
    if spec.name == BUILT_IN and precision == GGUF:
        return Model(BUILT_IN, precision)
    return Model(_published(spec.name), precision)


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
