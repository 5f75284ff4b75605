"""A record's file: the same record comes back from it, or a sentence."""

import json
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from recordings import EVERY, RECORDS, race_of

from backend.errors import DerbyError
from backend.records.document import document_of
from backend.records.file import MAX_BYTES, as_bytes, from_bytes, load, require_folder, save
from backend.records.record import RaceRecord, board
from backend.results.sentences import headline, ledger, reason, verdict


def checked(rest: str) -> bytes:
    """A file that says this behind its checksum, which is right."""
    return b'{"check":"%08x",' % crc32(rest.encode()) + rest.encode()


def refusal(data: bytes, most: int = MAX_BYTES) -> str:
    with pytest.raises(DerbyError) as caught:
        from_bytes(data, most)
    return str(caught.value)


@given(RECORDS)
def test_any_record_survives_its_file(record: RaceRecord) -> None:
    assert from_bytes(as_bytes(record)) == record


@given(RECORDS)
def test_whatever_is_read_can_be_drawn(record: RaceRecord) -> None:
    """Events that no race would tell in such an order must not break a page that shows them."""
    made = board(from_bytes(as_bytes(record)))
    assert isinstance(headline(made) + ledger(made), str)
    for index in range(len(made.columns)):
        assert isinstance(verdict(made, index) + reason(made, index), str)


def test_a_race_of_every_strategy_survives_and_looks_the_same() -> None:
    record = race_of(EVERY)
    read = from_bytes(as_bytes(record))
    assert read == record
    assert board(read).scores == board(record).scores


def test_the_file_is_json_for_others_too() -> None:
    record = race_of("kv lookup")
    read = json.loads(as_bytes(record))
    assert len(read.pop("check")) == 8
    assert read == document_of(record)


def test_what_was_changed_since_is_refused() -> None:
    data = as_bytes(race_of("kv"))
    assert "changed or damaged" in refusal(data.replace(b"Why is it so", b"Who is it so"))
    assert "changed or damaged" in refusal(data[:-1])
    assert "checksum" in refusal(json.dumps(json.loads(data), indent=1).encode())
    assert "checksum" in refusal(b"")


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('"a":NaN}', "NaN is no number"),
        ('"a":-Infinity}', "-Infinity is no number"),
        ('"a":' + "[" * 10**5, "recursion"),
        ('"a":' + "[" * 10**5 + "]" * 10**5 + "}", "recursion"),
        ('"a":' + "9" * 10**5 + "}", "digits"),
        ('"a":"\\ud800"}', "surrogates not allowed"),
        ('"a":"\\ud83d\\ude00"}', '"format"'),
        ('"a":1', "delimiter"),
        ("", "Expecting"),
    ],
)
def test_what_is_no_json_of_ours_is_refused(rest: str, said: str) -> None:
    assert said in refusal(checked(rest))


def test_more_bytes_than_asked_for_are_not_read() -> None:
    data = as_bytes(race_of("kv"))
    assert from_bytes(data, len(data)) == race_of("kv")
    assert f"longer than {len(data) - 1:,} bytes" in refusal(data, len(data) - 1)


def test_the_longest_race_fits() -> None:
    """Twelve columns of 8,192 tokens, each in a step of its own."""
    steps = len(as_bytes(race_of("kv", 48))) - len(as_bytes(race_of("kv", 24)))
    assert steps / 24 * 12 * 8192 < MAX_BYTES


def test_a_file_is_there_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "race.json"
    save(race_of("kv"), path)
    assert load(path) == race_of("kv")
    assert list(tmp_path.iterdir()) == [path]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backend.records.file.os.fsync", full)
    with pytest.raises(DerbyError, match="No space left on device"):
        save(race_of("lookup"), path)
    assert load(path) == race_of("kv")
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_where_nothing_can_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    require_folder(tmp_path / "race.json")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "no" / "race.json", tmp_path / "file" / "race.json"):
        for refused in (require_folder, lambda p: save(race_of("kv"), p), load):
            with pytest.raises(DerbyError, match="name another file"):
                refused(path)
