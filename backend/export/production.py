"""What a column becomes in production: the column of a library, and the code that this one runs."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.decoding.sampling import COLDEST
from backend.engines.openvino.core import EXACT_PRECISIONS
from backend.engines.registry import all_precisions
from backend.errors import DerbyError, unknown
from backend.export.templates import (
    llamacpp_code,
    openvino_genai_code,
    transformers_code,
    vllm_code,
)
from backend.grammar.sources import GrammarSource, definition_of
from backend.libraries.library import NO_DRAFT, Library, Settings
from backend.libraries.llamacpp import GGUF, LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.openvino_genai import PRECISIONS as GENAI_PRECISIONS
from backend.libraries.transformers import TRANSFORMERS
from backend.models.files import BUILT_IN, is_gguf
from backend.programs.parser import is_program
from backend.results.figures import likely
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, OwnModel, default_column, settings_of
from backend.strategies.declaration import Equivalent, Values
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


#: Precisions that are one and the same weights: only the built-in model has more than fp32.
SAME_VALUES = {*EXACT_PRECISIONS, GGUF}


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
    column, decision = board.columns[index], board.scores[index].decision
    _require_code(board, index, request, library)
    template, started = LIBRARIES[library], board.scores[index].started
    ran = column.with_settings(decision.settings)

    def written(values: Values) -> tuple[Column, str, str]:
        """The library's column that does what ours did with these settings, its code, a note."""
        equivalent = column.strategy.equivalent(values)
        if decision.plain:
            equivalent = Equivalent(note="No guess paid here: this is plain decoding.")
        theirs, settings = column, values
        if column.name != template.library.name or not template.raced:
            settings = _settings(library, equivalent, values.get("grammar"))
            theirs = default_column(template.library.name).on(_place(column, template, target))
            theirs = theirs.with_settings(settings) if template.raced else theirs
        spec = theirs.target(target)
        _require_files({spec.name, *column.drafts.values()} - {BUILT_IN}, library)
        settings = {**settings, "ends": started.ends, "parts": started.parts}
        return theirs, "\n".join(template.write(spec, request, settings)), equivalent.note

    try:
        theirs, code, note = written(ran.settings())
    except DerbyError as error:
        return Snippet(template.language, "", str(error))
    notes = [note, _on_weights(column.target(target), theirs.target(target))]
    if theirs is not column:
        if not decision.plain:
            notes += _on_settings(column, ran, lambda values: written(values)[1:] == (code, note))
        if request.sampling.temperature >= COLDEST:
            notes.append("At this temperature the library draws other tokens with the same seed.")
    raced = _raced(board, index, theirs, target) if template.raced else ""
    note = " ".join(filter(None, notes))
    return Snippet(template.language, f"{code}\n", note, theirs if template.raced else None, raced)


def _on_weights(ours: ModelSpec, theirs: ModelSpec) -> str:
    """Which weights differ from the column's, and what becomes of the text."""
    both = {ours.precision, theirs.precision}
    if len(both) == 1:
        return ""
    if not both <= SAME_VALUES:
        change = f"The weights are {theirs.precision} here; the column's were {ours.precision}"
        return f"{change}: the text may differ."
    if GGUF in both:
        return "The weights are the same, but llama.cpp rounds activations: the text may differ."
    return f"The weights have the same values at {theirs.precision}: the text stays the same."


def _on_settings(
    column: Column, ran: Column, changes_nothing: Callable[[Values], bool]
) -> list[str]:
    """Which settings of the column are not in its code, because their usual values change nothing;
    `ran` has those that its run decided.
    """
    values, usual = ran.settings(), default_column(ran.name).settings()
    sizes = {name: field for name, field in settings_of(ran.strategy).items() if field.fixes}
    by_sizes = {name for field in sizes.values() for name in field.fixes}  # auto
    left_out = list[str]()
    for name, text in ran.changed().items():
        with suppress(DerbyError):  # so it is in it
            if name not in by_sizes and changes_nothing({**values, name: usual[name]}):
                left_out.append(f"{name}={text}")
    notes = [f"Not in this code: {', '.join(left_out)}."] if left_out else []
    if column.automatic:
        named = ", ".join(f"{name}={values[name]}" for name in sizes)
        notes.append(f"The column chose its sizes as it went; this code keeps to {named}.")
    return notes


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


def _settings(
    library: str, equivalent: Equivalent, grammar: GrammarSource | None
) -> dict[str, Any]:
    """The settings of the library's column. Raises DerbyError for what the library lacks."""
    only = equivalent.only.get(library, {})
    if equivalent.missing and not only:
        raise DerbyError(f"{library} has no {equivalent.missing}: use {equivalent.instead}.")
    draft, copies = equivalent.draft, GENAI_PRECISIONS if library == "openvino-genai" else ()
    if draft in all_precisions() and draft not in copies:
        raise DerbyError(f"{library} drafts with no {draft} copy: name a smaller model.")
    if grammar and library == "transformers":
        raise DerbyError("transformers has no grammars: choose another library.")
    if grammar and library != "llama.cpp":
        definition_of(grammar)  # raises for one that llama.cpp alone reads
    settings: dict[str, Any] = {"draft": draft or NO_DRAFT}
    if library != "transformers":
        settings["grammar"] = grammar
    if library == "llama.cpp":
        spec = "ngram-simple" if equivalent.lookup else NO_DRAFT
        return {**settings, "spec": spec, "k": equivalent.lookup or equivalent.k, **only}
    k = (equivalent.k if draft else 0) or DRAFT_TOKENS.default
    return {**settings, "lookup": equivalent.lookup, "ngram": equivalent.ngram, "k": k, **only}


def _place(column: Column, template: Template, target: ModelSpec) -> OwnModel:
    """What the library's column runs on where another column had a model of its own."""
    own, place, library = column.target(target), OwnModel(column.model.name), template.library
    known = library.declaration.precisions if library.declaration else ()
    if column.model.place and own.engine == library.like and own.precision in known:
        return replace(place, precision=own.precision, device=own.device)
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
