"""The tables of a race: figures as numbers, and whatever a record says is text."""

import csv
import re
from dataclasses import replace
from io import StringIO

import pytest
from boards import STEEP
from recordings import race_of

from backend.events import CostsKnown, Decided, Event, Failed, Started
from backend.export.tables import FORMULAS, csv_of, csv_table, markdown
from backend.records.record import RaceRecord, board
from backend.results.figures import NONE, figures
from backend.results.sentences import headline
from backend.strategies.column import OwnModel


def lines(record: RaceRecord) -> list[dict[str, str]]:
    read = list(csv.reader(StringIO(csv_table(record), newline="")))
    assert {len(line) for line in read} == {len(read[0])}
    return [dict(zip(read[0], line, strict=True)) for line in read[1:]]


def test_every_figure_of_the_table_is_a_number_or_nothing() -> None:
    record = race_of("kv lookup:k=3 grammar", 60)
    made, (base, lookup, _) = board(record), lines(record)
    assert [lookup["column"], base["column"]] == ["Prompt lookup (k=3)", "KV reuse"]
    score = made.scores[1]
    assert float(lookup["TPOT, ms"]) == pytest.approx(score.tpot * 1e3, rel=1e-5)
    assert float(lookup["accepted, %"]) == pytest.approx(score.acceptance * 100, rel=1e-5)
    assert float(lookup["speed-up"]) == pytest.approx(made.speedup(1), rel=1e-5)
    assert float(lookup["tokens"]) == score.length
    assert (base["drafted, tokens"], base["text"]) == ("", "baseline")
    assert lookup["text"] == "identical to KV reuse (60 tokens)"
    for entry in figures("table"):
        assert any(heading.startswith(entry.title) for heading in lookup)
    for line in lines(record):
        for heading, cell in line.items():
            if heading not in ("column", "text", "message", "clock"):
                float(cell or 0)


@pytest.mark.parametrize("begins", FORMULAS)
def test_no_cell_is_a_formula(begins: str) -> None:
    """A column's name holds a model's, and a message may hold anything."""
    record = race_of("kv")
    columns = (record.columns[0].on(OwnModel("=1+1", "fake")),)
    cell = f'{begins}HYPERLINK("https://a.b","c")'
    (line,) = lines(replace(record, columns=columns, events=(Failed(0, cell),)))
    assert (line["message"], line["text"]) == (f"'{cell}", "failed")
    assert not any(value.startswith(FORMULAS) for value in line.values())


def test_every_table_leaves_numbers_numbers_and_texts_texts() -> None:
    """A benchmark's table once had a writer of its own, and its categories ran as formulas."""
    row = [-1.5, None, 3, "-2.5", "+1e-06", "-2+3", "@A1", "\n=1", "a\n=1", "a,b"]
    (read,) = csv.reader(StringIO(csv_of([row]), newline=""))
    assert read == ["-1.5", "", "3", "-2.5", "+1e-06", "'-2+3", "'@A1", "'\n=1", "a\n=1", "a,b"]


def cells(text: str) -> list[list[str]]:
    """Those of a Markdown table's lines; an escaped pipe is no border."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row.replace("\\|", "").strip("|").split("|") for row in rows]


def test_the_markdown_says_who_won_with_what_where() -> None:
    record = race_of("kv lookup:k=3", 60)
    text, made = markdown(record), board(record)
    assert text.startswith(headline(made).replace("_", "\\_")[:20])
    rows = cells(text)
    assert len(rows) == 2 + 2
    assert {len(row) for row in rows} == {len(figures("table")) + 2}
    speedup = figures("table")[0].cell(made.scores[1], made.baseline)
    assert [cell.strip() for cell in rows[3]][:2] == ["Prompt lookup", speedup]
    assert record.made in text


def test_the_markdown_has_one_prediction_of_a_column() -> None:
    """Its table had 0.99x where its text said that 0.78x was predicted: the one by what passes cost
    in the race, the other by what they were known to cost before it.
    """
    record = race_of("kv lookup:k=3", 60)
    costs = CostsKnown(1, list(STEEP.widths), list(STEEP.seconds), STEEP.width_change, 0.0)
    began = next(i for i, event in enumerate(record.events) if isinstance(event, Started))
    known = (*record.events[: began + 1], costs, *record.events[began + 1 :])
    against = "at the start, the predicted speed-up was 0.78"
    told = (*known, Decided(1, {}, 0.78, "", [against]))

    def predicted(events: tuple[Event, ...]) -> str:
        heads, _, *rows = cells(markdown(replace(record, events=events)))
        return rows[1][[head.strip() for head in heads].index("predicted")].strip()

    assert predicted(known) != NONE
    assert predicted(told) == NONE
    assert "0.78" in markdown(replace(record, events=told))


def test_nothing_in_a_record_is_markup() -> None:
    record = race_of("kv lookup", 12)
    name = "a|b\n# c <script>d</script> [e](https://f) *g* `h` &amp;"
    columns = (record.columns[0], record.columns[1].on(OwnModel(name, "fake")))
    failed = (*record.events, Failed(1, f"No {name}."))
    text = markdown(replace(record, columns=columns, events=failed))
    assert len({len(row) for row in cells(text)}) == 1
    assert "\\<script\\>d" in text
    bare = re.sub(r"\\.", "", text)
    assert not set(bare) & set("\\<>[]*`&#_~")
    assert len({len(row) for row in cells(bare)}) == 1
