"""GGUF files: the weights that they stand for, ids of their own tokens, and what is refused."""

import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
from tiny_gguf import TOKENIZER, tokens, write_gguf

from backend.engines.llamacpp.declaration import LLAMACPP
from backend.engines.openvino.compress import codes_on_grid
from backend.errors import DerbyError
from backend.models.files import model_files
from backend.models.gguf import SUFFIX, gguf_in, split_parts
from backend.models.gguf_header import read_header
from backend.models.gguf_llama import llama_tensors
from backend.models.gguf_tokenizer import tokenizer_from_gguf
from backend.types import ModelSpec

TEXTS = (
    "  two  spaces, a trailing one ",
    "3.14159 and 2024-11-05, it's WE'LL",
    "def f(x):\n\treturn {'a': x**2}  # ok\n\n\n",
    "family: \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "漢字とかな, 中文、한국어 é",
    "a\r\nb \r\n\r\nc",
)


def quiet(_: str) -> None: ...


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TestWeights:
    @pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
    def test_a_file_is_the_model_that_its_codes_stand_for(
        self, tmp_path: Path, cache: Path, kind: str
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        meant = write_gguf(tmp_path / "tiny.gguf", kind)
        files = model_files(str(tmp_path / "tiny.gguf"), quiet)
        assert files.folder.parent == cache
        assert (files.vocab_size, files.max_context) == (families.VOCABULARY, 256)
        assert files.eos_ids == {families.END}
        found = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32)
        expected = AutoModelForCausalLM.from_config(found.config)
        expected.load_state_dict({name: torch.from_numpy(w) for name, w in meant.items()})
        prompt = torch.tensor([[5, 99, 31, 200, 7]])
        with torch.inference_mode():
            torch.testing.assert_close(
                found(prompt).logits, expected.eval()(prompt).logits, atol=1e-6, rtol=0
            )
        for name, weight in found.state_dict().items():
            np.testing.assert_array_equal(weight.numpy(), meant[name])
            assert weight.ndim == 1 or codes_on_grid(weight.numpy()) is not None

    @pytest.mark.parametrize("family", ["llama", "llama tied"])
    def test_the_built_in_model_s_way_reads_what_transformers_reads(
        self, tmp_path: Path, family: str
    ) -> None:
        """The order of a query's and a key's rows is the trap: a wrong one still writes text."""
        meant = write_gguf(tmp_path / "tiny.gguf", "Q4_1", family)
        header = read_header(tmp_path / "tiny.gguf")
        tensors = llama_tensors(tmp_path / "tiny.gguf", header)
        assert tensors.keys() == meant.keys()
        for name, value in tensors.items():
            np.testing.assert_array_equal(value, meant[name])

    def test_every_token_that_ends_a_text_counts(self, tmp_path: Path, cache: Path) -> None:
        write_gguf(tmp_path / "tiny.gguf", "Q4_0", **{"tokenizer.ggml.eot_token_id": 9})
        assert model_files(str(tmp_path / "tiny.gguf"), quiet).eos_ids == {9, families.END}

    def test_a_folder_with_one_is_that_model_and_it_is_converted_once(
        self, tmp_path: Path, cache: Path
    ) -> None:
        (tmp_path / "one").mkdir()
        write_gguf(tmp_path / "one" / "tiny.gguf", "Q4_0")
        said: list[str] = []
        first = model_files(str(tmp_path / "one"), said.append)
        assert said == ["Converting tiny.gguf..."]
        assert model_files(str(tmp_path / "one" / "tiny.gguf"), said.append) == first
        assert len(said) == 1
        shutil.copy(tmp_path / "one" / "tiny.gguf", tmp_path / "one" / "more.gguf")
        with pytest.raises(DerbyError, match=r"2 GGUF files \(more\.gguf, tiny\.gguf\): name one"):
            model_files(str(tmp_path / "one"), quiet)

    def test_the_parts_of_a_file_are_one_model(self, tmp_path: Path) -> None:
        """Of several parts, the first was fetched and loaded alone, or all were "several files"."""
        parts = [f"q4-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        for name in parts:
            (tmp_path / name).write_bytes(b"x" * 10)
        assert gguf_in(tmp_path, "it") == tmp_path / parts[0]
        spec = ModelSpec(str(tmp_path / parts[0]), "llamacpp", "gguf")
        assert LLAMACPP.estimate_bytes(spec, quiet) == 30
        listed = [*parts, "q8-00001-of-00003.gguf", "q4.gguf"]
        assert split_parts(parts[0], listed) == parts
        assert split_parts("q4.gguf", listed) == ["q4.gguf"]
        (tmp_path / "q8.gguf").write_bytes(b"x")
        with pytest.raises(DerbyError, match="4 GGUF files"):
            gguf_in(tmp_path, "it")

    @pytest.mark.thorough
    @pytest.mark.model
    def test_its_codes_run_on_openvino(self, tmp_path: Path, cache: Path) -> None:
        """The exact precisions compute what fp32 does; int4-exact wants something of four bits."""
        from backend.engines.openvino.engine import open_openvino
        from backend.engines.openvino.export import openvino_ir
        from backend.types import chain_parents

        write_gguf(tmp_path / "four.gguf", "Q4_0")
        write_gguf(tmp_path / "eight.gguf", "Q8_0")
        prompt = [5, 99, 31, 200, 7]

        def logits(name: str, precision: str) -> np.ndarray:
            spec = ModelSpec(str(tmp_path / name), precision=precision)
            session = open_openvino(spec, quiet).open()
            return session.forward(prompt, chain_parents(5), range(5))

        for name, precision in (("four.gguf", "int4-exact"), ("eight.gguf", "int8-exact")):
            np.testing.assert_allclose(
                logits(name, precision), logits(name, "fp32"), atol=1e-4, rtol=0
            )
        with pytest.raises(DerbyError, match="choose int8-exact"):
            logits("eight.gguf", "int4-exact")
        four = ModelSpec(str(tmp_path / "four.gguf"))
        folders = {openvino_ir(replace(four, precision=p), quiet) for p in ("int4", "int4-exact")}
        assert len(folders) == 1, "int4 rounded the published codes"


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"tokenizer.ggml.pre": "mystery"}, r"gpt2/mystery.*tokenizer\.json beside it"),
            ({"tokenizer.ggml.model": "llama"}, r"llama/smollm.*tokenizer\.json beside it"),
            ({"llama.rope.scaling.type": "yarn"}, "scales its rotary positions.*safetensors"),
            ({"split.count": 3}, "one of 3 parts: join them"),
        ],
    )
    def test_what_would_be_another_model_is_refused(
        self, tmp_path: Path, cache: Path, changes: Mapping[str, Any], said: str
    ) -> None:
        write_gguf(tmp_path / "tiny.gguf", "Q4_0", **changes)
        with pytest.raises(DerbyError, match=said):
            model_files(str(tmp_path / "tiny.gguf"), quiet)
        assert not list(cache.glob("gguf-*[0-9a-f]"))

    def test_a_tokenizer_beside_the_file_counts_instead_of_its_own(
        self, tmp_path: Path, cache: Path
    ) -> None:
        write_gguf(tmp_path / "tiny.gguf", "Q4_0", **{"tokenizer.ggml.pre": "mystery"})
        families.byte_tokenizer().save_pretrained(tmp_path)
        folder = model_files(str(tmp_path), quiet).folder
        assert (folder / "tokenizer.json").read_bytes() == (
            tmp_path / "tokenizer.json"
        ).read_bytes()

    def test_no_byte_of_a_header_can_do_harm(self, tmp_path: Path) -> None:
        """Cut off anywhere, or with any byte of its counts replaced: a header, or a sentence."""
        whole = tmp_path / "whole.gguf"
        write_gguf(whole, "Q4_0")
        data, damaged = whole.read_bytes(), tmp_path / "damaged.gguf"
        random = np.random.default_rng(0)
        for at in [*range(64), *random.integers(64, 8000, 100).tolist()]:
            for changed in (data[:at], data[:at] + b"\xff" + data[at + 1 :]):
                damaged.write_bytes(changed)
                with suppress(DerbyError):  # any other exception fails this test
                    assert read_header(damaged).weights <= 8 * len(data)

    def test_counts_are_held_against_the_file(self, tmp_path: Path) -> None:
        """The gguf package makes a list of whatever number of values a file states."""
        path = tmp_path / f"bomb{SUFFIX}"
        head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sI", 1, b"a", 9)
        path.write_bytes(head + struct.pack("<IQ", 0, 1 << 40))
        with pytest.raises(DerbyError, match="more than 4,000,000 values"):
            read_header(path)
        nested = struct.pack("<IQ", 9, 1) * 5000
        path.write_bytes(head + nested)
        with pytest.raises(DerbyError, match="no GGUF file"):
            read_header(path)


def fields(pre: str) -> dict[str, Any]:
    """A tokenizer's fields with this first split."""
    return TOKENIZER | {
        "general.architecture": "llama",
        "llama.context_length": 256,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.tokens": [*tokens(), "ab", "abc", "<think>"],
        "tokenizer.ggml.token_type": [1] * families.END + [3, 1, 1, 4],
    }


class TestTokenizer:
    @pytest.mark.parametrize("pre", ["gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2"])
    def test_texts_survive_and_ids_are_the_files_own(self, pre: str, tmp_path: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        tokenizer_from_gguf(fields(pre)).save_pretrained(tmp_path)
        fast = PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert len(fast) == families.VOCABULARY + 3
        for text in TEXTS:
            assert fast.decode(fast.encode(text)) == text
        assert fast.encode("abc<think>") == [families.VOCABULARY + 1, families.VOCABULARY + 2]

    def test_each_kind_splits_as_its_model_was_trained(self) -> None:
        """Digits one by one, by threes, or all together; contractions in capitals or not."""

        def pieces(pre: str, text: str) -> list[str]:
            split = tokenizer_from_gguf(fields(pre)).backend_tokenizer.pre_tokenizer
            return [piece for piece, _ in split.pre_tokenize_str(text)]

        assert pieces("gpt-2", "12345") == ["12345"]
        assert pieces("smollm", "12345") == pieces("qwen2", "12345") == list("12345")
        assert pieces("llama-bpe", "12345") == ["123", "45"]
        assert pieces("qwen2", "WE'LL") == ["WE", "'LL"]
        assert pieces("gpt-2", "WE'LL") == ["WE", "'", "LL"]

    @pytest.mark.parametrize("text", TEXTS)
    def test_qwens_split_is_that_of_its_own_class(self, text: str) -> None:
        from transformers import Qwen2Tokenizer

        vocabulary = {token: i for i, token in enumerate(tokens())}
        own: Any = Qwen2Tokenizer(vocab=vocabulary, merges=[])
        ours = tokenizer_from_gguf(fields("qwen2")).backend_tokenizer
        expected = own.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert ours.pre_tokenizer.pre_tokenize_str(text) == expected

    def test_a_beginning_is_added_where_the_file_says_so(self) -> None:
        stated = fields("smollm") | {"tokenizer.ggml.bos_token_id": families.END}
        assert tokenizer_from_gguf(stated).encode("a")[0] != families.END
        stated["tokenizer.ggml.add_bos_token"] = True
        assert tokenizer_from_gguf(stated).encode("a")[0] == families.END
