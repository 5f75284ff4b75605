"""What a column becomes in production: the column of a library, and the code that this one runs."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from backend.engines.eagle3.checkpoint import draft_for, eagle3_folder
from backend.engines.openvino.core import EXACT_PRECISIONS
from backend.engines.registry import all_precisions
from backend.errors import DerbyError
from backend.export.templates import (
    llamacpp_code,
    openvino_genai_code,
    transformers_code,
    vllm_code,
)
from backend.grammar.sources import GrammarSource
from backend.libraries.library import TRAINED, Library, Settings
from backend.libraries.llamacpp import EAGLE3, LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.openvino_genai import PRECISIONS as GENAI_PRECISIONS
from backend.libraries.transformers import TRANSFORMERS
from backend.models.files import BUILT_IN, is_gguf
from backend.programs.parser import is_program
from backend.results.result import Row, result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, OwnModel, default_column
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


#: By the libraries' titles.
LIBRARIES: Mapping[str, Template] = {
    "openvino-genai": Template(OPENVINO_GENAI, openvino_genai_code),
    "transformers": Template(TRANSFORMERS, transformers_code),
    "llama.cpp": Template(LLAMACPP, llamacpp_code),
    "vLLM": Template(TRANSFORMERS, vllm_code, raced=False),
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does; `note` says what differs. `column` runs this
    code; None: none does. `raced`: the row of that column, if it was in the race.
    """

    code: str
    note: str
    column: Column | None = None
    raced: Row | None = None


def snippets(
    board: Scoreboard, request: Request, target: ModelSpec
) -> dict[int, dict[str, Snippet]]:
    """The code of each column that has any, by libraries: first one that was raced so, then one
    like the race's engine. It has the settings that the column's run used. Prompts, names and
    grammars stay literals, whatever they contain.
    """
    rows, every = result_of(board).rows, dict[int, dict[str, Snippet]]()
    for index, column in enumerate(board.columns):
        if board.scores[index].state == "failed" or not column.strategy.loads:
            continue
        codes: dict[str, Snippet] = {}
        for library in LIBRARIES if not is_program(request.prompt) else ():
            with suppress(DerbyError):  # it lacks what the column does
                codes[library] = _snippet(board, rows, index, request, target, library)
        names = sorted(
            codes,
            key=lambda name: (
                codes[name].raced is None,
                LIBRARIES[name].library.like != target.engine,
            ),
        )
        every |= {index: {name: codes[name] for name in names}} if names else {}
    return every


def _snippet(
    board: Scoreboard,
    rows: Iterable[Row],
    index: int,
    request: Request,
    target: ModelSpec,
    library: str,
) -> Snippet:
    """The code with which a library does what a column did. Raises DerbyError for what it lacks."""
    column, started = board.columns[index], board.scores[index].started
    template, theirs, settings, notes = LIBRARIES[library], column, column.settings(), list[str]()
    if column.name != template.library.name or not template.raced:
        theirs, settings, notes = _in_library(board, index, target, library)
    spec = theirs.target(target)
    models = {spec.name, *column.drafts.values()} - {BUILT_IN}
    if any(is_gguf(name) != (library == "llama.cpp") for name in models):
        raise DerbyError(f"{library} does not read the files of this model.")
    facts = {"ends": started.ends}
    code = "\n".join(template.write(spec, request, settings | facts)) + "\n"
    notes.append(_on_weights(column.target(target).precision, spec.precision))
    if theirs is not column and not theirs.lossless(request.sampling.temperature):
        notes.append("At this temperature the library draws other tokens with the same seed.")
    if not template.raced:
        return Snippet(code, " ".join(filter(None, notes)))

    def run(column: Column) -> tuple[Any, ...]:
        return column.name, column.values, column.target(target)

    same = [row for row in rows if run(board.columns[row.column]) == run(theirs)]
    if raced := min(same, key=lambda row: row.column != index, default=None):
        notes.insert(0, f"This code was in the race: {raced.name}.")
    return Snippet(code, " ".join(filter(None, notes)), theirs, raced)


def _in_library(
    board: Scoreboard, index: int, target: ModelSpec, library: str
) -> tuple[Column, dict[str, Any], list[str]]:
    """The library's column that does what another one did, its settings, and what to say of them.
    Raises DerbyError for what the library lacks.
    """
    column, decision = board.columns[index], board.scores[index].decision
    template, own = LIBRARIES[library], column.target(target)
    ran = column.with_settings(decision.settings)
    equivalent = column.strategy.equivalent(ran.settings())
    if decision.plain:
        equivalent = Equivalent(note="No guess paid here: this is plain decoding.")
    settings, notes = _settings(library, equivalent, ran.grammar, own)
    if ran.changed() and not decision.plain:
        notes.append(f"This is the nearest that {library} has to {ran}.")
    theirs, model = default_column(template.library.name), OwnModel(column.model.name)
    if column.model.place:
        like = theirs.target(own)
        model = replace(model, precision=like.precision, device=like.device)
    theirs = theirs.on(model)
    if column.automatic and not decision.plain:
        notes.append("The column chose its sizes as it went; this code has fixed ones.")
        # They are those of a column that was in the race, if it differs in nothing else.
        free = [name for name in ("lookup", "k") if name in settings]
        alike = [each for each in board.columns if template.raced and each.name == theirs.name]
        for other in alike:
            sizes = {name: other.settings()[name] for name in free}
            if other == theirs.with_settings(settings | sizes):
                settings |= sizes
    theirs = theirs.with_settings(settings) if template.raced else theirs
    return theirs, {**theirs.settings(), **settings}, notes


def _on_weights(ours: str, theirs: str) -> str:
    """Which weights differ from the column's, and what becomes of the text."""
    if ours == theirs:
        return ""
    if {ours, theirs} <= {*EXACT_PRECISIONS}:
        return f"The weights have the same values at {theirs}: the text stays the same."
    return f"The weights are {theirs} here; the column's were {ours}: the text may differ."


def _settings(
    library: str, equivalent: Equivalent, grammar: GrammarSource | None, target: ModelSpec
) -> tuple[dict[str, Any], list[str]]:
    """The settings of the library's column that are not its usual ones, and what to say of them.
    Raises DerbyError for what the library lacks.
    """
    only, notes = equivalent.only.get(library, {}), [equivalent.note]
    if equivalent.missing and not only:
        raise DerbyError(f"{library} has no {equivalent.missing}.")
    gbnf = grammar and grammar.kind == "gbnf"
    if (grammar and library == "transformers") or (gbnf and library != "llama.cpp"):
        raise DerbyError(f"{library} does not follow this grammar.")
    draft, lookup, k = equivalent.draft, equivalent.lookup, equivalent.k
    if draft == TRAINED and draft_for(target) is None:
        draft = USUAL_COPY
    copies = GENAI_PRECISIONS if library == "openvino-genai" else ()
    if draft in all_precisions() and draft not in copies:
        raise DerbyError(f"{library} drafts with no {draft} copy.")
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
