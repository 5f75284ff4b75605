"""A record's file: the same record comes back from it, or a sentence."""

import json
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from recordings import EVERY, RECORDS, race_of

from backend.errors import DerbyError
from backend.records.document import MAX_VALUES, document_of
from backend.records.file import MAX_BYTES, as_bytes, from_bytes, load, require_folder, save
from backend.records.link import decode, encode
from backend.records.record import RaceRecord, board


def checked(rest: str) -> bytes:
    """A file that says this behind its checksum, which is right."""
    return b'{"check":"%08x",' % crc32(rest.encode()) + rest.encode()


#: What a sound file says behind its checksum.
REST = as_bytes(race_of("kv")).partition(b",")[2].decode()


def refusal(data: bytes, most: int = MAX_BYTES) -> str:
    with pytest.raises(DerbyError) as caught:
        from_bytes(data, most)
    return str(caught.value)


@given(RECORDS)
def test_any_record_survives_its_file_and_its_link(record: RaceRecord) -> None:
    assert from_bytes(as_bytes(record)) == record
    assert decode(encode(record)) == record
    assert record.published(str) == record, "it has no names to hide"


def test_a_race_of_every_strategy_survives_and_looks_the_same() -> None:
    record = race_of(EVERY, 60, 0.8)
    for read in (from_bytes(as_bytes(record)), decode(encode(record))):
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
        ('"a":NaN}', "'format' is missing"),
        (f'{REST[:-1]},"more":NaN}}', "'more' is not known"),
        (REST.replace('"cores":', '"cores":NaN,"more":'), "must be a finite number"),
        ('"a":' + "[" * 10**5, "recursion limit"),
        ('"a":' + "[" * 10**5 + "]" * 10**5 + "}", "recursion limit"),
        ('"a":' + "9" * 10**5 + "}", "out of range"),
        ('"a":"\\ud800"}', "not JSON"),
        ('"a":"\\ud83d\\ude00"}', "'format' is missing"),
        ('"a":1', "not JSON"),
        ("", "not JSON"),
        ('"a":[' + "{}," * 5 * 10**6 + "{}]}", "are the most"),
    ],
)
def test_what_is_no_json_of_ours_is_refused(rest: str, said: str) -> None:
    """60 MB of `{}` took 6.8 s to parse, and more memory than a small machine has."""
    assert said in refusal(checked(rest))


def test_more_bytes_than_asked_for_are_not_read() -> None:
    data = as_bytes(race_of("kv"))
    assert from_bytes(data, len(data)) == race_of("kv")
    assert f"longer than {len(data) - 1:,} bytes" in refusal(data, len(data) - 1)


def test_the_longest_race_fits() -> None:
    """Twelve columns of 8,192 tokens, each in a step of its own, with what was proposed in it and
    the five most probable tokens.
    """
    short, long = (as_bytes(race_of("lookup:k=4", tokens)) for tokens in (24, 48))
    assert (len(long) - len(short)) / 24 * 12 * 8192 < MAX_BYTES
    values = [sum(map(data.count, (b",", b"[", b"{"))) for data in (short, long)]
    assert (values[1] - values[0]) / 24 * 12 * 8192 < MAX_VALUES


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
