"""The table for spreadsheets: figures as numbers, and nothing that is computed there."""

import csv
from dataclasses import replace
from io import StringIO

import pytest
from recordings import race_of

from backend.events import Failed
from backend.export.csv_table import FORMULAS, csv_table
from backend.records.record import RaceRecord, board
from backend.results.figures import figures
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
    assert float(lookup["tokens"]) == score.written
    assert base["drafted, tokens"] == ""
    assert base["text"] == "the baseline"
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
    assert line["message"] == f"'{cell}"
    assert line["text"] == "failed"
    assert not any(value.startswith(FORMULAS) for value in line.values())
