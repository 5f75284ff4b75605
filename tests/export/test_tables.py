"""The tables of a race: figures as numbers, and whatever a record says is text."""

import csv
import re
from dataclasses import replace
from io import StringIO

import pytest
from recordings import race_of

from backend.events import Failed
from backend.export.tables import FORMULAS, csv_of, csv_table, markdown
from backend.records.record import RaceRecord, board
from backend.results.figures import FIGURES
from backend.results.result import result_of
from backend.results.sentences import headline
from backend.strategies.column import OwnModel


def lines(record: RaceRecord) -> list[dict[str, str]]:
    read = list(csv.reader(StringIO(csv_table(record), newline="")))
    assert {len(line) for line in read} == {len(read[0])}
    return [dict(zip(read[0], line, strict=True)) for line in read[1:]]


def test_every_figure_of_the_table_is_a_number_or_nothing() -> None:
    record = race_of("kv lookup:k=3 grammar", 60)
    result, (base, lookup, _) = result_of(board(record)), lines(record)
    assert [lookup["column"], base["column"]] == ["Prompt lookup (k=3)", "KV reuse"]
    row, score = result.rows[1], result.rows[1].score
    assert float(lookup["TPOT, ms"]) == pytest.approx(1e3 / row.rate, rel=1e-5)
    assert float(lookup["accepted, %"]) == pytest.approx(score.acceptance * 100, rel=1e-5)
    assert float(lookup["speed-up"]) == pytest.approx(row.speedup.value, rel=1e-5)
    assert float(lookup["tokens"]) == score.length
    assert (base["guessed, tokens"], base["verdict"], lookup["text"]) == (
        "",
        "baseline",
        "same text",
    )
    for entry in FIGURES:
        assert any(heading.startswith(entry.title) for heading in lookup)
    for line in lines(record):
        for heading, cell in line.items():
            if heading not in ("column", "verdict", "text", "message"):
                float(cell or 0)


@pytest.mark.parametrize("begins", FORMULAS)
def test_no_cell_is_a_formula(begins: str) -> None:
    """A column's name holds a model's, and a message may hold anything."""
    record = race_of("kv")
    columns = (record.columns[0].on(OwnModel("=1+1", "fake")),)
    cell = f'{begins}HYPERLINK("https://a.b","c")'
    (line,) = lines(replace(record, columns=columns, events=(Failed(0, cell),)))
    assert line["message"] == f"'{cell}"
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
    text, result = markdown(record), result_of(board(record))
    assert text.startswith(headline(board(record), result)[:20])
    rows = cells(text)
    assert len(rows) == 2 + 2
    assert {len(row) for row in rows} == {len(FIGURES) + 2}
    speedup = FIGURES[0].cell(result.rows[1])
    assert [cell.strip() for cell in rows[3]][:2] == ["Prompt lookup", speedup]
    assert record.made in text


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
