"""A record's link: the same record comes back from it, or a sentence."""

import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from recordings import EVERY, RECORDS, race_of

from backend.errors import DerbyError
from backend.events import Step
from backend.records import link as module
from backend.records.file import as_bytes, from_bytes
from backend.records.link import (
    FEWER,
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
from backend.records.rounding import rounded

RECORD = race_of("kv lookup:k=3 grammar", 16)
TEXT = encode(RECORD)


def refusal(text: str) -> str:
    with pytest.raises(DerbyError) as caught:
        decode(text)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@settings(derandomize=True, max_examples=300)
@given(RECORDS)
def test_any_record_survives_its_link(record: RaceRecord) -> None:
    assert decode(encode(record)) == record


def test_a_race_of_every_strategy_survives_and_looks_the_same() -> None:
    record = race_of(EVERY, 60, 0.8)
    read = decode(encode(record))
    assert read == record
    assert board(read).scores == board(record).scores


def test_a_link_is_short() -> None:
    """A file of this race has 150 bytes a token."""
    record = race_of("kv lookup speculative lookahead stateless", 60)
    assert len(encode(record)) * 8 < len(as_bytes(record))
    assert len(encode(record.settings)) < 400
    assert len(link(record).text) <= LONGEST


def test_it_is_read_out_of_an_address() -> None:
    made = link(RECORD)
    assert made.text == TEXT
    for text in (made.text, made.fragment, f"https://a.b/c?d=e{made.fragment}", f" {TEXT}\n"):
        assert is_link(text)
        assert decode(text) == RECORD


@pytest.mark.parametrize(
    "text", ["", "a", "race.json", "/srv/a", "#", "#race=", "bQk0", TEXT + "=", f"#{TEXT}#", "a\0b"]
)
def test_what_is_no_link_is_refused(text: str) -> None:
    assert "no link to a race: copy the whole of it" in refusal(text)
    assert not is_link(text)


def slowed(record: RaceRecord) -> RaceRecord:
    """The record with steps that take as long as a model's, to 10 us."""
    rng = random.Random(1)
    times = [{"total": rng.randrange(2000, 4000) / 1e5} for _ in record.events]
    told = zip(record.events, times, strict=True)
    events = tuple(replace(e, seconds=t) if isinstance(e, Step) else e for e, t in told)
    return replace(record, events=events)


def test_what_does_not_fit_is_left_out_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DETAILS", ("CostsKnown", "Decided"))
    record = slowed(race_of("kv lookup speculative", 40))
    brief = record.without(module.DETAILS)
    wanted = {
        "all": record,
        "all but details": brief,
        "rounded": rounded(brief, FEWER[-1]),
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


def test_a_record_without_events_is_its_settings() -> None:
    made = link(RECORD.settings, PASTED)
    assert (made.holds, decode(made.text)) == ("settings", RECORD.settings)


def test_what_no_reader_would_take_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that repeats itself is short as a link, however long it is."""
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    made = link(RECORD, MAX_CHARACTERS)
    assert made.holds == "settings"
    assert decode(made.text) == RECORD.settings


def test_the_dictionary_stays_what_it_is() -> None:
    """Every link was made with it. Another one needs another letter, and this one stays."""
    digest = sha256(module._DICTIONARY).hexdigest()
    assert digest == "09b2cd2450305fa67b68e343c1685d6ac57a14ebb3152c7d8626b10c45621d4f"


def test_what_would_inflate_beyond_all_bounds_is_refused() -> None:
    bomb = module._blocks([b" " * (MAX_BYTES + 1)])
    assert len(bomb) < MAX_BYTES // 500
    assert f"more than {MAX_BYTES:,} bytes" in refusal(text_of(bomb))
    assert "characters" in refusal("a" * (MAX_CHARACTERS + 1))


def text_of(packed: bytes) -> str:
    return "a" + module.urlsafe_b64encode(packed).decode().rstrip("=")


def forged(change: Callable[[dict[str, Any]], Any]) -> str:
    """A link whose checksum is right, and whose head is not."""
    parts = unpacked()
    head = json.loads(parts[0])
    change(head)
    return text_of(module._blocks([json.dumps(head).encode() + b"\n", *parts[1:]]))


def unpacked() -> list[bytes]:
    """The parts that the record's link deflates."""
    data = module._inflated(module.urlsafe_b64decode(TEXT[1:] + "==")[:-4])
    head, _, planes = data.partition(b"\n")
    texts, high = json.loads(head)["sizes"]
    return [head + b"\n", planes[:texts], planes[texts : texts + high], planes[texts + high :]]


HEADS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "sizes beyond": lambda head: head.update(sizes=[10**9, 1]),
    "sizes below 0": lambda head: head.update(sizes=[-1, 1]),
    "sizes of another kind": lambda head: head.update(sizes="ab"),
    "no sizes": lambda head: head.pop("sizes"),
    "no columns": lambda head: head.pop("columns"),
    "no order": lambda head: head.pop("order"),
    "an order of one event more": lambda head: head.update(order=["t", [0, 0, 0, 0, 0]]),
    "an order of unknown kinds": lambda head: head.update(order=["t", [99]]),
    "an order of many": lambda head: head.update(order=["t", [0] * 10**5]),
    "an order of texts": lambda head: head.update(order=["t", "abc"]),
    "a form that grows": lambda head: head["events"].update(step=["t", {"texts": "a" * 10**5}]),
    "a deep form": lambda head: head.update(order=nested(400)),
    "a kind that is none": lambda head: head["events"].update(Ended=["t", {}]),
    "another version": lambda head: head.update(version=2),
}


def nested(depth: int) -> Any:
    form: Any = ["t", 0]
    for _ in range(depth):
        form = ["l", ["t", 1], form]
    return form


@pytest.mark.parametrize("what", HEADS)
def test_a_forged_head_is_refused(what: str) -> None:
    assert decode(forged(lambda head: None)) == RECORD
    refusal(forged(HEADS[what]))


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


def outcome(read: Callable[[], RaceRecord]) -> tuple[RaceRecord | None, int]:
    """What was read, None if a sentence came instead, and the work it took."""
    found = None
    with Work() as work, suppress(DerbyError):
        found = read()
    return found, work.calls


FORMS: dict[str, tuple[bytes, Callable[[bytes], RaceRecord]]] = {
    "file": (as_bytes(RECORD), from_bytes),
    "link": (TEXT.encode(), lambda data: decode(data.decode("latin-1"))),
}


@pytest.mark.parametrize("form", FORMS)
def test_of_damaged_ones_each_is_refused_or_equal(form: str) -> None:
    """7,500 files and as many links, with those forged below 10,000 each; and none takes more work
    than twice what a sound one takes.
    """
    data, read = FORMS[form]
    sound, most = outcome(lambda: read(data))
    assert sound == RECORD
    found = damages(data, random.Random(form))
    for _ in range(7500):
        damaged = next(found)
        record, work = outcome(lambda damaged=damaged: read(damaged))
        assert record is None or record == RECORD
        assert work <= 2 * most


def test_of_forged_files_each_is_refused_or_a_record_that_can_be_drawn() -> None:
    """Their checksum is right: what they say is judged by its own."""
    data = as_bytes(RECORD)
    _, most = outcome(lambda: from_bytes(data))
    found = damages(data[20:], random.Random("forged files"))
    read = 0
    for _ in range(2500):
        rest = next(found)
        whole = b'{"check":"%08x",' % zlib.crc32(rest) + rest
        record, work = outcome(lambda whole=whole: from_bytes(whole))
        assert work <= 2 * most
        if record is not None:
            read += 1
            board(record)
    assert read > 100


def test_of_forged_links_each_is_refused_or_a_record_that_can_be_drawn() -> None:
    parts, rng = unpacked(), random.Random("forged links")
    _, most = outcome(lambda: decode(TEXT))
    found, read = [damages(part, rng) for part in parts], 0
    for _ in range(2500):
        which, changed = rng.randrange(4), list(parts)
        changed[which] = next(found[which])
        text = text_of(module._blocks(changed))
        record, work = outcome(lambda text=text: decode(text))
        assert work <= 4 * most
        if record is not None:
            read += 1
            board(record)
    assert read > 100
