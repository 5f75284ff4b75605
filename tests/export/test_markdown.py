"""The result for documents: one table, and whatever a record says is text."""

import re
from dataclasses import replace

from hypothesis import given
from recordings import RECORDS, race_of

from backend.events import Failed
from backend.export.markdown import markdown
from backend.records.record import RaceRecord, board
from backend.results.figures import figures
from backend.results.sentences import headline
from backend.strategies.column import OwnModel


def table(text: str) -> list[list[str]]:
    """The cells of the table's lines; an escaped pipe is no border."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row.replace("\\|", "").strip("|").split("|") for row in rows]


def test_it_says_who_won_with_what_where() -> None:
    record = race_of("kv lookup:k=3", 60)
    text, made = markdown(record), board(record)
    assert text.startswith(headline(made).replace("_", "\\_")[:20])
    rows = table(text)
    assert len(rows) == 2 + 2
    assert {len(row) for row in rows} == {len(figures("table")) + 2}
    assert [cell.strip() for cell in rows[3]][:2] == [
        "Prompt lookup",
        figures("table")[0].cell(made.scores[1], made.baseline),
    ]
    assert record.made in text


def test_nothing_in_a_record_is_markup() -> None:
    record = race_of("kv lookup", 12)
    name = "a|b\n# c <script>d</script> [e](https://f) *g* `h` &amp;"
    columns = (record.columns[0], record.columns[1].on(OwnModel(name, "fake")))
    text = markdown(
        replace(record, columns=columns, events=(*record.events, Failed(1, f"No {name}.")))
    )
    assert len({len(row) for row in table(text)}) == 1
    assert "\\<script\\>d" in text
    bare = re.sub(r"\\.", "", text)
    assert not set(bare) & set("\\<>[]*`&#_~")
    assert all(len(row) == len(table(text)[0]) for row in table(bare))


@given(RECORDS)
def test_any_record_is_a_table_of_as_many_cells(record: RaceRecord) -> None:
    rows = table(markdown(record))
    assert len(rows) == 2 + len(record.columns)
    assert {len(row) for row in rows} == {len(figures("table")) + 2}
