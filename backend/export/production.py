"""What a column becomes in production: code for each library, with the settings in force."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.errors import DerbyError
from backend.export import llama_cpp, openvino_genai, transformers, vllm
from backend.export.plan import Plan, plan
from backend.programs.parser import is_program
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import as_sentence
from backend.strategies.column import Column
from backend.strategies.equivalents import Nothing
from backend.types import ModelSpec, Request

#: By each library's name: the lines of its code and sentences on it, of a plan; DerbyError says
#: what the library lacks.
LIBRARIES: Mapping[str, Callable[[Plan], tuple[Iterable[str], Iterable[str]]]] = {
    "transformers": transformers.write,
    "openvino-genai": openvino_genai.write,
    "vLLM": vllm.write,
    "llama.cpp": llama_cpp.write,
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One library's way to do what a column does. `code` is "" where it has none; `note` is one or
    two sentences on what differs, or on what to use instead.
    """

    library: str
    language: Literal["python", "bash"]
    code: str
    note: str


def snippet(
    column: Column, score: Score, request: Request, default: ModelSpec, library: str
) -> Snippet:
    """Code with which `library` does what the column did, with the settings that its run used.
    Prompts, names and grammars stay literals, whatever they contain. Raises DerbyError for a column
    that failed or is a server's, a program, and an unknown library.
    """
    if library not in tuple(LIBRARIES):  # whatever it is, a dict would want its hash
        names = ", ".join(LIBRARIES)
        raise DerbyError(f"There is no code for {library!r:.60}; choose from {names}.")
    if score.state == "failed":
        raise DerbyError(f"{column.label} failed in the last race: choose another column.")
    if column.strategy.lane is not None:
        raise DerbyError(f"{column.label} already runs on a server: choose another column.")
    if is_program(request.prompt):
        raise DerbyError(
            "The last race ran a program, whose slots are Decode Derby's own: race a plain prompt "
            "to get code."
        )
    language = "bash" if library == "llama.cpp" else "python"
    facts = plan(column, request, default, score.decision)
    try:
        lines, notes = LIBRARIES[library](facts)
    except DerbyError as error:
        return Snippet(library, language, "", str(error))
    said = " ".join([*facts.notes, *notes, *_why(column, score)])
    return Snippet(library, language, "\n".join(lines) + "\n", said)


def fastest_code(board: Scoreboard, default: ModelSpec) -> int:
    """The column to show the code of: the fastest that was measurably faster than the baseline and
    whose code does all that it does, or else the baseline.
    """

    def whole(index: int) -> bool:
        column, score = board.columns[index], board.scores[index]
        if column.strategy.lane is not None:
            return False
        settings = {**column.settings(), **score.decision.settings}
        equivalent = column.strategy.equivalent(settings, column.target(default))
        return not isinstance(equivalent, Nothing) and not equivalent.note

    faster = [i for i in range(len(board.columns)) if board.pace(i) == "faster" and whole(i)]
    return max(faster, key=board.speedup, default=board.baseline_index or 0)


def _why(column: Column, score: Score) -> Iterable[str]:
    """Why these settings are in force, in a sentence, unless the column's own are."""
    if score.decision.why and not score.decision.plain:
        yield as_sentence(score.decision.why.partition("; ")[0])
    elif column.automatic and score.steps < 2:
        yield "The column wrote too little to choose settings: run it longer."
    elif column.automatic and score.state != "done" and not score.decision.settings:
        yield "The column did not finish, so its settings are not final: run it to its end."
