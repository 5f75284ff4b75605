"""Visitors' snapshots: whoever has an id may load one, and each deletes only their own."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from streams import shown

from backend.kvcache import cache_file
from backend.limits import Limits
from backend.racing.hosts.inline import InlineHost
from backend.web.api import values_of
from backend.web.controller import Controller
from backend.web.offer import offer_of
from backend.web.visitors import Visitors

FORM = values_of(
    offer_of(["fake"]), {"prompt": "Tell me a secret", "columns": ["kv"], "max_new_tokens": 12}
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "snapshots"


def saved(controller: Controller, visitor: str) -> tuple[str, str]:
    """The id and the sentence of saving the column that the visitor has just run."""

    async def scene() -> tuple[str, str]:
        assert "alert" not in await shown(controller, visitor, controller.race(visitor, FORM))
        return await controller.save(visitor, controller.labels(visitor)[0])

    return asyncio.run(asyncio.wait_for(scene(), 60))


def page(limits: Limits = Limits()) -> Controller:  # noqa: B008 (frozen)
    return Controller(Visitors(InlineHost(limits), limits), offer_of(["fake"], limits=limits))


def test_a_visitor_sees_and_deletes_only_what_they_saved(cache: Path) -> None:
    """Eight clicks on Save wrote 644 MB, and no visitor could delete one."""
    controller = page()
    name, sentence = saved(controller, "hash-of-ann")
    assert sentence.endswith("is saved.")
    (line, listed), *more = controller.saved("hash-of-ann")
    assert (listed, more) == (name, [])
    assert "kv, " in line
    assert controller.saved("hash-of-bob") == []
    assert "was not saved in this browser" in controller.delete("hash-of-bob", name)[1]
    restoring = controller.restore("hash-of-bob", name, 5)
    loaded = asyncio.run(shown(controller, "hash-of-bob", restoring))
    assert "alert" not in loaded
    assert "is deleted" in controller.delete("hash-of-ann", f" {name} ")[1]
    assert controller.saved("hash-of-ann") == []
    assert list(cache.iterdir()) == []
    for rubbish in (name, None, 5, "../x", "/etc/passwd"):
        assert "was not saved in this browser" in controller.delete("hash-of-ann", rubbish)[1]


def test_a_file_does_not_tell_whose_it_is(cache: Path) -> None:
    controller = page()
    saved(controller, "hash-of-ann")
    (path,) = cache.iterdir()
    assert b"hash-of-ann" not in path.read_bytes()
    assert "hash-of-ann" not in path.name
    assert page().saved("hash-of-ann") == [], "another page's key makes another hash"


def test_a_visitor_over_the_quota_is_told_what_to_do() -> None:
    controller = page(Limits(snapshots=1))
    first, _ = saved(controller, "ann")
    name, sentence = saved(controller, "ann")
    assert name == ""
    assert sentence.startswith("You keep 1 snapshots, and the limit is 1: delete one")
    assert saved(controller, "bob")[0], "another visitor has a quota of their own"
    controller.delete("ann", first)
    assert saved(controller, "ann")[0]


def test_a_full_disk_names_no_folder_to_a_visitor(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The visitor read the server's path; the operator, who needs it, has it in the log."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cache))

    monkeypatch.setattr(cache_file.os, "fsync", fail)
    name, sentence = saved(page(), "ann")
    assert name == ""
    assert "No space left on device" in sentence
    assert "/" not in sentence
    assert str(cache) in caplog.text
    assert list(cache.iterdir()) == []
