"""The grammar editor: it answers whatever it is sent, and no visitor keeps it from another."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from backend.grammar.sandbox.parent import MAX_TEXT
from backend.text import ByteTokenizer
from backend.web import editor as module
from backend.web.editor import PLACES, SOUND, Editor

#: llguidance forces one more "a" for ever.
HOSTILE = ("lark", "start: /a+/ /a+/", "")
GOOD = ("regex", "a+b", "aa")
FITS = "The whole text fits, and it may not end here. Next could be 'a', 'b'."


def made() -> Iterator[Editor]:
    editor = Editor(ByteTokenizer)
    yield editor
    editor.close()


editor = pytest.fixture(made)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Editor]:
    """Grammars get little time."""
    monkeypatch.setattr(module, "DEADLINE", 0.3)
    yield from made()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Editor]:
    """No test waits for this deadline."""
    monkeypatch.setattr(module, "DEADLINE", 600.0)
    yield from made()


def look(editor: Editor, kind: Any, text: Any, sample: Any) -> tuple[str, str]:
    return asyncio.run(editor.look("visitor", kind, text, sample))


def test_it_answers_whatever_it_is_sent(editor: Editor) -> None:
    assert look(editor, *GOOD) == (SOUND, FITS)
    assert look(editor, "regex", "a+b", None)[1].startswith("Nothing has been written yet")
    for kind, text in (("exe", "a"), (None, None), ("lark", ""), ("lark", {"a": 1}), ([], "a")):
        sound, fits = look(editor, kind, text, "x")
        assert sound.startswith("The grammar")
        assert fits == ""


def test_what_could_follow_says_that_there_is_more(editor: Editor) -> None:
    """Twelve of many were named as if they were all, and the likeliest was not among them."""
    assert look(editor, "regex", "a[b-y]", "a")[1].endswith(" and others.")
    assert look(editor, "regex", "a[b-m]", "a")[1].endswith(" 'm'.")


def test_texts_that_are_too_long_are_said_to_be(editor: Editor) -> None:
    """Five megabytes to try were cut to the limit, so that the answer was one on another text."""
    sound, fits = look(editor, "regex", "a*", "a" * 5_000_000)
    assert sound == SOUND
    assert fits == f"The text is 5000000 characters long; the limit is {MAX_TEXT}: shorten it."
    sound, fits = look(editor, "regex", "a" * 5_000_000, "")
    assert "5000000 bytes long; the limit is" in sound


def test_a_grammar_that_runs_keeps_nobody_else_waiting(patient: Editor) -> None:
    """All visitors shared one child, so that each of them waited for the deadline of another."""

    async def scene() -> None:
        hostile = asyncio.create_task(patient.look("hostile", *HOSTILE))
        while len(patient._free) == PLACES:
            await asyncio.sleep(0.01)
        assert await patient.look("other", *GOOD) == (SOUND, FITS)
        assert not hostile.done()
        patient.close()
        assert "sandbox" in (await hostile)[0]

    asyncio.run(scene())


def test_six_hostile_visitors_leave_the_editor_alive(hasty: Editor) -> None:
    """Six such grammars held the six threads that the page has for all of its work."""

    async def scene() -> None:
        visitors = [f"hostile {n}" for n in range(6)]
        tasks = [asyncio.create_task(hasty.look(name, *HOSTILE)) for name in visitors]
        sound, fits = await hasty.look("other", *GOOD)
        assert (sound, fits) == (SOUND, FITS)
        assert all("longer than 0.3 s" in sound for sound, _ in await asyncio.gather(*tasks))
        again = [asyncio.create_task(hasty.look(name, *HOSTILE)) for name in visitors]
        await asyncio.sleep(0)
        assert await hasty.look("other", *GOOD) == (SOUND, FITS)
        assert sum(task.done() for task in again) < len(again), "before all who took long"
        await asyncio.gather(*again)

    asyncio.run(scene())


def test_a_child_without_use_ends(patient: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.0)

    async def scene() -> None:
        await patient.look("visitor", *GOOD)
        while any(sandbox.pid for sandbox in patient._sandboxes):
            await asyncio.sleep(0.01)
        assert await patient.look("visitor", *GOOD) == (SOUND, FITS)

    asyncio.run(scene())
