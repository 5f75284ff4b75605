"""The pictures of a race: all there, nothing on top of another, nothing that could be run."""

import csv
import re
from dataclasses import replace
from io import StringIO
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from boards import LONG, LONG_PAIRS, priced, started, step, written
from hypothesis import given
from recordings import EVERY, RECORDS, race_of

from backend.events import Conditions, Failed, Fed, Finished
from backend.export.cost_curve import draw_costs
from backend.export.picture import LENGTH, picture_of
from backend.export.svg import COLOURS, fitted, text
from backend.export.tables import csv_table, markdown
from backend.records.record import RaceRecord, board
from backend.results.charts import cost_curve
from backend.results.figures import figure, figures
from backend.results.track import length_at, photo_finish
from backend.strategies.column import OwnModel, parse_column
from backend.web.examples import opening

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


def test_the_picture_says_what_the_board_says() -> None:
    record = of_many(4)
    said, made = " ".join(words(picture_of(record))), board(record)
    assert record.request.prompt in said
    assert "fake-loop" in said
    for index in range(len(made.columns)):
        assert made.name(index) in said
        gain = figure("speedup").text(made.scores[index], made.baseline)
        assert gain.split()[0] in said.split()  # its interval is there where there is room


def test_what_is_shown_to_be_faster_has_its_colour_and_what_failed_its_reason() -> None:
    events = [*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1)]
    events += [started(2), Failed(2, "The memory ran out.")]
    columns = tuple(parse_column(name) for name in ("kv", "lookup", "lookahead"))
    picture = picture_of(replace(race_of("kv"), columns=columns, events=tuple(events)))
    assert COLOURS["faster"] in picture
    assert COLOURS["slower"] not in picture
    assert "failed: The memory ran out." in words(picture)


def test_a_wide_interval_lies_on_no_number() -> None:
    """ "no clear difference (0.55-10.36)" lay on the number behind the winner's lane: the interval
    stands there alone, and says as much.
    """
    costs = [(0.05, 0.2)[i // 5 % 2] for i in range(len(LONG))]
    ours = [started(1), *(step(1, tokens, cost) for tokens, cost in zip(LONG, costs, strict=True))]
    events = (*written(0, LONG, 0.1), *ours, Finished(1, "token limit", []))
    record = replace(race_of("kv"), columns=(parse_column("kv"), parse_column("lookup")))
    record = replace(record, events=events)
    picture = picture_of(record)
    low, high = board(record).gain(1).interval or (0, 0)
    assert f"{low:.2f}\u2013{high:.2f}" in words(picture)
    require_legible(picture)


def test_the_foot_holds_its_sentences_whole() -> None:
    """They shared a line, and each was cut in its middle: The timings are unreliable: others
    too...43% of the machine.
    """
    events = [*written(0, LONG, 0.1), Conditions(2, 0.43, 0.0, 0.0)]
    record = replace(race_of("kv"), columns=(parse_column("kv"),), events=tuple(events))
    machine = replace(record.machine, processor="A processor with quite a long name @ 2.20GHz")
    picture = picture_of(replace(record, machine=machine))
    *_, where, doubt = words(picture)
    assert machine.processor in where
    assert doubt == "Speeds may be off: others used 43% of the machine."
    require_legible(picture)


def test_a_program_is_told_by_its_time() -> None:
    events = [started(0), Fed(0, 3, [["fixed", "a"]], 0.5), *written(0, LONG[:4], 0.5)]
    record = replace(race_of("kv"), columns=(parse_column("kv"),), events=tuple(events))
    assert "3.50 s" in words(picture_of(record))


def test_words_are_cut_in_any_script() -> None:
    for words_ in ("a" * 400, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 400, "\x1b[2J" + "b" * 99):
        made = fitted(words_, 200, 20)
        assert "\N{HORIZONTAL ELLIPSIS}" in made
        assert len(made) <= 20
        assert made.isprintable()
    assert fitted("short", 200, 20) == "short"
    assert "&lt;b&gt;" in text(0, 0, "<b>", 10)


@pytest.mark.parametrize("count", [1, 2, 6, 12])
@pytest.mark.parametrize("name", ["", "x" * 300, HOSTILE])
def test_any_number_of_columns_is_legible_and_harmless(count: int, name: str) -> None:
    picture = picture_of(of_many(count, name=name))
    require_harmless(picture)
    require_legible(picture)


@given(RECORDS)
def test_whatever_a_record_says_can_be_drawn(record: RaceRecord) -> None:
    """Events that no race would tell in such an order must not break a page that shows them."""
    require_harmless(picture_of(record))
    assert len(list(csv.reader(StringIO(csv_table(record), newline="")))) == 1 + len(record.columns)
    rows = [line for line in markdown(record).splitlines() if line.startswith("|")]
    wide = {row.replace("\\|", "").count("|") for row in rows}
    assert (len(rows), wide) == (2 + len(record.columns), {len(figures("table")) + 3})


@pytest.mark.parametrize("count", [1, 12])
def test_what_passes_cost_is_drawn_for_every_column_and_no_mark_hides_another(count: int) -> None:
    columns = tuple(parse_column("lookup").on(OwnModel(HOSTILE)) for _ in range(count))
    events = [event for i in range(count) for event in priced(i, 5, 3)]
    record = replace(race_of("kv"), columns=columns, events=tuple(events))
    costs = cost_curve(board(record))
    assert costs is not None
    picture = draw_costs(costs)
    require_harmless(picture)
    assert sum("Prompt lookup" in each for each in words(picture)) == count
    centres = [
        (float(e.attrib["cx"]), float(e.attrib["cy"]))
        for e in elements(picture)
        if e.tag.endswith("circle") and e.attrib["r"] == "9" and float(e.attrib["cx"]) < 490
    ]
    assert len(centres) == count
    for (ax, ay), (bx, by) in combinations(centres, 2):
        assert (ax - bx) ** 2 + (ay - by) ** 2 >= 17.8**2


def test_the_lanes_are_those_of_the_page() -> None:
    record = opening()
    made, picture = board(record), picture_of(record)
    finish = photo_finish(made)
    assert finish is not None
    lanes = [float(wide) for wide in re.findall(r'width="([\d.]+)" height="30"', picture)][1::2]
    reached = [length_at(made, i, finish) for i in range(len(made.scores))]
    assert lanes == pytest.approx([LENGTH * n / max(reached) for n in reached], abs=0.1)
    assert "1st" in words(picture)
    require_legible(picture)
