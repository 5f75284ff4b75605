"""A race that that is exported is read back as it was, whatever it is exported as."""

import asyncio
import json
import re
import zlib
from base64 import b64encode
from dataclasses import replace
from secrets import token_hex
from typing import Any

import pytest
from recordings import EVERY, FIVE, as_measured, race_of
from streams import shown

from backend.cli.replay import FORMS
from backend.errors import DerbyError
from backend.events import Started, Step
from backend.export.tables import csv_table
from backend.grammar.sources import GrammarSource
from backend.racing.hosts.inline import InlineHost
from backend.records.file import as_bytes
from backend.records.link import KEPT, LONGEST, PASTED, encode
from backend.records.record import RaceRecord, board
from backend.results.sentences import gist
from backend.strategies.column import parse_column
from backend.types import ModelSpec
from backend.web.controller import Controller
from backend.web.export import (
    FILES,
    compared,
    file_of,
    form_of,
    link_of,
    read_shared,
    settings_link,
    side_by_side,
)
from backend.web.form import read_race
from backend.web.offer import Offer, offer_of
from backend.web.opened import OpenedRaces
from backend.web.view import View, recorded_view
from backend.web.visitors import Visitors

OFFER = offer_of(["fake"])


def seen(record: RaceRecord) -> bytes:
    """What a page shows of it; its number is that of the moment."""
    return json.dumps({**recorded_view(record), "race": 0}).encode()


@pytest.mark.parametrize("name", EVERY.split())
def test_every_kind_of_column_looks_the_same_after_a_link_a_page_and_a_file(name: str) -> None:
    record = race_of(f"kv {name}")
    exported = (encode(record), file_of(record, "html").content, file_of(record, "json").content)
    for text in exported:
        assert seen(read_shared(text)) == seen(record)
    assert csv_table(read_shared(exported[0])) == file_of(record, "csv").content


def test_a_replay_page_holds_little_beside_its_record() -> None:
    """What it shows once took 290 KB of 400 in a race of five columns."""
    record = race_of(EVERY, 200)
    page = file_of(record, "html").content
    kept = len(b64encode(zlib.compress(as_bytes(record), 9)))
    assert len(page.encode()) - kept < 200_000
    assert len(json.dumps(seen(record).decode())) > 50_000, "a race worth packing"


def test_a_link_says_what_it_holds_and_where_it_fits() -> None:
    fragment, note = link_of(race_of("kv", 12))  # the digits of its times vary
    assert fragment.startswith("#race=")
    assert note == "It holds the whole race. It is short enough for most chats."
    record = race_of("kv stateless lookup speculative", 60)
    _, note = link_of(record)
    assert re.fullmatch(
        r"It holds the whole race\. With \d,\d00 characters it is too long for some chat apps\.",
        note,
    )
    _, note = link_of(record, len(encode(record)) - 1)
    assert note.startswith("It holds the race without the details of its steps. With ")


def test_a_link_that_holds_only_settings_is_not_praised() -> None:
    """It was "short enough for most chats", and a colleague saw an empty track."""
    record = race_of("kv lookup")
    room = len(encode(record.settings))
    fragment, note = link_of(record, room)
    assert room < PASTED
    assert read_shared(fragment) == record.settings
    assert note.startswith("It holds only the settings, because the race is too long:")
    assert "short enough" not in note
    long = replace(record, request=replace(record.request, prompt=token_hex(PASTED)))
    _, note = link_of(long, len(encode(long.settings)))
    assert note.endswith("characters it is too long for some chat apps.")


def test_the_form_asks_for_the_very_same_race_again() -> None:
    own = GrammarSource("regex", "a+", "my own")
    record = race_of("kv lookup:k=3 grammar", 24, 0.5)
    columns = (*record.columns[:2], parse_column("grammar:grammar=own", own))
    request = replace(record.request, stop=("\n\n", "end"), chat=False, top=3)
    record = replace(record, columns=columns, request=request)
    form = form_of(read_shared(settings_link(record)), Offer(OFFER.runtimes, ("fake-loop",)))
    race = read_race(form, Offer(OFFER.runtimes, ("fake-loop",)))
    assert (race.request, race.columns, race.target) == (request, columns, record.target)


def test_a_model_that_is_not_offered_is_left_out() -> None:
    record = replace(race_of("kv"), target=ModelSpec("/srv/secret", "fake"))
    assert "model" not in form_of(record, OFFER)


@pytest.mark.parametrize("text", [None, "", "#race=", "{}", "<!doctype html>", "x" * (1 << 23)])
def test_what_is_no_race_is_one_sentence(text: Any) -> None:
    with pytest.raises(DerbyError, match=r"\.$"):
        read_shared(text)
    with pytest.raises(DerbyError, match="choose from html, json"):
        file_of(race_of("kv"), "exe")


def test_a_race_that_is_run_again_is_compared_column_by_column() -> None:
    record = race_of("kv lookup")
    lines = compared(record, record.request, board(record))
    assert [line.partition(":")[0] for line in lines] == ["KV reuse", "Prompt lookup"]
    assert all(": same text; recorded " in line for line in lines)
    assert compared(race_of("kv"), record.request, board(record)) == []
    other = replace(record.request, prompt="Another")
    assert compared(record, other, board(record)) == [], "another prompt is no repetition"


def test_races_stand_side_by_side_by_their_columns() -> None:
    table = side_by_side([encode(race_of("kv lookup")), encode(race_of("kv stateless"))], str)
    assert [line[0] for line in table["lines"]] == ["KV reuse", "Prompt lookup", "Stateless"]
    assert table["lines"][0][2].endswith("same text")
    with pytest.raises(DerbyError, match="Choose 2 to 6 races"):
        side_by_side([encode(race_of("kv"))], str)


def test_what_is_so_of_all_columns_of_a_race_is_said_once() -> None:
    """ "texts not comparable" stood in each of four lines."""
    record = race_of("kv lookup stateless")
    others = {
        "only its settings are kept": record.settings,
        "same text": replace(record, made="2026-11-24T10:20:30Z"),
        "different text": race_of("kv lookup stateless", 24, 1.5),
        "texts not comparable": replace(
            record,
            events=tuple(
                replace(event, tokenizer="else") if isinstance(event, Started) else event
                for event in record.events
            ),
        ),
    }
    table = side_by_side([encode(each) for each in (record, *others.values())], str)
    assert ":" not in table["headings"][1].partition(" UTC")[2], "it is the first"
    for number, remark in enumerate(others, 2):
        assert table["headings"][number].endswith(f"): {remark}")
        cells = [line[number] for line in table["lines"]]
        assert all(remark not in cell for cell in cells)
        assert all(("tokens/s" in cell) == (others[remark].events != ()) for cell in cells)
    table = side_by_side([encode(record), encode(race_of("kv speculative"))], str)
    assert not table["headings"][2].endswith("text"), "one column alone is compared"
    assert table["lines"][0][2].endswith("same text")


def test_a_column_without_ids_of_tokens_has_more_than_settings() -> None:
    """Of a server that sends no ids, the table said that its settings alone were kept."""
    record = race_of("kv")
    events = (
        replace(event, tokens=[], gaps=[]) if isinstance(event, Step) else event
        for event in record.events
    )
    silent, settings = replace(record, events=tuple(events)), replace(record, events=())
    ((_, told, empty),) = side_by_side([encode(silent), encode(settings)], str)["lines"]
    assert "tokens/s" in told
    assert empty == "only its settings are kept"
    assert " UTC" in side_by_side([encode(silent)] * 2, str)["headings"][1]


def test_a_visitor_exports_the_race_on_show_and_looks_into_it() -> None:
    """That is the one which was opened, until there is another race; a tab that still shows it
    says so.
    """
    record = race_of("kv lookup")

    async def scene() -> tuple[View, ...]:
        controller = Controller(Visitors(InlineHost()), OFFER)
        nothing = controller.export("v", {"ask": "json", "form": "mine"})
        _, there = controller.open("v", encode(record))
        opened = (
            controller.export("v", {"ask": "json"}),
            controller.inspect("v", {"column": 1, "index": 0}),
        )
        form = form_of(record, OFFER) | {"prompt": "Else", "model": "0"}
        view = await shown(controller, "v", controller.race("v", form))
        assert view["fragment"].startswith("#race=")
        for _ in range(200):
            later = controller.export("v", {"ask": "json"})
            if "file" in later:
                break
            await asyncio.sleep(0.01)
        missing = controller.inspect("v", {"column": 9, "index": True})
        other_tab = controller.export("v", {"ask": "json", "race": there["race"]})
        assert read_shared(other_tab["file"][2]) == record
        gone = controller.inspect("v", {"column": 0, "index": 0, "race": 7})
        assert gone["note"].startswith("This race is no longer in memory")
        return nothing, there, *opened, later, missing

    nothing, there, opened, step, later, missing = asyncio.run(scene())
    assert nothing == {"form": "mine", "note": "Nothing has run yet: run a race first."}
    assert there["recorded"].startswith("Recorded on ")
    assert read_shared(opened["file"][2]) == record
    assert (step["at"], step["column"]) == ([1, 0], "Prompt lookup")
    assert read_shared(later["file"][2]).request.prompt == "Else"
    assert missing["note"].startswith("There is no such step")
    assert {*FILES, "link"} == set(FORMS)


def test_a_browser_keeps_of_a_long_race_what_no_link_to_be_pasted_holds() -> None:
    record = as_measured(race_of(FIVE, 500))
    assert LONGEST < len(encode(record)) < KEPT

    async def scene() -> list[View]:
        controller = Controller(Visitors(InlineHost()), OFFER)
        controller.open("v", file_of(record, "json").content)
        return [controller.export("v", {"ask": ask}) for ask in ("link", "kept")]

    pasted, kept = asyncio.run(scene())
    assert read_shared(pasted["link"]) != record
    assert read_shared(kept["link"]) == record
    assert pasted["about"] == kept["about"]


def test_a_list_of_races_tells_the_question_behind_worked_examples() -> None:
    """It told how every prompt with the same examples begins."""
    assert gist("Do as here.\nTwice.\n\nA: b\n\n \nC: d\n\nE:") == "Do as here. \u2026 E:"
    assert gist("Why?\n\nSay it in one word.") == "Why?\n\nSay it in one word."


def test_a_race_that_was_opened_is_kept_small_and_until_its_visitor_leaves() -> None:
    """Those of two hundred visitors stayed as they had been read, also of who had left."""
    record = race_of("kv lookup", 200)
    races = OpenedRaces(2)
    for number, visitor in enumerate("uvwv", 1):
        races.keep(visitor, number, record)
    assert races.record("u") is None, "one too many, and the oldest"
    assert (races.number("u"), races.number("v"), races.number("w")) == (0, 4, 3)
    assert races.record("v") == record
    kept = sum(len(packed) for _, packed in races._kept.values())
    assert kept < len(as_bytes(record)), "two of them take less than one that is as it was saved"
    races.forget("v")
    assert races.record("v") is None


def test_a_page_forgets_what_a_visitor_opened_who_has_left() -> None:
    visitors = Visitors(InlineHost())
    controller = Controller(visitors, OFFER)
    controller.open("v", encode(race_of("kv")))
    assert "file" in controller.export("v", {"ask": "json"})
    for leave in visitors.leavers:
        leave("v")
    assert controller.export("v", {"ask": "json"})["note"].startswith("Nothing has run yet")
