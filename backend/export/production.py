"""What a column becomes in production: code for each library, with the settings in force."""

from contextlib import suppress
from dataclasses import replace

from backend.errors import DerbyError
from backend.export.llama_cpp import LLAMA_CPP
from backend.export.openvino_genai import OPENVINO_GENAI
from backend.export.plan import Library, Plan, Snippet, plan
from backend.export.sglang import SGLANG
from backend.export.transformers import TRANSFORMERS
from backend.export.vllm import VLLM
from backend.programs.parser import is_program
from backend.results.figures import factor
from backend.results.load import UnderLoad
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import as_sentence
from backend.strategies.column import Column
from backend.strategies.equivalents import Draft, Lookup
from backend.types import ModelSpec, Request

#: What there are snippets for, by name, in their order.
LIBRARIES: dict[str, Library] = {
    library.name: library for library in (TRANSFORMERS, OPENVINO_GENAI, VLLM, SGLANG, LLAMA_CPP)
}


def snippet(
    column: Column,
    score: Score,
    request: Request,
    default: ModelSpec,
    library: str,
    found: UnderLoad | None = None,
    speeds: str = "",
) -> Snippet:
    """Code with which `library` does what the column did, with the settings that its run used.
    `found` says under which load its speculation pays, if that is known, and `speeds` what the race
    showed of code that does only a part of it (`speeds_of_part`). Prompts, names and grammars stay
    literals, whatever they contain. Raises DerbyError for a column that failed, a program, an
    unknown library, and a JSON Schema that is not JSON.
    """
    if library not in tuple(LIBRARIES):  # whatever it is, a dict would want its hash
        names = ", ".join(LIBRARIES)
        raise DerbyError(f"There is no code for {library!r:.60}; choose from {names}.")
    if score.state == "failed":
        raise DerbyError(f"{column.label} failed in the last race: choose another column.")
    if request.tags and is_program(request.prompt):
        raise DerbyError(
            "The last race ran a program, whose slots are Decode Derby's own: race a plain prompt "
            "to get code."
        )
    facts = plan(column, request, default, score.decision)
    if found is not None and facts.k and found.limit < found.load.most:
        facts = replace(facts, pays_up_to=found.limit, schedule=found.schedule(facts.k))
    made = LIBRARIES[library].write(facts)
    if not made.code:
        return replace(made, note=" ".join(filter(None, (made.note, _why(column, score)))))
    only = f"This code uses {facts.only} only{speeds and f': {speeds}'}." if facts.only else ""
    said = (only, made.note, _why(column, score), _load(facts))
    return replace(made, note=" ".join(filter(None, said)))


def speeds_of_part(board: Scoreboard, index: int, default: ModelSpec) -> str:
    """The speed-up of the race's column that does what the code for column `index` does, where that
    is only a part, and the speed-up of `index`, a clause; "" if the race does not tell.
    """
    other = _does_the_same(board, index, default)
    if other in (None, index) or not (board.speedup(index) and board.speedup(other)):
        return ""
    own = f"{board.name(index)} had {factor(board.speedup(index))}"
    return f"{factor(board.speedup(other))} here; {own}"


def fastest_code(board: Scoreboard, request: Request, default: ModelSpec) -> int:
    """The column whose code is the fastest by this race: of those that were measurably faster than
    the baseline, or else the baseline. Code that does only a part of its column is as fast as the
    column that does just that, and comes last where there is none, or no code in any library.
    """

    def speed(index: int) -> tuple[float, bool, float]:
        own, other = board.speedup(index), _does_the_same(board, index, default)
        column, score = board.columns[index], board.scores[index]
        if other == index and not any(_code(column, score, request, default, n) for n in LIBRARIES):
            other = None
        return 0.0 if other is None else board.speedup(other), other == index, own

    base = board.baseline_index or 0
    faster = [i for i in range(len(board.columns)) if board.pace(i) == "faster"]
    best = max(faster, key=speed, default=base)
    return base if 0 < speed(best)[0] < 1 else best


def another_won(board: Scoreboard, index: int) -> str:
    """That another column was faster in the race than `index`, whose code is the fastest, in a
    sentence; "" if none was.
    """
    faster = [i for i in range(len(board.scores)) if board.pace(i) == "faster"]
    won = max(faster, key=board.speedup, default=index)
    if board.speedup(won) <= board.speedup(index):
        return ""
    more, own = factor(board.speedup(won)), factor(board.speedup(index))
    return (
        f"{board.name(won)} was faster ({more}), but no library here runs all of it. "
        f"{board.name(index)} ({own}) has the fastest code."
    )


def _code(column: Column, score: Score, request: Request, default: ModelSpec, name: str) -> str:
    """What `snippet` has of it; "" if it refuses."""
    with suppress(DerbyError):
        return snippet(column, score, request, default, name).code
    return ""


def _does_the_same(board: Scoreboard, index: int, default: ModelSpec) -> int | None:
    """The column that does what the code for column `index` does: that column itself, or where the
    code does only a part of it, the one that does just that part; None: there is none.
    """
    part = _drafting(board.columns[index], default)
    if part is None or not part.note:
        return index
    whole = replace(part, k=0, note="")
    for other, column in enumerate(board.columns):
        there = _drafting(column, default)
        same = there is not None and not there.note and replace(there, k=0) == whole
        alike = column.grammar == board.columns[index].grammar
        if same and alike and board.scores[other].spec == board.scores[index].spec:
            return other
    return None


def _drafting(column: Column, default: ModelSpec) -> Lookup | Draft | None:
    """What the column's drafting amounts to in other libraries; None if it has none there."""
    if column.strategy.lane is not None:
        return None
    made = column.strategy.equivalent(column.settings(), column.target(default))
    return made if isinstance(made, Lookup | Draft) else None


def _load(plan: Plan) -> str:
    """Up to which load speculation pays, in a sentence; "" if that is not known, or no bound."""
    most = plan.pays_up_to
    if most is None:
        return ""
    few = {0: "is not faster even for one request", 1: "is faster for one request at a time"}
    pays = few.get(most, f"is faster up to {most} requests at once")
    return f"With k={plan.k}, speculation {pays} on this race's machine."


def _why(column: Column, score: Score) -> str:
    """Why these settings are in force, in a sentence; "" if the column's own are."""
    if score.decision.why and not score.decision.plain:
        return as_sentence(score.decision.why.partition("; ")[0])
    if column.automatic and score.steps < 2:
        return "The column wrote too little to choose settings: run it longer."
    if column.automatic and score.state != "done" and not score.decision.settings:
        return "The column did not finish, so its settings are not final: run it to its end."
    return ""
