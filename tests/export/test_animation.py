"""The picture that moves: lanes where their columns were, and nothing that could be run."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from recordings import RECORDS, race_of

from backend.export.animation import BEGIN, LENGTH, animation
from backend.export.svg import RULE
from backend.records.record import RaceRecord, board
from backend.results.track import photo_finish, position
from backend.web.examples import opening

HOSTILE = '</style><script>alert("x")</script>&amp; } * {display:none} ]]> \x00 https://a.b'


def elements(picture: str) -> list[ET.Element]:
    return list(ET.fromstring(picture.encode()).iter())  # noqa: S314 (our own)


def lanes(picture: str) -> list[float]:
    """How long each lane is where nothing moves."""
    return [
        float(each.attrib["width"])
        for each in elements(picture)
        if each.tag.endswith("}rect")
        and float(each.attrib.get("x", 0)) == BEGIN
        and each.attrib["fill"] != RULE
    ]


def last_frame(picture: str, lane: int) -> float:
    """The part of its own length that a lane has at the end of its movement."""
    rules = re.search(rf"@keyframes b{lane}\{{(.*?)\}}\}}", picture)
    assert rules is not None
    return float(re.findall(r"scaleX\(([\d.]+)\)", rules[1])[-1])


def require_harmless(picture: str) -> None:
    found = elements(picture)
    tags = {element.tag.removeprefix("{http://www.w3.org/2000/svg}") for element in found}
    assert tags <= {"svg", "style", "title", "desc", "rect", "circle", "polyline", "text", "g"}
    attributes = {name for element in found for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or "href" in name}
    (style,) = (each.text or "" for each in found if each.tag.endswith("}style"))
    assert not re.search(r"url|import|display|script|https?:", style)


def test_lanes_stand_where_they_were_when_the_first_had_finished() -> None:
    """Every lane of the card's bars ends full, so a picture of the end shows no race."""
    record = opening()
    made = board(record)
    finish = photo_finish(made)
    assert finish is not None
    whole = max(len(score.tokens) for score in made.scores)
    drawn = lanes(animation(record))
    for index, (score, length) in enumerate(zip(made.scores, drawn, strict=True)):
        done = position(made, index, finish.seconds)
        step = max(moment.tokens for moment in score.moments)
        # A lane between two steps moves evenly.
        assert done - 0.1 <= length / LENGTH * whole <= done + step + 0.1
    assert drawn[finish.column] == max(drawn)
    assert sorted(drawn)[-2] < max(drawn)
    assert [last_frame(animation(record), lane) for lane in range(len(drawn))] == [1.0] * len(drawn)


@pytest.mark.parametrize("columns", ["stateless:limit=2 kv", "kv"])
def test_a_race_that_one_or_nobody_finished_is_drawn(columns: str) -> None:
    """A column that its own limit ended has not finished, so the other one's end is the end."""
    record = race_of(columns, 24)
    assert max(lanes(animation(record))) == LENGTH


def test_words_of_others_stay_words() -> None:
    record = race_of("kv lookup", 12)
    request = replace(record.request, prompt=HOSTILE)
    require_harmless(animation(replace(record, request=request)))


@given(RECORDS)
def test_whatever_a_record_says_can_be_drawn(record: RaceRecord) -> None:
    require_harmless(animation(record))
