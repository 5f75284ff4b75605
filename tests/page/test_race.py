"""A race as the page runs it, over the fake engine in this process: drawings only grow, others who
wait end a long one, and what a browser keeps of it opens the same race.
"""

import asyncio
import gzip
import json
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.form import Form, read_race
from backend.grammar.sources import GrammarSource
from backend.limits import Limits
from backend.offer import Offer, offer_of
from backend.racing.hosts import Host
from backend.racing.line import Line
from backend.records.file import as_bytes, from_bytes
from page import race, settings
from page.api import report_of
from page.bench import plan_of
from page.race import Run, drawn, packed, unpacked
from page.settings import checked

HERE = offer_of(("fake",), ())
SHORT = replace(HERE, limits=Limits(seconds=1))
ENDLESS = {"prompt": "Long one 7", "max_new_tokens": 3900, "model": "fake-slow", "lineup": "kv"}
TWO = {"prompt": "Long one 7", "max_new_tokens": 60, "lineup": "kv\nspeculative:k=3", "seed": 4}


def drawings_of(
    form: dict[str, Any],
    offer: Offer = HERE,
    *,
    others: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> tuple[list[dict[str, Any]], Run]:
    """What is drawn of a race, in its order, to its end or until that is enough, and the race."""

    async def collect() -> tuple[list[dict[str, Any]], Run]:
        drawings, runs, line, rest = list[Any](), list[Run](), Line(4), ExitStack()
        async with aclosing(drawn(Host(), line, offer, form, "one")) as pairs:
            async for drawing, run in pairs:
                drawings.append(drawing)
                runs.append(run)
                if others and len(drawings) == 1:
                    rest.enter_context(line.place("other"))
                if enough():
                    break
        return drawings if runs[-1].over else [*drawings, runs[-1].end()], runs[-1]

    return asyncio.run(collect())


def test_drawings_only_grow_and_the_last_says_what_was_raced() -> None:
    drawings, run = drawings_of(TWO)
    steps = [[column["steps"] for column in drawing["columns"]] for drawing in drawings]
    for before, after in pairwise(steps):
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert len({drawing["race"] for drawing in drawings}) == 1
    assert [drawing["phase"] for drawing in drawings].count("ended") >= 1
    assert drawings[0]["prompt"] == TWO["prompt"]
    assert "60 new tokens" in drawings[0]["about"]
    race, asked = read_race(drawings[-1]["form"], HERE), read_race(TWO, HERE)
    assert (race.request, race.columns, race.target) == (asked.request, asked.columns, asked.target)
    assert run.over


def test_what_a_browser_keeps_of_a_race_is_that_race() -> None:
    drawings, run = drawings_of(TWO)
    record = from_bytes(unpacked(drawings[-1]["record"]))
    assert record == run.record
    opened = Run(record, HERE).draw()
    assert opened["columns"] == drawings[-1]["columns"]
    assert opened["about"] == drawings[-1]["about"]


def test_what_is_no_record_is_refused_however_long_it_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = b64encode(gzip.compress(b"{}" * 99)[:20]).decode()
    for text in ("", "no base64", b64encode(b"no gzip").decode(), packed(b"{}"), cut):
        with pytest.raises(DerbyError, match=r"record|room"):
            from_bytes(unpacked(text))
    monkeypatch.setattr(race, "MOST_BYTES", 1000)
    with pytest.raises(DerbyError, match="1,000 bytes"):
        unpacked(packed(bytes(1001)))


def test_no_code_is_written_of_models_that_are_not_offered() -> None:
    """A record may name any file of this machine."""
    _, run = drawings_of(TWO)
    here = replace(run.record.target, name="/etc")
    foreign = from_bytes(as_bytes(replace(run.record, target=here)))
    assert Run(foreign, HERE).snippets == {}


@pytest.mark.parametrize("others", [True, False])
def test_a_long_race_ends_where_others_wait(*, others: bool) -> None:
    begun = iter(range(12))  # looks, four a second
    drawings, run = drawings_of(
        ENDLESS, SHORT, others=others, enough=lambda: not others and next(begun, None) is None
    )
    assert run.overdue == others
    assert drawings[-2]["columns"][0]["state"] == ("stopped" if others else "decoding")


def test_what_fails_every_column_alike_is_one_error() -> None:
    with pytest.raises(DerbyError, match="context"):
        drawings_of({"prompt": "word " * 9000, "lineup": "kv\nlookup"})


def test_a_call_waits_in_the_same_line_and_says_that_it_was_ended() -> None:
    async def gone() -> bool:
        return False

    async def three() -> list[dict[str, Any]]:
        line, host = Line(4), Host()
        forms = {"a": ENDLESS, "b": ENDLESS, "c": TWO}
        calls = (report_of(host, line, SHORT, form, guest, gone) for guest, form in forms.items())
        return await asyncio.gather(*calls)

    reports = asyncio.run(three())
    assert [bool(report["ended_early"]) for report in reports] == [True, True, False]
    assert [report["columns"][0]["state"] for report in reports] == ["stopped"] * 2 + [
        "token limit"
    ]


def test_grammars_are_checked_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check may take a gigabyte."""
    together, most = 0, 0

    def check(*_: Any) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        sleeping.wait(0.01)
        together -= 1

    async def eight() -> list[Any]:
        checks, source = Line(4, "check"), GrammarSource("regex", "a", "own")
        asked = (checked(checks, guest, source, "") for guest in "aaaabbbb")
        return await asyncio.gather(*asked, return_exceptions=True)

    sleeping = threading.Event()
    monkeypatch.setattr(settings, "check", check)
    answers = asyncio.run(eight())
    assert most == 1
    refused = [str(answer) for answer in answers if isinstance(answer, DerbyError)]
    assert len(refused) == 3, "the first has its turn, two wait of each, and four places are all"


def test_every_prompt_of_a_benchmark_is_within_the_limits() -> None:
    short = replace(HERE, limits=Limits(prompt_characters=100))
    form = Form(lineup="kv").model_dump()
    assert len(plan_of("One\nTwo", form, short).jobs) == 2
    for text in (f"One\n{'a' * 101}", json.dumps({"turns": ["One", "a" * 101]})):
        with pytest.raises(DerbyError, match="101 characters"):
            plan_of(text, form, short)
