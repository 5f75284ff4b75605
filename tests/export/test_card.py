"""The result as a picture: all there, nothing on top of another, nothing that could be run."""

import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from boards import LONG, LONG_PAIRS, priced, started, written
from hypothesis import given, settings
from PIL import Image
from recordings import EVERY, RECORDS, race_of

from backend.errors import DerbyError
from backend.events import CostsKnown, Failed, Fed, Finished
from backend.export.card import COLOURS, HEIGHT, WIDTH, card
from backend.export.curve import curve
from backend.export.drawing import Drawing, Text, png, svg
from backend.records.record import RaceRecord, board
from backend.results.figures import figure
from backend.strategies.column import OwnModel, parse_column

HOSTILE = '<script>alert("x")</script>&amp; ]]> --> \x00\x1b {{7*7}} https://a.b'


def texts(picture: Drawing) -> list[Text]:
    return [shape for shape in picture.shapes if isinstance(shape, Text) and shape.words]


def words(picture: Drawing) -> list[str]:
    return [text.words for text in texts(picture)]


def of_many(count: int, *, name: str = "") -> RaceRecord:
    """A race of so many columns of all kinds, on models of that name each."""
    names = (EVERY + " speculative:k=4 lookup:k=3 kv lookahead").split()[:count]
    record = race_of(" ".join(names), 24)
    if not name:
        return record
    columns = (column.on(OwnModel(f"{name}{i}", "fake")) for i, column in enumerate(record.columns))
    return replace(record, columns=tuple(columns), request=replace(record.request, prompt=name))


def known(count: int) -> RaceRecord:
    """A race of so many columns whose costs and drafts are known, all alike."""
    columns = tuple(parse_column("lookup") for _ in range(count))
    events = [event for i in range(count) for event in priced(i, 5, 3)]
    return replace(race_of("kv"), columns=columns, events=tuple(events))


def elements(picture: Drawing) -> Iterator[ET.Element]:
    yield from ET.fromstring(svg(picture).encode()).iter()  # noqa: S314 (our own)


def require_legible(picture: Drawing) -> None:
    """Every text is within the picture, large enough, and beside every other."""
    boxes = [(text.box, text.words) for text in texts(picture)]
    for (left, top, right, bottom), said in boxes:
        assert left >= 0, said
        assert top >= 0, said
        assert right <= WIDTH + 0.5, said
        assert bottom <= HEIGHT, said
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, f"{a!r} lies on {b!r}"
    assert min(text.size for text in texts(picture)) >= 20


def require_harmless(picture: Drawing) -> None:
    tags, attributes = set[str](), set[str]()
    for element in elements(picture):
        tags.add(element.tag.removeprefix("{http://www.w3.org/2000/svg}"))
        attributes |= set(element.attrib)
        assert not any("url(" in value for value in element.attrib.values())
    assert tags <= {"svg", "title", "rect", "circle", "polyline", "text"}
    assert not any(re.match(r"on|href|style|\{", name) for name in attributes)
    assert "<!" not in svg(picture)


@pytest.mark.parametrize(
    "name", ["", "a-model-with-a-name-as-long-as-any-can-be-1234567-", "模型" * 30]
)
@pytest.mark.parametrize("count", range(1, 13))
def test_any_number_of_columns_is_legible(count: int, name: str) -> None:
    record = of_many(count, name=name)
    require_legible(card(record))
    require_harmless(card(record))
    bars = [shape for shape in words(card(record)) if shape.endswith("tokens/s")]
    assert len(bars) == count


@pytest.mark.parametrize("count", range(1, 13))
def test_any_number_of_columns_has_its_place_at_the_curve(count: int) -> None:
    picture = curve(known(count))
    require_legible(picture)
    require_harmless(picture)
    assert words(picture).count("3.00, 3.00") == count
    for number in range(1, count + 1):
        assert words(picture).count(str(number)) >= 2


@pytest.mark.parametrize("widest", [2**power for power in range(1, 17)])
def test_a_curve_of_any_width_has_an_axis(widest: int) -> None:
    """Up to the widest that a record may tell of; at 65,536 rows two labels lay on each other."""
    costs = CostsKnown(0, [1, widest], [1.0, 3.0], 0.0, 0.0)
    picture = curve(replace(race_of("kv"), events=(started(0), costs)))
    require_legible(picture)
    rows = [
        int(text.words)
        for text in texts(picture)
        if text.anchor == "middle" and text.words.isdigit()
    ]
    assert rows[0] == 1
    assert 2 <= len(rows) <= 9


def test_it_says_what_the_page_says() -> None:
    record = race_of(EVERY, 60)
    made, said = board(record), words(card(record))
    for index, score in enumerate(made.scores):
        assert made.name(index) in said
        assert figure("speedup").text(score, made.baseline) in said
        assert f"{figure('rate').text(score, made.baseline)} tokens/s" in said
    assert {"Decode Derby", "same text", "the baseline", record.request.prompt} < set(said)
    assert any(record.made[:10] in line for line in said)
    assert any("fake fp32" in line for line in said)


def test_only_what_is_shown_has_a_colour() -> None:
    """A column whose interval holds 1 is grey, and words say so."""
    columns = tuple(map(parse_column, ("kv", "lookup", "speculative", "stateless")))
    faster, same = written(1, LONG_PAIRS, 0.11), written(2, LONG, 0.1)
    same = [replace(e, drafted=1) if hasattr(e, "drafted") else e for e in same]
    slower = written(3, LONG, 0.2)
    events = (*written(0, LONG, 0.1), *faster, *same, *slower)
    record = replace(race_of("kv"), columns=columns, events=events)
    made, found = board(record), {text.words: text.colour for text in texts(card(record))}
    assert [made.pace(i) for i in range(4)] == ["base", "faster", "", "slower"]
    for index, score in enumerate(made.scores):
        said = figure("speedup").text(score, made.baseline)
        assert found[said] == COLOURS[made.pace(index)]
    assert found["no clear difference"] == COLOURS[""]
    assert found["faster"] == COLOURS["faster"]
    assert found["slower"] == COLOURS["slower"]


def test_a_failure_is_in_its_place() -> None:
    record = race_of("kv lookup", 12)
    picture = card(replace(record, events=(*record.events, Failed(1, "No room: " + "x" * 10**5))))
    require_legible(picture)
    assert any(said.startswith("failed: No room") for said in words(picture))


def test_a_program_that_took_no_time_is_a_picture_too() -> None:
    """A record may tell of one, and its headline once divided by its time."""
    events = [e for i in (0, 1) for e in (Fed(i, 3, [], 0.0), Finished(i, "end of text", [], ""))]
    record = replace(race_of("kv lookup"), events=tuple(events))
    require_legible(card(record))
    assert "KV reuse took 0.00 s. Prompt lookup took 0.00 s." in words(card(record))
    nearly = (
        replace(event, seconds=5e-324) if isinstance(event, Fed) else event for event in events
    )
    require_legible(card(replace(record, events=tuple(nearly))))


def test_nothing_in_a_record_is_markup() -> None:
    record = known(2)
    columns = tuple(column.on(OwnModel(HOSTILE, "fake")) for column in record.columns)
    record = replace(
        record,
        columns=columns,
        request=replace(record.request, prompt=HOSTILE),
        target=replace(record.target, name=HOSTILE),
        machine=replace(record.machine, processor=HOSTILE),
        events=(*record.events, Failed(1, HOSTILE)),
    )
    for picture in (card(record), curve(record)):
        require_harmless(picture)
        require_legible(picture)
        read = [element.text for element in elements(picture) if element.tag.endswith("}text")]
        assert read == words(picture)
    assert any('<script>alert("x")</script>&amp;' in said for said in words(card(record)))


def test_the_same_record_is_the_same_picture_in_the_size_that_links_are_shown_in() -> None:
    record = known(5)
    for made in (card, curve):
        first = png(made(record))
        assert Image.open(BytesIO(first)).size == (1200, 630)
        assert len(first) < 100_000
        assert first == png(made(replace(record)))
        assert svg(made(record)) == svg(made(replace(record)))


def test_a_race_without_costs_has_no_curve() -> None:
    record = race_of("kv").without(["CostsKnown"])
    assert card(record).shapes
    with pytest.raises(DerbyError, match="there is no curve: run `tune`"):
        curve(record)


@settings(max_examples=60)
@given(RECORDS)
def test_any_record_is_a_legible_picture(record: RaceRecord) -> None:
    require_legible(card(record))
    require_harmless(card(record))
    try:
        picture = curve(record)
    except DerbyError:
        return
    require_legible(picture)
    require_harmless(picture)
