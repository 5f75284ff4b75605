"""The picture of a race: all there, nothing on top of another, nothing that could be run."""

import csv
import re
from dataclasses import replace
from io import StringIO
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from boards import LONG, LONG_PAIRS, started, written
from hypothesis import given
from recordings import EVERY, RECORDS, race_of

from backend.events import Conditions, Failed
from backend.export.picture import WINNER, picture_of
from backend.export.tables import csv_table, markdown
from backend.records.file import from_bytes
from backend.records.record import RaceRecord, board
from backend.results.figures import FIGURES, factor, span
from backend.results.result import result_of
from backend.strategies.column import OwnModel, parse_column

ASSETS = Path(__file__).resolve().parents[2] / "assets"
HOSTILE = '<script>alert("x")</script>&amp; ]]> --> \x00\x1b {{7*7}} https://a.b'


def of_many(count: int, *, name: str = "") -> RaceRecord:
    """A race of so many columns of all kinds, on models of that name each."""
    names = (EVERY + " speculative:k=4 lookup:k=3 kv lookahead").split()[:count]
    record = race_of(" ".join(names), 24)
    if not name:
        return record
    columns = (column.on(OwnModel(f"{name}{i}", "fake")) for i, column in enumerate(record.columns))
    return replace(record, columns=tuple(columns), request=replace(record.request, prompt=name))


def elements(picture: str) -> list[ET.Element]:
    return list(ET.fromstring(picture.encode()).iter())  # noqa: S314 (our own)


def words(picture: str) -> list[str]:
    return [each.text or "" for each in elements(picture) if each.tag.endswith("}text")]


Box = tuple[float, float, float, float]


def box_of(element: ET.Element) -> Box:
    """Left, top, right and bottom of a line of words, in a font of usual width."""
    x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
    width = 0.52 * size * len(element.text or "")
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]] * width
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def require_legible(picture: str) -> None:
    """Every text is within the picture and beside every other."""
    root, *_ = elements(picture)
    boxes = [(box_of(e), e.text) for e in elements(picture) if e.tag.endswith("}text") and e.text]
    for (left, top, right, bottom), said in boxes:
        inside = min(left, top) >= 0 and right <= float(root.attrib["width"])
        assert inside, said
        assert bottom <= float(root.attrib["height"]), said
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, f"{a!r} lies on {b!r}"


def require_harmless(picture: str) -> None:
    """Nothing in it runs, links or comes from elsewhere, whatever a race says."""
    found = elements(picture)
    tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in found}
    assert tags <= {"svg", "title", "desc", "rect", "circle", "polyline", "text"}
    attributes = {name for element in found for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name}
    assert found[0].attrib["role"] == "img"


def test_bars_are_the_numbers_beside_them() -> None:
    record = from_bytes((ASSETS / "opening.json").read_bytes())
    result, picture = result_of(board(record)), picture_of(record)
    bars = [float(wide) for wide in re.findall(r'width="([\d.]+)" height="30.0"', picture)][1::2]
    speeds = [row.speedup.value for row in result.rows]
    one = bars[1] / speeds[1]
    assert bars == pytest.approx([one * speed for speed in speeds], abs=0.2)
    said = words(picture)
    for row in result.rows:
        assert row.name in said
        assert any(factor(row.speedup.value) in each for each in said)
    assert picture.count(WINNER) == 3, "the name above, the winner's bar and number"
    require_legible(picture)


def test_a_noisy_race_has_ranges_and_no_numbers() -> None:
    record = from_bytes((ASSETS / "opening.json").read_bytes())
    noisy = replace(record, events=(*record.events, Conditions(2, 0.9)))
    result, said = result_of(board(noisy)), words(picture_of(noisy))
    known = [row.speedup for row in result.rows if row.speedup.known]
    assert result.doubt == "noisy"
    assert known
    assert all(any(span(ratio).strip() in each for each in said) for ratio in known)
    assert not any(factor(row.speedup.value) in each for row in result.rows for each in said)


def test_a_failed_column_says_so() -> None:
    events = [*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1)]
    events += [started(2), Failed(2, "The memory ran out.")]
    columns = tuple(parse_column(name) for name in ("kv", "lookup", "lookahead"))
    picture = picture_of(replace(race_of("kv"), columns=columns, events=tuple(events)))
    assert "failed" in words(picture)
    require_legible(picture)


@pytest.mark.parametrize("count", [1, 2, 6, 12])
@pytest.mark.parametrize("name", ["", "x" * 300, HOSTILE])
def test_any_number_of_columns_is_legible_and_harmless(count: int, name: str) -> None:
    picture = picture_of(of_many(count, name=name))
    require_harmless(picture)
    require_legible(picture)


@given(RECORDS)
def test_whatever_a_record_says_can_be_written(record: RaceRecord) -> None:
    """Events that no race would tell in such an order must not break what shows them."""
    require_harmless(picture_of(record))
    assert len(list(csv.reader(StringIO(csv_table(record), newline="")))) == 1 + len(record.columns)
    rows = [line for line in markdown(record).splitlines() if line.startswith("|")]
    wide = {row.replace("\\|", "").count("|") for row in rows}
    assert (len(rows), wide) == (2 + len(record.columns), {len(FIGURES) + 3})
