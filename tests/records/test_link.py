"""A record's link: the same record comes back from it, or a sentence."""

import random
import sys
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from recordings import race_of

from backend.errors import DerbyError
from backend.records import link as module
from backend.records.file import as_bytes, from_bytes
from backend.records.link import (
    DETAILS,
    LONGEST,
    MAX_BYTES,
    MAX_CHARACTERS,
    PASTED,
    decode,
    encode,
    is_link,
    link,
)
from backend.records.record import RaceRecord, board

RECORD = race_of("kv lookup:k=3 grammar", 16)
TEXT = encode(RECORD)


def refusal(text: str) -> str:
    with pytest.raises(DerbyError) as caught:
        decode(text)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_a_link_is_short() -> None:
    """A file of this race has 150 bytes a token."""
    record = race_of("kv lookup speculative lookahead stateless", 60)
    assert len(encode(record)) * 5 < len(as_bytes(record))
    assert len(encode(record.settings)) < 1000
    assert len(link(record).text) <= LONGEST


def test_it_is_read_out_of_an_address() -> None:
    made = link(RECORD)
    assert made.text == TEXT
    for text in (made.text, made.fragment, f"https://a.b/c?d=e{made.fragment}", f" {TEXT}\n"):
        assert is_link(text)
        assert decode(text) == RECORD


@pytest.mark.parametrize(
    "text", ["", "a", "race.json", "/srv/a", "#", "#race=", "cQk0", TEXT + "=", f"#{TEXT}#", "a\0b"]
)
def test_what_is_no_link_is_refused(text: str) -> None:
    assert "not a link to a race: copy all of it" in refusal(text)
    assert not is_link(text)


def test_what_does_not_fit_is_left_out() -> None:
    record = race_of("kv lookup speculative", 40)
    wanted = {
        "all": record,
        "all but details": record.without(DETAILS),
        "settings": record.settings,
    }
    lengths = {holds: len(encode(part)) for holds, part in wanted.items()}
    assert sorted(lengths.values(), reverse=True) == list(lengths.values())
    for holds, part in wanted.items():
        made = link(record, lengths[holds])
        assert made.holds == holds
        assert decode(made.text) == part
    with pytest.raises(DerbyError, match="save a file instead"):
        link(record, lengths["settings"] - 1)


def test_what_no_reader_would_take_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that repeats itself is short as a link, however long it is."""
    assert link(RECORD.settings, PASTED).holds == "settings", "there is no more of it"
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    made = link(RECORD, MAX_CHARACTERS)
    assert (made.holds, decode(made.text)) == ("settings", RECORD.settings)


def test_what_would_inflate_beyond_all_bounds_is_refused() -> None:
    bomb = zlib.compress(b" " * (MAX_BYTES + 1), 9)
    assert len(bomb) < MAX_BYTES // 500
    assert f"more than {MAX_BYTES:,} bytes" in refusal(text_of(bomb))
    assert "characters" in refusal("b" * (MAX_CHARACTERS + 1))
    assert "Only an earlier version" in refusal("a" + TEXT[1:])


def text_of(packed: bytes) -> str:
    return "b" + urlsafe_b64encode(packed).decode().rstrip("=")


def damages(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The data with one flaw, again and again."""
    spliced = [b"[" * 3000, b"9" * 5000, b"1e999", b"-1", b"null", b'"', b"\\ud800", b"{", b"}"]
    while True:
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(5):
            case 0:
                yield data[:at]
            case 1:
                flipped = bytearray(data)
                flipped[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
                yield bytes(flipped)
            case 2:
                yield data[:at] + rng.choice(spliced) + data[at:]
            case 3:
                yield data[:at] + data[to:]
            case _:
                yield data[:to] + data[at:to] + data[to:]


class Work:
    """How many calls of Python's and C's functions something takes."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> "Work":
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, _frame: Any, event: str, _argument: Any) -> None:
        self.calls += event in ("call", "c_call")


def outcome(form: str, data: bytes) -> tuple[RaceRecord | None, int]:
    """What was read, None if a sentence came instead, and the work it took."""
    found = None
    with Work() as work, suppress(DerbyError):
        found = from_bytes(data) if form == "file" else decode(data.decode("latin-1"))
    return found, work.calls


def sealed(data: bytes, form: str) -> bytes:
    """The bytes of a document as a file or a link, its checksum right."""
    rest = data[1:]
    if form == "file":
        return b'{"check":"%08x",' % zlib.crc32(rest) + rest
    return text_of(zlib.compress(data)).encode()


@pytest.mark.parametrize("form", ["file", "link"])
def test_each_damaged_or_forged_one_is_refused_or_can_be_drawn(form: str) -> None:
    """None takes more work than twice what a sound one takes. What is damaged under its checksum is
    refused or equal; of what was sealed anew, what it says is judged by its own.
    """
    sound = sealed(b"{" + as_bytes(RECORD)[20:], form)
    read, most = outcome(form, sound)
    assert read == RECORD
    chance, drawn = random.Random(form), 0
    damaged, forged = damages(sound, chance), damages(b"{" + as_bytes(RECORD)[20:], chance)
    for _ in range(1000):
        record, work = outcome(form, next(damaged))
        assert record is None or record == RECORD
        assert work <= 2 * most
        record, work = outcome(form, sealed(next(forged), form))
        assert work <= 2 * most
        if record is not None:
            drawn += 1
            board(record)
    assert drawn > 20
