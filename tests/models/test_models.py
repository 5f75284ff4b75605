"""What a model's name means, what is refused, and the built-in model's tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.models.files import ModelFiles, model_files
from backend.types import ModelSpec


def quiet(_: str) -> None: ...


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["", "smollm", "a/b/c", "a b/c", "built-in ", "owner/", "a/..", "a/b\n", "a/" + "b" * 97],
    )
    def test_what_is_neither_folder_nor_hub_id_is_refused(self, name: str) -> None:
        with pytest.raises(DerbyError, match="There is no model"):
            model_files(name, quiet)

    def test_a_relative_folder_without_a_dot_is_not_a_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DerbyError, match="There is no model 'mine'"):
            model_files("mine", quiet)
        with pytest.raises(DerbyError, match="not a model folder"):
            model_files("./mine", quiet)

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DerbyError, match="nowhere"):
            model_files(str(tmp_path / "nowhere"), quiet)

    def test_pickled_weights_are_refused_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
        with pytest.raises(DerbyError, match=r"safetensors files \(no pickles"):
            model_files(str(tmp_path), quiet)

    def test_a_ready_made_openvino_model_is_no_pickle(self, tmp_path: Path) -> None:
        """openvino_model.bin holds plain numbers; it was refused as a pickle that can run code."""
        (tmp_path / "openvino_model.bin").write_bytes(b"\x00")
        facts = {"model_type": "llama", "max_position_embeddings": 9, "vocab_size": 9}
        (tmp_path / "config.json").write_text(json.dumps(facts))
        (tmp_path / "openvino_model.xml").write_text("<net/>")
        first = model_files(str(tmp_path), quiet)
        assert first.ready_made
        (tmp_path / "openvino_model.bin").write_bytes(b"\x01")
        assert model_files(str(tmp_path), quiet).fingerprint != first.fingerprint

    def test_a_model_that_needs_its_own_code_is_refused(self, tmp_path: Path) -> None:
        config = {"model_type": "mystery", "auto_map": {"AutoConfig": "mystery.Config"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes(save({}))
        (tmp_path / "mystery.py").write_text("raise SystemExit('ran foreign code')")
        with pytest.raises(DerbyError, match="code from its own repository"):
            model_files(str(tmp_path), quiet)


def folder_like(tmp_path: Path, generation: object = None, **config: object) -> ModelFiles:
    """The files of a Llama folder whose configs say this and whose weights are a stub."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (tmp_path / "model.safetensors").write_bytes(save({}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return model_files(str(tmp_path), quiet)


class TestDamagedFolders:
    """A model of the Hub holds whatever its author wrote."""

    @pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\udcff"])
    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    def test_a_file_that_is_no_json_is_named(self, tmp_path: Path, file: str, text: str) -> None:
        folder_like(tmp_path, max_position_embeddings=9, vocab_size=9)
        (tmp_path / file).write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(DerbyError, match=file):
            model_files(str(tmp_path), quiet)


class TestModelFacts:
    def test_every_eos_id_counts_and_generation_config_wins(self, tmp_path: Path) -> None:
        several = folder_like(tmp_path / "a", {"eos_token_id": [7, 9]}, eos_token_id=3)
        assert several.eos_ids == {7, 9}
        assert folder_like(tmp_path / "b", {"eos_token_id": 0}, eos_token_id=3).eos_ids == {0}
        assert folder_like(tmp_path / "c", {}, eos_token_id=[3, 4]).eos_ids == {3, 4}
        assert folder_like(tmp_path / "d", None, eos_token_id=3).eos_ids == {3}

    def test_the_fingerprint_is_of_the_hubs_commit_or_of_the_files_as_they_lie(
        self, tmp_path: Path
    ) -> None:
        """It is asked for at each open, of models of gigabytes: no weights are read."""
        one, two, hub = (tmp_path / name for name in ("a", "b", "snapshots"))
        first = folder_like(one)
        assert model_files(str(one), quiet).fingerprint == first.fingerprint
        assert folder_like(two).fingerprint != first.fingerprint
        (one / "model.safetensors").write_bytes(save({}))  # of the same size
        assert model_files(str(one), quiet).fingerprint != first.fingerprint
        hub.mkdir()
        commits = [folder_like(hub / commit).fingerprint for commit in ("c1", "c1", "c2")]
        assert commits[0] == commits[1] != commits[2]

    def test_weights_are_counted_in_all_files_whatever_they_are_stored_as(
        self, tmp_path: Path
    ) -> None:
        facts = {"max_position_embeddings": 64, "vocab_size": 32}
        (tmp_path / "config.json").write_text(json.dumps(facts))
        first = {"a": np.zeros((32, 8), np.float32), "scale": np.zeros((), np.float32)}
        save_file(first, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
        save_file({"b": np.zeros((5, 4, 2), np.float16)}, tmp_path / "model-2.safetensors")
        count = 32 * 8 + 1 + 40
        assert model_files(str(tmp_path), quiet).weights == count
        for engine, precision, size in (
            ("torch", "bf16", 2),
            ("torch", "fp32", 4),
            ("openvino", "fp32", 4),
        ):
            spec = ModelSpec(str(tmp_path), engine, precision)
            assert engine_named(engine).estimate_bytes(spec, quiet) == count * size
        small = ModelSpec(str(tmp_path), precision="int4")
        assert engine_named("openvino").estimate_bytes(small, quiet) < count

    def test_a_sliding_window_leaves_the_context_as_long_as_it_is(self, tmp_path: Path) -> None:
        """A window of 64 capped the context on OpenVINO, which then refused a prompt of 88."""
        facts = {"max_position_embeddings": 4096, "vocab_size": 9, "num_hidden_layers": 2}
        mistral = {"model_type": "mistral", **facts}
        found = folder_like(tmp_path / "a", **mistral, sliding_window=512)
        assert (found.max_context, found.window, found.sliding) == (4096, 512, (True, True))
        assert folder_like(tmp_path / "b", **mistral, sliding_window=None).window == 0
        qwen = {"model_type": "qwen2", **facts, "sliding_window": 512, "max_window_layers": 1}
        unused = folder_like(tmp_path / "c", **qwen, use_sliding_window=False)
        assert (unused.window, unused.sliding) == (0, ())
        some = folder_like(tmp_path / "d", **qwen, use_sliding_window=True)
        assert (some.window, some.sliding) == (512, (False, True))

    def test_longrope_is_opened_for_its_original_context(self, tmp_path: Path) -> None:
        rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
        facts = {"model_type": "phi3", **sizes, "rope_scaling": rope, "pad_token_id": 1}
        facts["original_max_position_embeddings"] = 128
        longer = folder_like(tmp_path / "a", **facts, max_position_embeddings=512)
        assert longer.max_context == 128
        assert "reads up to 128 tokens here, its original context" in longer.capped
        never = folder_like(tmp_path / "b", **facts, max_position_embeddings=128)
        assert (never.max_context, never.capped) == (128, "")

    def test_a_model_without_a_limit_gets_one(self, tmp_path: Path) -> None:
        """BLOOM and MPT state their context under other names or not at all, and were refused."""
        bloom = folder_like(tmp_path / "a", model_type="bloom", vocab_size=99)
        assert bloom.max_context == 2048
        mpt = folder_like(tmp_path / "b", model_type="mpt", vocab_size=99, max_seq_len=640)
        assert mpt.max_context == 640

    def test_a_context_length_under_another_name_counts(self, tmp_path: Path) -> None:
        files = folder_like(tmp_path / "a", model_type="gpt2", n_positions=512)
        assert (files.max_context, files.vocab_size) == (512, 50257)


@pytest.mark.model
def test_the_built_in_model_s_facts_and_tokenizer_survive_the_disk() -> None:
    from transformers import AutoTokenizer

    files = model_files("built-in", print)
    assert (files.max_context, files.vocab_size, files.eos_ids) == (8192, 49152, {2})
    tokenizer = AutoTokenizer.from_pretrained(files.folder)
    assert len(tokenizer) == 49152
    for text in (
        "  two  spaces, a trailing one ",
        "def f(x):\n\treturn {'a': x**2.50}  # ok\n",
        "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466, \U0001f44b\U0001f3fd",
        "漢字とかな, 中文、한국어, Ünïcödé ﬁ ẞ İ",
        "a\r\nb\r\n\r\nc",
        "<|im_start|>user\nhi<|im_end|>\n",
    ):
        ids = tokenizer.encode(text)
        assert max(ids) < 49152
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("12 34") == [33, 34, 216, 35, 36]
    assert tokenizer.tokenize("Hello world") == ["Hello", "Ġworld"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
