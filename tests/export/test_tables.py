"""A race as a table and a picture: the picture's bars are the numbers beside them, and whatever a
record says is text there: no markup, nothing that runs. No text of a CSV table is a formula.
"""

import csv
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from race_records import RECORDS, race_of

from backend.events import Conditions, Failed
from backend.export.picture import WINNER, picture_of
from backend.export.tables import csv_of, markdown
from backend.records.file import from_bytes
from backend.records.record import RaceRecord
from backend.results.figures import FIGURES, factor
from backend.results.result import result_of
from backend.strategies.column import OwnModel, names_of

OPENING = Path(__file__).resolve().parents[2] / "assets" / "opening.json"
HOSTILE = (
    '<script>alert("x")</script>&amp; | # [e](https://f) *g* `h` ]]> --> \x00\x1b {{7*7}}\n# c'
    " @name #1 WWW.a.b a@b.c ftp://d"
)


@pytest.mark.parametrize("begins", ["", "a;", "a;;", "a\t", "a\n"])
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", "\n", '"='])
def test_no_cell_is_a_formula_whatever_parts_cells(begins: str, sign: str) -> None:
    """A column's name holds a model's. Numbers stay numbers, and other texts as they are."""
    text = f'{begins}{sign}HYPERLINK("https://a.b","c")'
    (cells,) = csv.reader(StringIO(csv_of([[text, -1.5, None, "a; =b", "a,-b"]]), newline=""))
    assert cells[0].replace("'", "") == text
    assert f"{begins}'{sign}" in cells[0]
    assert cells[1:] == ["-1.5", "", "a; =b", "a,-b"]


def rows_of(text: str) -> list[list[str]]:
    """The cells of a Markdown table's lines; an escaped pipe is no border."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row.replace("\\|", "").strip("|").split("|") for row in rows]


def test_nothing_in_a_record_is_markup() -> None:
    record = race_of("kv lookup", 12)
    columns = (record.columns[0], record.columns[1].on(OwnModel(HOSTILE, "fake")))
    failed = (*record.events, Failed(1, f"No {HOSTILE}."))
    text = markdown(replace(record, columns=columns, events=failed))
    assert "\\<script\\>" in text
    bare = re.sub(r"\\.", "", text)
    assert not set(bare) & set("\\<>[]*`&#_~")
    # GitHub links these behind a backslash, too.
    assert not re.search(r"[@#]\w|www\.|://", text, re.IGNORECASE)
    for each in (text, bare):
        assert {len(row) for row in rows_of(each)} == {len(FIGURES) + 2}
    assert words(picture_of(replace(record, columns=columns)))


def words(picture: str) -> list[str]:
    """What stands in it. Nothing in it runs, links or comes from elsewhere."""
    elements = list(ET.fromstring(picture.encode()).iter())  # noqa: S314 (our own)
    tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in elements}
    assert tags <= {"svg", "title", "desc", "rect", "text"}
    attributes = {name for element in elements for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name}
    return [element.text or "" for element in elements if element.tag.endswith("}text")]


def test_bars_are_the_numbers_beside_them_but_of_a_noisy_race() -> None:
    record = from_bytes(OPENING.read_bytes())
    result, picture = result_of(record.board), picture_of(record)
    bars = [float(wide) for wide in re.findall(r'width="([\d.]+)" height="30.0"', picture)][1::2]
    speeds = [row.speedup.value for row in result.rows]
    assert bars == pytest.approx([bars[1] / speeds[1] * speed for speed in speeds], abs=0.2)
    assert picture.count(WINNER) == 1 + 2 * len(result.leaders), "the name above, bars and numbers"
    noisy = words(picture_of(replace(record, events=(*record.events, Conditions(0.9)))))
    for row in result.rows:
        number = factor(row.speedup.value)
        assert any(number in each for each in words(picture))
        assert not any(number in each for each in noisy)


def test_prompt_and_names_stand_in_the_picture_whatever_their_letters() -> None:
    record = race_of("kv speculative:k=4 speculative:k=5 kv")
    model = OwnModel("owner/A-model-with-a-name-Instruct-Q4_K_M.gguf", "torch")
    columns = (*record.columns[:3], record.columns[3].on(model))
    record = replace(record, columns=columns, request=replace(record.request, prompt="为何" * 99))
    drawn = words(picture_of(record))
    assert f"{'为何' * 14}..." in drawn
    assert {"Speculative", "(k=4)", "(k=5)", "KV reuse"} <= set(drawn)
    assert names_of(columns)[3].replace(" ", "") in "".join(drawn).replace(" ", "")


@given(RECORDS)
def test_whatever_a_record_says_can_be_written(record: RaceRecord) -> None:
    """Events that no race would tell in such an order must not break what shows them."""
    assert words(picture_of(record))
    table = rows_of(markdown(record))
    assert {len(row) for row in table} == {len(FIGURES) + 2}
    assert len(table) == 2 + len(record.columns)
