"""What a model's name means, what is refused, and the built-in model's tokenizer."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.errors import DerbyError
from backend.models.files import ModelFiles, model_files


def quiet(_: str) -> None: ...


class TestNames:
    @pytest.mark.parametrize("name", ["", "smollm", "a/b/c", "a b/c", "built-in ", "owner/"])
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
        with pytest.raises(DerbyError, match=r"pytorch_model\.bin.*safetensors"):
            model_files(str(tmp_path), quiet)

    def test_a_model_that_needs_its_own_code_is_refused(self, tmp_path: Path) -> None:
        config = {"model_type": "mystery", "auto_map": {"AutoConfig": "mystery.Config"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes(b"")
        (tmp_path / "mystery.py").write_text("raise SystemExit('ran foreign code')")
        with pytest.raises(DerbyError, match="code of its own"):
            model_files(str(tmp_path), quiet)

    def test_an_unreachable_hub_model_is_one_clear_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(DerbyError, match="'some-owner/no-such-model' could not be fetched"):
            model_files("some-owner/no-such-model", quiet)

    def test_a_hub_model_that_exceeds_memory_is_refused_before_download(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vast = SimpleNamespace(rfilename="model.safetensors", size=10**15)
        info = SimpleNamespace(siblings=[vast])
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", None)  # calling it would raise
        with pytest.raises(DerbyError, match=r"take 1000000\.0 GB"):
            model_files("owner/vast", quiet)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(shards))
        (tmp_path / "model-1.safetensors").write_bytes(b"")
        with pytest.raises(DerbyError, match=r"lacks model-2\.safetensors"):
            model_files(str(tmp_path), quiet)


def folder_like(tmp_path: Path, generation: object = None, **config: object) -> ModelFiles:
    """The files of a Llama folder whose configs say this and whose weights are a stub."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (tmp_path / "model.safetensors").write_bytes(b"stub")
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return model_files(str(tmp_path), quiet)


class TestModelFacts:
    def test_every_eos_id_counts_and_generation_config_wins(self, tmp_path: Path) -> None:
        several = folder_like(tmp_path / "a", {"eos_token_id": [7, 9]}, eos_token_id=3)
        assert several.eos_ids == {7, 9}
        assert folder_like(tmp_path / "b", {"eos_token_id": 0}, eos_token_id=3).eos_ids == {0}
        assert folder_like(tmp_path / "c", {}, eos_token_id=[3, 4]).eos_ids == {3, 4}
        assert folder_like(tmp_path / "d", None, eos_token_id=3).eos_ids == {3}

    def test_the_fingerprint_follows_the_bytes_not_the_place(self, tmp_path: Path) -> None:
        one, two = folder_like(tmp_path / "a"), folder_like(tmp_path / "b")
        assert one.fingerprint == two.fingerprint
        (two.folder / "model.safetensors").write_bytes(b"stuB")
        assert model_files(str(two.folder), quiet).fingerprint != one.fingerprint

    def test_a_sliding_window_bounds_the_context(self, tmp_path: Path) -> None:
        facts = {"model_type": "mistral", "max_position_embeddings": 4096}
        assert folder_like(tmp_path / "a", **facts, sliding_window=512).full_attention == 512
        assert folder_like(tmp_path / "b", **facts, sliding_window=None).full_attention == 4096
        unused = folder_like(tmp_path / "c", **facts, sliding_window=512, use_sliding_window=False)
        assert unused.full_attention == 4096

    def test_a_context_length_under_another_name_counts(self, tmp_path: Path) -> None:
        files = folder_like(tmp_path / "a", model_type="gpt2", n_positions=512)
        assert (files.max_context, files.vocab_size) == (512, 50257)


@pytest.mark.model
class TestBuiltIn:
    TEXTS = (
        "  two  spaces, a trailing one ",
        "3.14159 and 2024-11-05",
        "def f(x):\n\treturn {'a': x**2}  # ok\n",
        "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
        "wave: \U0001f44b\U0001f3fd",
        "漢字とかな, 中文、한국어",
        "a\r\nb\r\n\r\nc",
        "Ünïcödé ﬁ ẞ İ",
        "<|im_start|>user\nhi<|im_end|>\n",
    )

    def test_its_facts(self) -> None:
        files = model_files("built-in", print)
        assert (files.max_context, files.vocab_size, files.eos_ids) == (
            8192,
            49152,
            {2},
        )

    def test_the_tokenizer_survives_the_disk(self) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_files("built-in", print).folder)
        assert len(tokenizer) == 49152
        for text in self.TEXTS:
            ids = tokenizer.encode(text)
            assert max(ids) < 49152
            assert tokenizer.decode(ids) == text
        assert tokenizer.encode("12 34") == [33, 34, 216, 35, 36]
        assert tokenizer.tokenize("Hello world") == ["Hello", "Ġworld"]
        specials = (
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        )
        assert specials == (1, 2, 2)

    def test_the_chat_template_is_there(self) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_files("built-in", print).folder)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}],
            tokenize=False,
            add_generation_prompt=True,
        )
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
