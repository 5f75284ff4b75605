"""A record's link: the same record comes back from it, or a sentence."""

import lzma
import random
import sys
import tracemalloc
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from recordings import FIVE, as_measured, race_of

from backend.errors import DerbyError
from backend.limits import PUBLIC
from backend.records import link as module
from backend.records.document import write_document
from backend.records.file import as_bytes, from_bytes
from backend.records.link import (
    DETAILS,
    KEPT,
    MAX_BYTES,
    MAX_CHARACTERS,
    PASTED,
    decode,
    encode,
    is_link,
    link,
)
from backend.records.record import RaceRecord, board
from backend.web.export import MOST_BESIDE

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
    """A file of this race has 300 bytes a token, and none of them repeats another."""
    record = as_measured(race_of(FIVE, 60))
    assert len(encode(record)) * 12 < len(as_bytes(record))
    assert len(encode(record.settings)) < 1100


def test_an_ordinary_race_fits_whole() -> None:
    """A visitor copied the link of one of 200 tokens in four columns, and it was an empty track."""
    record = as_measured(race_of(FIVE, 200))
    made = link(record)
    assert made.holds == "all"
    assert decode(made.text) == record
    longer = as_measured(race_of(FIVE, 500))
    assert link(longer).holds == "all but details"
    assert link(longer, KEPT).holds == "all"


def test_what_a_browser_keeps_can_be_read_and_sent() -> None:
    """Fifty links in its storage, one in an address, and some in a request to a public page."""
    assert len("https://huggingface.co/spaces/#race=") + KEPT < MAX_CHARACTERS
    assert 50 * KEPT < 5_000_000 / 2
    assert PUBLIC.request_bytes > MOST_BESIDE * KEPT + 20_000


def test_a_link_of_the_form_before_is_read() -> None:
    assert decode(deflated(write_document(RECORD))) == RECORD


def test_it_is_read_out_of_an_address() -> None:
    made = link(RECORD)
    assert made.text == TEXT
    for text in (made.text, made.fragment, f"https://a.b/c?d=e{made.fragment}", f" {TEXT}\n"):
        assert is_link(text)
        assert decode(text) == RECORD


@pytest.mark.parametrize(
    "text", ["", "a", "race.json", "/srv/a", "#", "#race=", "dQk0", TEXT + "=", f"#{TEXT}#", "a\0b"]
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
    for form in (sealed, deflated):
        bomb = form(b" " * (MAX_BYTES + 1))
        assert len(bomb) < MAX_CHARACTERS
        assert f"more than {MAX_BYTES:,} bytes" in refusal(bomb)
        bomb = form(b" " * 20 * MAX_BYTES)
        tracemalloc.start()
        assert f"more than {MAX_BYTES:,} bytes" in refusal(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
        tracemalloc.stop()
    assert "characters" in refusal("c" * (MAX_CHARACTERS + 1))
    assert "Only an earlier version" in refusal("a" + TEXT[1:])


def test_what_would_unfold_beyond_all_bounds_is_refused() -> None:
    """A name of a thousand letters for each of so many events, and as much text beside them."""
    name = b"n" * 1000

    def unfolding(events: int, text: int) -> str:
        column = b",".join([b"0"] * events)
        shape = b'{"which":[%b],"shapes":[{"%b":[%b]}]}' % (column, name, column)
        return refusal(sealed(b'{"events":%b,"text":"%b"}' % (shape, b" " * text)))

    assert "'format' is missing" in unfolding(600, 400_000)
    assert f"more than {MAX_BYTES:,} bytes" in unfolding(600, 600_000)
    assert "too long" in unfolding(100_000, 0)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 5000])
def test_a_number_that_json_has_not_is_refused(number: bytes) -> None:
    assert "not a record" in refusal(sealed(b'{"events":[],"a":%b}' % number))
    assert "not a record" in refusal(sealed(b'{"events":[{"a":%b}]}' % number))


def test_each_changed_character_is_found() -> None:
    """By the checksum: LZMA alone takes some of them for other text."""
    for at in range(1, len(TEXT) - 1):
        other = "-" if TEXT[at] != "-" else "_"
        assert "the link is damaged" in refusal(f"{TEXT[:at]}{other}{TEXT[at + 1 :]}")


def deflated(data: bytes) -> str:
    """A link of the form before."""
    return "b" + urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


def sealed(data: bytes) -> str:
    """A link of this JSON, its checksum right."""
    packed = lzma.compress(data, lzma.FORMAT_RAW, filters=module._PACKING)
    coded = urlsafe_b64encode(zlib.crc32(packed).to_bytes(4) + packed)
    return "c" + coded.decode().rstrip("=")


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


#: How the JSON of each form is made and sealed, its checksum right.
FORMS = {
    "file": (
        write_document,
        lambda data: b'{"check":"%08x",' % zlib.crc32(data[1:]) + data[1:],
    ),
    "link": (module._folded, lambda data: sealed(data).encode()),
    "link before": (write_document, lambda data: deflated(data).encode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_damaged_or_forged_one_is_refused_or_can_be_drawn(form: str) -> None:
    """None takes more work than twice what a sound one takes. What is damaged under its checksum is
    refused or equal; of what was sealed anew, what it says is judged by its own.
    """
    write, seal = FORMS[form]
    data = write(RECORD)
    sound = seal(data)
    read, most = outcome(form, sound)
    assert read == RECORD
    chance, drawn = random.Random(form), 0
    damaged, forged = damages(sound, chance), damages(data, chance)
    for _ in range(1000):
        record, work = outcome(form, next(damaged))
        assert record is None or record == RECORD
        assert work <= 2 * most
        record, work = outcome(form, seal(next(forged)))
        assert work <= 2 * most
        if record is not None:
            drawn += 1
            board(record)
    assert drawn > 20
