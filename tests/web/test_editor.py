"""The grammar editor answers whatever it is sent, and no visitor keeps it from another."""

import asyncio
from typing import Any

import pytest

from backend.grammar.check import MAX_TEXT
from backend.web import editor
from backend.web.editor import SOUND, look

#: llguidance forces one more "a" for ever.
HOSTILE = ("lark", "start: /a+/ /a+/", "")
GOOD = ("regex", "a+b", "aa")
FITS = "The whole text fits, and it may not end here."


def looked(kind: Any, text: Any, sample: Any) -> tuple[str, str]:
    return asyncio.run(look(kind, text, sample))


def test_it_answers_whatever_it_is_sent() -> None:
    assert looked(*GOOD) == (SOUND, FITS)
    assert looked("regex", "a+b", "aax")[1] == (
        "Accepted up to character 2 of 3; 'x' cannot follow."
    )
    assert looked("regex", "a+b", None)[1].startswith("Nothing has been written yet")
    for kind, text in (("ebnf", "a"), (None, None), ("lark", ""), ("lark", {"a": 1}), ([], "a")):
        sound, fits = looked(kind, text, "x")
        assert sound.startswith("The grammar")
        assert fits == ""


def test_texts_that_are_too_long_are_said_to_be() -> None:
    long = "a" * 5_000_000
    assert f"5000000 characters long; the limit is {MAX_TEXT}" in looked("regex", "a*", long)[0]
    assert "5000000 bytes long; the limit is" in looked("regex", long, "")[0]


def test_grammars_that_run_for_ever_leave_the_editor_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor, "DEADLINE", 0.3)

    async def scene() -> None:
        hostile = [asyncio.create_task(look(*HOSTILE)) for _ in range(4)]
        assert await look(*GOOD) == (SOUND, FITS)
        assert all("longer than 0.3 s" in sound for sound, _ in await asyncio.gather(*hostile))

    asyncio.run(scene())
