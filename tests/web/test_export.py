"""A race that is exported is read back as it was, and the race on show is the one exported."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from recordings import EVERY, race_of
from streams import shown

from backend.errors import DerbyError
from backend.events import Step
from backend.racing.hosts.inline import InlineHost
from backend.records.file import as_bytes
from backend.records.record import RaceRecord
from backend.results.sentences import gist
from backend.web.controller import Controller
from backend.web.export import about, file_of, read_record
from backend.web.link import form_of, read_link, settings_of
from backend.web.offer import offer_of
from backend.web.opened import OpenedRaces
from backend.web.view import View, recorded_view
from backend.web.visitors import Visitors

OFFER = offer_of(["fake"])


def text_of(record: RaceRecord) -> str:
    return as_bytes(record).decode()


def seen(record: RaceRecord) -> bytes:
    """What a page shows of it; its number is that of the moment."""
    return json.dumps({**recorded_view(record), "race": 0}).encode()


def test_every_kind_of_column_looks_the_same_after_a_file() -> None:
    record = race_of(EVERY)
    assert seen(read_record(file_of(record, "json")[2])) == seen(record)


@pytest.mark.parametrize("text", [None, "", "{}", "<!doctype html>", "x" * (1 << 23)])
def test_what_is_no_race_is_one_sentence(text: Any) -> None:
    with pytest.raises(DerbyError, match=r"\.$"):
        read_record(text)
    with pytest.raises(DerbyError, match="choose from json, csv, markdown, svg"):
        file_of(race_of("kv"), "html")


def test_a_list_of_races_tells_of_every_column_what_it_came_to() -> None:
    base, lookup = about(race_of("kv lookup"))["columns"]
    assert (base["setting"], base["name"], lookup["setting"]) == ("kv", "KV reuse", "lookup")
    assert base["text"] == lookup["text"] != about(race_of("kv", 12))["columns"][0]["text"]
    assert "tokens/s" in lookup["result"]
    record = race_of("kv")
    silent = (replace(e, tokens=[], gaps=[]) if isinstance(e, Step) else e for e in record.events)
    (column,) = about(replace(record, events=tuple(silent)))["columns"]
    assert (column["text"], "tokens/s" in column["result"]) == ("", True)


def test_a_visitor_exports_the_race_on_show_and_looks_into_it() -> None:
    """That is the one which was opened, until there is another race; a tab that still shows it
    says so.
    """
    record = race_of("kv lookup")

    async def scene() -> tuple[View, ...]:
        controller = Controller(Visitors(InlineHost()), OFFER)
        nothing = controller.export("v", {"form": "json"})
        _, there = controller.open("v", text_of(record))
        opened = (
            controller.export("v", {"form": "json"}),
            controller.inspect("v", {"column": 1, "index": 0}),
        )
        settings = settings_of(record.request, record.columns, record.target)
        form = {**form_of(settings, OFFER), "prompt": "Else", "model": "0", "shift": False}
        view = await shown(controller, "v", controller.race("v", form))
        asked = read_link(view["link"])
        assert asked is not None
        assert (asked.prompt, asked.columns) == ("Else", ["kv", "lookup"])
        while "file" not in (later := controller.export("v", {"form": "json"})):
            await asyncio.sleep(0.01)
        missing = controller.inspect("v", {"column": 9, "index": True})
        other_tab = controller.export("v", {"form": "json", "race": there["race"]})
        assert read_record(other_tab["file"][2]) == record
        gone = controller.inspect("v", {"column": 0, "index": 0, "race": 7})
        assert gone["note"].startswith("This race is no longer in memory")
        return nothing, there, *opened, later, missing

    nothing, there, opened, step, later, missing = asyncio.run(scene())
    assert nothing == {"form": "json", "note": "Nothing has run yet: run a race first."}
    assert there["recorded"].startswith("Recorded on ")
    assert read_record(opened["file"][2]) == record
    assert (step["at"], step["column"]) == ([1, 0], "Prompt lookup")
    assert read_record(later["file"][2]).request.prompt == "Else"
    assert missing["note"].startswith("There is no such step")


def test_a_browser_keeps_the_whole_race_unless_it_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller(Visitors(InlineHost()), OFFER)
    record = race_of("kv lookup")
    _, there = controller.open("v", text_of(record))
    kept = controller.export("v", {"form": "kept", "race": there["race"]})["kept"]
    assert (kept["id"], read_record(kept["record"])) == (there["race"], record)
    assert kept["link"] == there["link"]
    monkeypatch.setattr("backend.web.controller.KEPT", len(kept["record"]) - 1)
    assert controller.export("v", {"form": "kept"})["kept"]["record"] == ""


def test_a_list_of_races_tells_the_question_behind_worked_examples() -> None:
    """It told how every prompt with the same examples begins."""
    assert gist("Do as here.\nTwice.\n\nA: b\n\n \nC: d\n\nE:") == "Do as here. \u2026 E:"
    assert gist("Why?\n\nSay it in one word.") == "Why?\n\nSay it in one word."


def test_a_race_that_was_opened_is_kept_until_its_visitor_leaves() -> None:
    record = race_of("kv lookup", 200)
    races = OpenedRaces(2)
    for number, visitor in enumerate("uvwv", 1):
        races.keep(visitor, number, record)
    assert races.record("u") is None, "one too many, and the oldest"
    assert (races.number("u"), races.number("v"), races.number("w")) == (0, 4, 3)
    assert races.record("v") == record
    races.forget("v")
    assert races.record("v") is None
    visitors = Visitors(InlineHost())
    controller = Controller(visitors, OFFER)
    controller.open("v", text_of(race_of("kv")))
    assert "file" in controller.export("v", {"form": "json"})
    for leave in visitors.leavers:
        leave("v")
    assert controller.export("v", {"form": "json"})["note"].startswith("Nothing has run yet")
