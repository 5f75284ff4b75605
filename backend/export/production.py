"""What a column becomes in production: the column of a library, and the code that this one runs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.decoding.drafter import Decision
from backend.decoding.sampling import COLDEST
from backend.engines.registry import all_precisions
from backend.errors import DerbyError
from backend.export import llamacpp, openvino_genai, transformers, vllm
from backend.libraries.library import NO_DRAFT, Library, Settings
from backend.libraries.llamacpp import LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.transformers import TRANSFORMERS
from backend.models.files import BUILT_IN
from backend.models.gguf import SUFFIX
from backend.programs.parser import is_program
from backend.results.figures import likely
from backend.results.result import result_of
from backend.results.score import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, OwnModel, default_column
from backend.strategies.equivalent import NOTHING_DRAFTED, Equivalent
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
    "openvino-genai": Template(OPENVINO_GENAI, openvino_genai.write),
    "transformers": Template(TRANSFORMERS, transformers.write),
    "llama.cpp": Template(LLAMACPP, llamacpp.write, language="bash"),
    "vLLM": Template(TRANSFORMERS, vllm.write, raced=False),
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does. `code` is "" where it has none; `note` says what
    differs, or what to use instead. `column` is that of the library that runs this code; None: no
    column does. `raced`: how it did in the race, in a sentence; "": it was not in it. `speedup`: 0
    if it is not known.
    """

    library: str
    language: Literal["python", "bash"]
    code: str
    note: str
    column: Column | None = None
    raced: str = ""
    speedup: float = 0.0


def library_column(column: Column, library: str, target: ModelSpec, decision: Decision) -> Column:
    """The library's column that does what a column did, whose run put `decision` in force: of vLLM,
    which has none, transformers' that would run where vLLM does. Raises DerbyError where the
    library cannot.
    """
    template = LIBRARIES[library]
    if column.name == template.library.name and template.raced:
        return column
    settings = _settings(column, library, _equivalent(column, decision))
    made = default_column(template.library.name).on(_place(column, template.library, target))
    return made.with_settings(settings) if template.raced else made


def snippet(
    board: Scoreboard,
    index: int,
    request: Request,
    target: ModelSpec,
    library: str,
) -> Snippet:
    """Code with which `library` does what a column of the race did, with the settings that its run
    used. Prompts, names and grammars stay literals, whatever they contain. Raises DerbyError for a
    column that failed or is a server's, a program, and an unknown library.
    """
    column, score = board.columns[index], board.scores[index]
    if score.state == "failed":
        raise DerbyError(f"{column.label} failed in the last race: choose another column.")
    if not column.strategy.loads:
        raise DerbyError(f"{column.label} already runs on a server: choose another column.")
    if is_program(request.prompt):
        raise DerbyError(
            "The last race ran a program, whose slots are Decode Derby's own: race a plain prompt "
            "to get code."
        )
    if library not in tuple(LIBRARIES):  # whatever it is, a dict would want its hash
        names = ", ".join(LIBRARIES)
        raise DerbyError(f"There is no code for {library!r:.60}; choose from {names}.")
    template, decision = LIBRARIES[library], score.decision
    try:
        made = library_column(column, library, target, decision)
        settings = made.settings()
        if not template.raced:
            settings = _settings(column, library, _equivalent(column, decision))
        spec = made.target(target)
        for name in (spec.name, *column.drafts.values()):
            _require_files(name, library)
        code = "\n".join(template.write(spec, request, settings)) + "\n"
    except DerbyError as error:
        return Snippet(library, template.language, "", str(error))
    note = " ".join(_notes(column, score, request, target, spec))
    if not template.raced:
        return Snippet(library, template.language, code, note)
    raced, speedup = _raced(board, made, target)
    return Snippet(library, template.language, code, note, made, raced, speedup)


def usual(board: Scoreboard, request: Request, target: ModelSpec) -> int:
    """The column to begin with: the fastest that was measurably faster than the baseline and that
    some library has code for, or else the baseline.
    """

    def has_code(index: int) -> bool:
        return bool(usual_library(board, index, request, target))

    rows = result_of(board).rows
    faster = [row for row in rows if row.verdict == "faster" and has_code(row.column)]
    best = max(faster, key=lambda row: row.speedup.value, default=None)
    return best.column if best else board.baseline_index or 0


def usual_library(board: Scoreboard, index: int, request: Request, target: ModelSpec) -> str:
    """The library to begin with for a column: the fastest that was raced so, one like the race's
    engine, or any other that has code for it; "": none has.
    """

    def worth(name: str) -> tuple[float, bool]:
        return made[name].speedup, LIBRARIES[name].library.like == target.engine

    try:
        made = {name: snippet(board, index, request, target, name) for name in LIBRARIES}
    except DerbyError:
        return ""
    return max((name for name in made if made[name].code), key=worth, default="")


def _equivalent(column: Column, decision: Decision) -> Equivalent:
    if decision.plain:
        return NOTHING_DRAFTED
    return column.strategy.equivalent({**column.settings(), **decision.settings})


def _settings(column: Column, library: str, equivalent: Equivalent) -> dict[str, Any]:
    """The settings of the library's column; of vLLM, which has none, those of openvino-genai's with
    a speculative_config of its own. Raises DerbyError for what the library lacks.
    """
    speculation = equivalent.vllm if library == "vLLM" else {}
    if equivalent.missing and not speculation:
        raise DerbyError(f"{library} has no {equivalent.missing}: use {equivalent.instead}.")
    draft, grammar = equivalent.draft, column.grammar
    if draft in all_precisions():
        draft = draft.removesuffix("-exact")
        if library != "openvino-genai" or draft not in openvino_genai.PRECISIONS:
            raise DerbyError(
                f"{library} drafts with no {draft} copy of the model: choose openvino-genai, or "
                "name a smaller model as the draft."
            )
    settings: dict[str, Any] = {"draft": draft or NO_DRAFT, "grammar": grammar}
    if library == "llama.cpp":
        spec = "ngram-simple" if equivalent.lookup else NO_DRAFT
        return settings | {"spec": spec, "k": equivalent.lookup or equivalent.k}
    k = (equivalent.k if draft else 0) or DRAFT_TOKENS.default
    settings |= {"lookup": equivalent.lookup, "k": k}
    if library == "vLLM":
        return settings | {"speculative_config": speculation}
    if library == "transformers":
        if grammar is not None:
            raise DerbyError(
                f"transformers takes no grammar such as {grammar.name!r:.60}: choose llama.cpp or "
                "vLLM."
            )
        del settings["grammar"]
    return settings


def _place(column: Column, library: Library, target: ModelSpec) -> OwnModel:
    """What the library's column runs on where another column had a model of its own."""
    own, place = column.target(target), OwnModel(column.model.name)
    precision = own.precision.removesuffix("-exact")
    assert library.declaration is not None  # noqa: S101 (each of LIBRARIES loads its models)
    alike = own.engine == library.like and precision in library.declaration.precisions
    if column.model.place and alike:
        return replace(place, precision=precision, device=own.device)
    return place


def _require_files(name: str, library: str) -> None:
    """Raise DerbyError for a model whose files the library does not read."""
    if name == BUILT_IN:
        return
    if name.endswith(SUFFIX) != (library == "llama.cpp"):
        reads = "only GGUF files" if library == "llama.cpp" else "no GGUF files"
        raise DerbyError(f"{library} runs {reads} here: choose another model, or another library.")


def _raced(board: Scoreboard, column: Column, target: ModelSpec) -> tuple[str, float]:
    """How a column did that the race had, and its speed-up; "": it had none such."""
    result = result_of(board)
    for other, row in zip(board.columns, result.rows, strict=True):
        same = (other.name, other.settings()) == (column.name, column.settings())
        if same and other.target(target) == column.target(target):
            known = row.speedup.value and not row.message and result.doubt != "noisy"
            said = likely(row.speedup) if known else row.message or "no speed-up is known"
            return f"Raced here: {said.removesuffix('.')}.", row.speedup.value if known else 0.0
    return "", 0.0


def _notes(
    column: Column, score: Score, request: Request, target: ModelSpec, spec: ModelSpec
) -> Iterable[str]:
    """What differs from the column's run, and why its settings are in force."""
    if column.strategy.library is not None and spec == column.target(target):
        return
    if note := _equivalent(column, score.decision).note:
        yield note
    if request.sampling.temperature >= COLDEST:
        yield "At this temperature the library draws different tokens with the same seed."
    precision = column.target(target).precision
    if precision != spec.precision:
        yield f"The weights are {spec.precision} here; the column's were {precision}."
    if score.decision.why and not score.decision.plain:
        why = score.decision.why.partition("; ")[0].removesuffix(".")
        yield f"{why[:1].upper()}{why[1:]}."
