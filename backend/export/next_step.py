"""What to do after a race: the code to use, or the race that finds it."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.export.production import Snippet
from backend.libraries.library import TRAINED
from backend.results.figures import likely, listed
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do after a race: a sentence, and either code that was in it, or the column that runs
    such code, as a line of a line-up; neither: run it again. No sentence: nothing.
    """

    sentence: str = ""
    code: str = ""
    column: str = ""


def next_step(board: Scoreboard, every: Mapping[int, Mapping[str, Snippet]]) -> NextStep:
    """What to do with the code of a race (`snippets`). Of the columns that were faster with the
    baseline's text, or else the baseline: use the first whose own code was raced; or race the first
    that was not, as code that was raced and was slower is no answer.
    """
    result = result_of(board)
    base = result.baseline
    if result.doubt == "noisy":
        return NextStep("Run it again when the machine is quiet.")
    compared = {"faster", "slower", "unclear"} & {row.verdict for row in result.rows}
    if base is None or not result.final or not compared:
        return NextStep()
    faster = [row for row in result.rows if row.verdict == "faster" and row.text == "same"]
    faster = [row for row in faster if result.wrote_baseline_text(row)]
    rows = sorted(faster, key=lambda row: -row.speedup.value) or [base]
    pairs = [(row, each) for row in rows for each in every.get(row.column, {}).values()]
    offers = [(row, each, each.column) for row, each in pairs if each.column is not None]
    for row, each, column in offers:
        if each.raced is None or not result.wrote_baseline_text(result.rows[each.raced.column]):
            continue
        if each.raced.column == row.column or not faster:
            expect = f". Expect {likely(row.speedup)}, same text, measured in this race."
            how = expect if faster else "; nothing was measurably faster."
            return NextStep(f"Use it: {in_words(column)}{how}", each.code)
    for _, each, column in offers:
        if each.raced is None:
            name, plain = in_words(column), "Nothing was measurably faster than plain decoding"
            best = f"The fastest that you can deploy is {name}, which was not in this race."
            return NextStep(best if faster else f"{plain}, as {name} does it.", column=str(column))
    return NextStep()


def in_words(column: Column) -> str:
    """A library's column, and what it guesses by."""
    does = column.strategy.equivalent(column.settings())
    ways = ["prompt lookup"] if does.lookup else []
    ways += ["the trained draft" if does.draft == TRAINED else does.draft] if does.draft else []
    ways += [does.missing] if does.missing else []
    return f"{column.title} with {listed(ways)}" if ways else column.title
