"""What a column becomes in production: the column of a library, and the code that this one runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.decoding.sampling import COLDEST
from backend.engines.registry import all_precisions
from backend.errors import DerbyError, unknown
from backend.export.templates import (
    llamacpp_code,
    openvino_genai_code,
    transformers_code,
    vllm_code,
)
from backend.grammar.sources import definition_of
from backend.libraries.library import NO_DRAFT, Library, Settings
from backend.libraries.llamacpp import LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.openvino_genai import PRECISIONS as GENAI_PRECISIONS
from backend.libraries.transformers import TRANSFORMERS
from backend.models.files import BUILT_IN, is_gguf
from backend.programs.parser import is_program
from backend.results.figures import likely
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, OwnModel, default_column
from backend.strategies.declaration import Equivalent
from backend.strategies.libraries import DRAFT_TOKENS
from backend.types import ModelSpec, Request


@dataclass(frozen=True, slots=True)
class Template:
    """How code for a library is written. `library`: whose columns run it, or, where it has none
    here (`raced` is False), the one whose precisions and devices it has.
    """

    library: Library
    write: Callable[[ModelSpec, Request, Settings], Iterable[str]]
    raced: bool = True
    language: Literal["python", "bash"] = "python"


#: By the libraries' titles.
LIBRARIES: Mapping[str, Template] = {
    "openvino-genai": Template(OPENVINO_GENAI, openvino_genai_code),
    "transformers": Template(TRANSFORMERS, transformers_code),
    "llama.cpp": Template(LLAMACPP, llamacpp_code, language="bash"),
    "vLLM": Template(TRANSFORMERS, vllm_code, raced=False),
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does. `code` is "" where it has none; `note` says why,
    or what differs. `column` runs this code; None: none does. `raced`: what to expect of it, if it
    was in the race.
    """

    language: Literal["python", "bash"]
    code: str
    note: str
    column: Column | None = None
    raced: str = ""


def snippet(
    board: Scoreboard, index: int, request: Request, target: ModelSpec, library: str
) -> Snippet:
    """Code with which `library` does what a column of the race did, with the settings that its run
    used. Prompts, names and grammars stay literals, whatever they contain. Raises DerbyError for a
    column that failed or is a server's, a program, and an unknown library.
    """
    column, score = board.columns[index], board.scores[index]
    _require_code(board, index, request, library)
    template = LIBRARIES[library]
    equivalent = column.strategy.equivalent({**column.settings(), **score.decision.settings})
    if score.decision.plain:
        equivalent = Equivalent(note="No guess paid here: this is plain decoding.")
    theirs, settings = column, column.settings()
    try:
        if column.name != template.library.name or not template.raced:
            settings = _settings(library, equivalent, column)
            theirs = default_column(template.library.name).on(_place(column, template, target))
            theirs = theirs.with_settings(settings) if template.raced else theirs
        spec = theirs.target(target)
        _require_files({spec.name, *column.drafts.values()} - {BUILT_IN}, library)
        facts = {"ends": score.started.ends, "parts": score.started.parts}
        code = "\n".join(template.write(spec, request, settings | facts)) + "\n"
    except DerbyError as error:
        return Snippet(template.language, "", str(error))
    notes = [equivalent.note]
    if theirs is not column and request.sampling.temperature >= COLDEST:
        notes.append("At this temperature the library draws other tokens with the same seed.")
    if (precision := column.target(target).precision) != spec.precision:
        notes.append(f"The weights are {spec.precision} here; the column's were {precision}.")
    note = " ".join(filter(None, notes))
    if not template.raced:
        return Snippet(template.language, code, note)
    return Snippet(template.language, code, note, theirs, _raced(board, index, theirs, target))


def _require_code(board: Scoreboard, index: int, request: Request, library: str) -> None:
    """Raise DerbyError where there is nothing to write code of."""
    failed = board.scores[index].state == "failed"
    if failed or not board.columns[index].strategy.loads:
        why = "failed" if failed else "runs on a server already"
        raise DerbyError(f"{board.name(index)} {why}: choose another column.")
    if is_program(request.prompt):
        raise DerbyError("No library runs programs with slots: race a plain prompt to get code.")
    if library not in tuple(LIBRARIES):  # whatever it is, a dict would want its hash
        raise unknown("library", library, LIBRARIES)


def usual(board: Scoreboard, request: Request, target: ModelSpec) -> int:
    """The column to begin with: the fastest with the baseline's text that was measurably faster
    and that some library has code for, or else the baseline.
    """
    result = result_of(board)
    faster = [row for row in result.rows if row.verdict == "faster"]
    for row in sorted(faster, key=lambda row: -row.speedup.value):
        same = row.text == "same" and result.wrote_baseline_text(row)
        if same and usual_library(board, row.column, request, target):
            return row.column
    return board.baseline_index or 0


def usual_library(board: Scoreboard, index: int, request: Request, target: ModelSpec) -> str:
    """The library to begin with for a column: one that was raced so, one like the race's engine,
    or any other that has code for it; "": none has.
    """
    try:
        snippets = {name: snippet(board, index, request, target, name) for name in LIBRARIES}
    except DerbyError:
        return ""
    return max(
        (name for name in snippets if snippets[name].code),
        key=lambda name: (
            bool(snippets[name].raced),
            LIBRARIES[name].library.like == target.engine,
        ),
        default="",
    )


def _settings(library: str, equivalent: Equivalent, column: Column) -> dict[str, Any]:
    """The settings of the library's column; of vLLM, which has none, the same with its
    speculative_config. Raises DerbyError for what the library lacks.
    """
    speculation = equivalent.vllm if library == "vLLM" else {}
    if equivalent.missing and not speculation:
        raise DerbyError(f"{library} has no {equivalent.missing}: use {equivalent.instead}.")
    draft, grammar = equivalent.draft, column.grammar
    if draft in all_precisions():
        draft = draft.removesuffix("-exact")
        if library != "openvino-genai" or draft not in GENAI_PRECISIONS:
            raise DerbyError(f"{library} drafts with no {draft} copy: name a smaller model.")
    if grammar and library == "transformers":
        raise DerbyError("transformers has no grammars: choose llama.cpp or vLLM.")
    if grammar and library != "llama.cpp":
        definition_of(grammar)  # raises for one that llama.cpp alone reads
    settings: dict[str, Any] = {"draft": draft or NO_DRAFT}
    if library != "transformers":
        settings["grammar"] = grammar
    if library == "llama.cpp":
        spec = "ngram-simple" if equivalent.lookup else NO_DRAFT
        return settings | {"spec": spec, "k": equivalent.lookup or equivalent.k}
    k = (equivalent.k if draft else 0) or DRAFT_TOKENS.default
    settings |= {"lookup": equivalent.lookup, "k": k}
    return settings | ({"speculative_config": speculation} if library == "vLLM" else {})


def _place(column: Column, template: Template, target: ModelSpec) -> OwnModel:
    """What the library's column runs on where another column had a model of its own."""
    own, place, library = column.target(target), OwnModel(column.model.name), template.library
    precision = own.precision.removesuffix("-exact")
    known = library.declaration.precisions if library.declaration else ()
    if column.model.place and own.engine == library.like and precision in known:
        return replace(place, precision=precision, device=own.device)
    return place


def _require_files(models: set[str], library: str) -> None:
    """Raise DerbyError for a model whose files the library does not read."""
    if any(is_gguf(name) != (library == "llama.cpp") for name in models):
        reads = "only GGUF files" if library == "llama.cpp" else "no GGUF files"
        raise DerbyError(f"{library} runs {reads} here: choose another model, or another library.")


def _raced(board: Scoreboard, index: int, column: Column, target: ModelSpec) -> str:
    """What to expect of a column that was in the race, as column `index` first; "": it was not."""
    result = result_of(board)
    for row in sorted(result.rows, key=lambda row: row.column != index):
        other = board.columns[row.column]
        same = (other.name, other.settings()) == (column.name, column.settings())
        if same and other.target(target) == column.target(target):
            if row.message:
                return f"This code failed in the race: {row.message}"
            if not (row.speedup.value and result.final) or result.doubt == "noisy":
                return "This code was in the race, which tells no speed-up."
            return f"Expect {likely(row.speedup)}: this code was in the race."
    return ""
