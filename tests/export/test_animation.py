"""The picture that moves: lanes where their columns were, and nothing that could be run."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given
from recordings import RECORDS, race_of

from backend.export.animation import BEGIN, LENGTH, animation, photo_finish
from backend.export.svg import RULE
from backend.records.record import RaceRecord, board
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
    end = photo_finish(made.scores)
    whole = max(len(score.tokens) for score in made.scores)
    drawn = lanes(animation(record))
    assert len(drawn) == len(made.scores)
    for score, length in zip(made.scores, drawn, strict=True):
        done = sum(time <= end for time in score.times)
        after = done < len(score.times)  # a lane between two steps moves evenly
        assert done - 0.01 <= length / LENGTH * whole <= done + after * 12
    assert sorted(drawn)[-2] < max(drawn)
    assert [last_frame(animation(record), lane) for lane in range(len(drawn))] == [1.0] * len(drawn)


def test_what_a_columns_own_limit_ended_has_not_finished() -> None:
    """A stateless column stops at 32 tokens; it may well be the first to write its last one."""
    record = race_of("stateless:limit=2 kv", 24)
    stateless, kv = board(record).scores
    assert photo_finish([stateless, kv]) == kv.times[-1] > stateless.times[-1]


def test_words_of_others_stay_words() -> None:
    record = race_of("kv lookup", 12)
    request = replace(record.request, prompt=HOSTILE)
    require_harmless(animation(replace(record, request=request)))


@given(RECORDS)
def test_whatever_a_record_says_can_be_drawn(record: RaceRecord) -> None:
    require_harmless(animation(record))
