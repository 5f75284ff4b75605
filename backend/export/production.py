"""What a column becomes in production: the column of a library, and the code that this one runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.engines.eagle3.checkpoint import draft_for, eagle3_folder
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
from backend.libraries.library import TRAINED, Library, Settings
from backend.libraries.llamacpp import EAGLE3, GGUF, LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.openvino_genai import PRECISIONS as GENAI_PRECISIONS
from backend.libraries.transformers import TRANSFORMERS
from backend.models.files import BUILT_IN, is_gguf
from backend.programs.parser import is_program
from backend.results.figures import DASH, likely
from backend.results.result import Result, Row, result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, OwnModel, default_column, settings_of
from backend.strategies.declaration import Equivalent
from backend.strategies.ours import USUAL_COPY
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


#: What a column amounts to for which no guess paid.
PLAIN = Equivalent(note="No guess paid here: this is plain decoding.")

#: Precisions that are one and the same weights: only the built-in model has more than fp32.
SAME_VALUES = {*EXACT_PRECISIONS, GGUF}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does. `code` is "" where it has none; `note` says why,
    or what differs. `column` runs this code; None: none does. `raced`: the row of that column, if
    it was in the race.
    """

    language: Literal["python", "bash"]
    code: str
    note: str
    column: Column | None = None
    raced: Row | None = None


def snippet(
    board: Scoreboard, index: int, request: Request, target: ModelSpec, library: str
) -> Snippet:
    """Code with which `library` does what a column of the race did, with the settings that its run
    used. Prompts, names and grammars stay literals, whatever they contain. Raises DerbyError for a
    column that failed or is a server's, a program, and an unknown library.
    """
    _require_code(board, index, request, library)
    result = result_of(board)
    column, score, template = board.columns[index], board.scores[index], LIBRARIES[library]
    theirs, settings, notes = column, column.settings(), list[str]()
    try:
        if column.name != template.library.name or not template.raced:
            theirs, settings, notes = _in_library(board, index, target, library)
        spec = theirs.target(target)
        _require_files({spec.name, *column.drafts.values()} - {BUILT_IN}, library)
        facts = {"ends": score.started.ends}
        code = "\n".join(template.write(spec, request, settings | facts)) + "\n"
    except DerbyError as error:
        return Snippet(template.language, "", str(error))
    notes.append(_on_weights(column.target(target), spec))
    if theirs is not column and not theirs.lossless(request.sampling.temperature):
        notes.append("At this temperature the library draws other tokens with the same seed.")
    note = " ".join(filter(None, notes))
    if not template.raced:
        return Snippet(template.language, code, note)
    same = [row for row in result.rows if alike(board.columns[row.column], theirs, target)]
    raced = next((row for row in sorted(same, key=lambda row: row.column != index)), None)
    return Snippet(template.language, code, note, theirs, raced)


def _in_library(
    board: Scoreboard, index: int, target: ModelSpec, library: str
) -> tuple[Column, dict[str, Any], list[str]]:
    """The library's column that does what another one did, its settings, and what to say of them.
    Raises DerbyError for what the library lacks.
    """
    column, decision = board.columns[index], board.scores[index].decision
    template, ran = LIBRARIES[library], column.with_settings(decision.settings)
    theirs = default_column(template.library.name).on(_place(column, template, target))

    equivalent = PLAIN if decision.plain else column.strategy.equivalent(ran.settings())
    settings, notes = _settings(library, equivalent, ran.grammar, column.target(target))
    if ran.changed() and not decision.plain:
        notes = [*notes, f"This is the nearest that {library} has to {ran}."]
    if column.automatic and not decision.plain:
        free = [name for name in ("lookup", "k") if name in settings]
        # They are those of a column that was in the race, if it differs in nothing else.
        raced = [each for each in board.columns if template.raced and each.name == theirs.name]
        for each in raced:
            other = {**settings, **{name: each.settings()[name] for name in free}}
            if each == theirs.with_settings(other):
                settings = other
        chosen = [name for name, field in settings_of(column.strategy).items() if field.fixes]
        sizes = {name: settings[name] for name in free} or {n: ran.settings()[n] for n in chosen}
        fixed = ", ".join(f"{name}={size}" for name, size in sizes.items())
        notes = [*notes, f"The column chose its sizes as it went; this code keeps to {fixed}."]
    theirs = theirs.with_settings(settings) if template.raced else theirs
    return theirs, {**theirs.settings(), **settings}, notes


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


def snippets(
    board: Scoreboard, request: Request, target: ModelSpec
) -> dict[int, dict[str, Snippet]]:
    """The code of each column that has any, by libraries: first one that was raced so, then one
    like the race's engine.
    """
    every: dict[int, dict[str, Snippet]] = {}
    for index in range(len(board.columns)):
        try:
            each = {name: snippet(board, index, request, target, name) for name in LIBRARIES}
        except DerbyError:
            continue
        names = sorted(
            (name for name in each if each[name].code),
            key=lambda name: (
                each[name].raced is None,
                LIBRARIES[name].library.like != target.engine,
            ),
        )
        every |= {index: {name: each[name] for name in names}} if names else {}
    return every


def alike(one: Column, other: Column, target: ModelSpec) -> bool:
    """Whether two columns of a race on `target` do the same."""
    same = (one.name, one.settings()) == (other.name, other.settings())
    return same and one.target(target) == other.target(target)


def _settings(
    library: str, equivalent: Equivalent, grammar: GrammarSource | None, target: ModelSpec
) -> tuple[dict[str, Any], list[str]]:
    """The settings of the library's column that are not its usual ones, and what to say of them.
    Raises DerbyError for what the library lacks.
    """
    only, notes = equivalent.only.get(library, {}), [equivalent.note]
    if equivalent.missing and not only:
        raise DerbyError(f"{library} has no {equivalent.missing}: choose another column.")
    if grammar and library == "transformers":
        raise DerbyError("transformers has no grammars: choose openvino-genai, llama.cpp or vLLM.")
    if grammar and library != "llama.cpp":
        definition_of(grammar)  # raises for one that llama.cpp alone reads
    draft, lookup, k = _draft(library, equivalent, target), equivalent.lookup, equivalent.k
    eagle3 = draft == TRAINED or eagle3_folder(draft) is not None
    if eagle3 and library == "transformers":  # by code of ours, which looks up as well
        code = {"generate": "hybrid" if lookup else "eagle3", "k": k, "ngram": equivalent.ngram}
        return code | ({"draft": draft} if draft != TRAINED else {}), notes
    if lookup and draft:
        lookup, notes = 0, [*notes, f"{library} guesses by the draft alone, without prompt lookup."]
    settings: dict[str, Any] = {} if library == "transformers" else {"grammar": grammar}
    settings |= {"draft": draft, "k": k} if draft else {}
    if library == "llama.cpp":
        settings |= {"spec": EAGLE3} if eagle3 else {}
        settings |= {"spec": "ngram-simple", "k": lookup} if lookup else {}
    elif lookup:
        settings |= {"lookup": lookup, "ngram": equivalent.ngram}
    return {**settings, **only}, notes


def _draft(library: str, equivalent: Equivalent, target: ModelSpec) -> str:
    """What drafts in the library, "": nothing does. Raises DerbyError for a copy that it lacks."""
    draft = equivalent.draft
    if draft == TRAINED and draft_for(target) is None:
        draft = USUAL_COPY
    copies = GENAI_PRECISIONS if library == "openvino-genai" else ()
    if draft in all_precisions() and draft not in copies:
        raise DerbyError(f"{library} drafts with no {draft} copy: name a smaller model.")
    return draft


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


def expectation(snippet: Snippet, result: Result) -> str:
    """What to expect of code that was in the race."""
    row = snippet.raced
    if row is None:
        return ""
    if row.message:
        return f"This code failed in the race: {row.message}"
    if result.doubt == "noisy" and row.speedup.known:
        low, high = row.speedup.low, row.speedup.high
        return (
            f"Expect {low:.1f}{DASH}{high:.1f}\N{MULTIPLICATION SIGN}: this code was in the race."
        )
    if not (row.speedup.value and result.final) or result.doubt == "noisy":
        return "This code was in the race, which tells no speed-up."
    return f"Expect {likely(row.speedup)}: this code was in the race."
