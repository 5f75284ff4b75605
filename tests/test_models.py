"""How models get onto the machine: prepared folders, names, the built-in tokenizer, the IR."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from backend import prepared as cache
from backend.engines.openvino_export import IR, openvino_ir
from backend.models import ModelFiles, model_files
from backend.prepared import MANIFEST, prepared
from backend.types import DerbyError, ModelSpec

HIDDEN = np.finfo(np.float32).min
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def quiet(_: str) -> None: ...


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Recorder:
    """A build that writes two files and counts how often it ran."""

    def __init__(self, text: str = "weights") -> None:
        self.text = text
        self.runs = 0

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        (folder / "part").mkdir()
        (folder / "part" / "a.bin").write_text(self.text)
        (folder / "b.json").write_text("{}")


def damage(folder: Path) -> None:
    path = folder / "part" / "a.bin"
    path.write_text("Weights" if path.read_text() == "weights" else "weights")


def lose(folder: Path) -> None:
    (folder / "b.json").unlink()


def add(folder: Path) -> None:
    (folder / "added_tokens.json").write_text("{}")


def lose_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def truncate_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"recipe": "r1", "fil')


class TestPreparedFolders:
    def test_an_intact_folder_is_used_as_it_is(self, own_cache: Path) -> None:
        build = Recorder()
        first = prepared("x", "r1", build)
        assert prepared("x", "r1", build) == first == own_cache / "x"
        assert build.runs == 1
        assert (first / "part" / "a.bin").read_text() == "weights"

    @pytest.mark.parametrize(
        "harm", [damage, lose, add, lose_manifest, truncate_manifest]
    )
    def test_a_harmed_folder_is_never_used(
        self, own_cache: Path, harm: Callable[[Path], None]
    ) -> None:
        build = Recorder()
        folder = prepared("x", "r1", build)
        harm(folder)
        prepared("x", "r1", build)
        assert build.runs == 2
        found = sorted(p.name for p in folder.rglob("*") if p.is_file())
        assert found == ["a.bin", "b.json", MANIFEST]
        assert (folder / "part" / "a.bin").read_text() == "weights"

    def test_a_folder_of_another_recipe_is_replaced(self, own_cache: Path) -> None:
        prepared("x", "r1", Recorder("old"))
        folder = prepared("x", "r2", Recorder("new"))
        assert (folder / "part" / "a.bin").read_text() == "new"

    def test_a_crash_in_the_build_leaves_nothing_usable(self, own_cache: Path) -> None:
        def crash(folder: Path) -> None:
            (folder / "a.bin").write_text("half")
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            prepared("x", "r1", crash)
        assert not [p for p in own_cache.iterdir() if p.is_dir()]
        assert prepared("x", "r1", Recorder()).is_dir()

    def test_a_failed_rebuild_keeps_no_stale_folder_in_use(
        self, own_cache: Path
    ) -> None:
        folder = prepared("x", "r1", Recorder())
        damage(folder)

        def crash(_: Path) -> None:
            raise ValueError("boom")

        with pytest.raises(ValueError, match="boom"):
            prepared("x", "r1", crash)
        build = Recorder()
        prepared("x", "r1", build)
        assert build.runs == 1

    def test_what_a_killed_process_left_behind_is_cleared(
        self, own_cache: Path
    ) -> None:
        (own_cache / "x.partial").mkdir(parents=True)
        (own_cache / "x.partial" / "junk.bin").write_text("half")
        folder = prepared("x", "r1", Recorder())
        assert not (folder / "junk.bin").exists()
        assert not (own_cache / "x.partial").exists()

    def test_processes_preparing_at_once_build_once(self, own_cache: Path) -> None:
        """Every process checks every byte it got; the build log has a single line."""
        program = (
            "import sys; from pathlib import Path; from backend.prepared import prepared\n"
            "def build(folder):\n"
            "    print('built')\n"
            "    for i in range(50):\n"
            "        (folder / f'{i}.bin').write_bytes(bytes([i]) * 20000)\n"
            "sys.stdin.readline()\n"
            "got = prepared('x', 'r1', build)\n"
            "for i in range(50):\n"
            "    assert (got / f'{i}.bin').read_bytes() == bytes([i]) * 20000\n"
        )
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(cache.__file__).parents[1],
            )
            for _ in range(4)
        ]
        for racer in racers:  # all are started before the first may begin
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.communicate()[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * 4
        assert "".join(said) == "built\n"

    def test_a_cache_that_cannot_be_written_is_a_clear_refusal(
        self, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: Path) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(DerbyError, match="DECODE_DERBY_CACHE"):
            prepared("x", "r1", full)


class TestNames:
    @pytest.mark.parametrize(
        "name", ["", "smollm", "a/b/c", "a b/c", "built-in ", "owner/"]
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
        with pytest.raises(
            DerbyError, match="'some-owner/no-such-model' could not be fetched"
        ):
            model_files("some-owner/no-such-model", quiet)


def folder_like(
    tmp_path: Path, generation: object = None, **config: object
) -> ModelFiles:
    """The files of a Llama folder whose configs say this and whose weights are a stub."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (tmp_path / "model.safetensors").write_bytes(b"stub")
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return model_files(str(tmp_path), quiet)


class TestModelFacts:
    def test_every_eos_id_counts_and_generation_config_wins(
        self, tmp_path: Path
    ) -> None:
        several = folder_like(tmp_path / "a", {"eos_token_id": [7, 9]}, eos_token_id=3)
        assert several.eos_ids == {7, 9}
        assert folder_like(
            tmp_path / "b", {"eos_token_id": 0}, eos_token_id=3
        ).eos_ids == {0}
        assert folder_like(tmp_path / "c", {}, eos_token_id=[3, 4]).eos_ids == {3, 4}
        assert folder_like(tmp_path / "d", None, eos_token_id=3).eos_ids == {3}

    def test_the_fingerprint_follows_the_bytes_not_the_place(
        self, tmp_path: Path
    ) -> None:
        one, two = folder_like(tmp_path / "a"), folder_like(tmp_path / "b")
        assert one.fingerprint == two.fingerprint
        (two.folder / "model.safetensors").write_bytes(b"stuB")
        assert model_files(str(two.folder), quiet).fingerprint != one.fingerprint

    def test_a_sliding_window_bounds_the_context(self, tmp_path: Path) -> None:
        facts = {"model_type": "mistral", "max_position_embeddings": 4096}
        assert (
            folder_like(tmp_path / "a", **facts, sliding_window=512).max_context == 512
        )
        assert (
            folder_like(tmp_path / "b", **facts, sliding_window=None).max_context
            == 4096
        )


class TestBuiltIn:
    TEXTS = (
        "  two  spaces, a trailing one ",
        "3.14159 and 2024-11-05",
        "def f(x):\n\treturn {'a': x**2}  # ok\n",
        "family: \U0001f468‍\U0001f469‍\U0001f467‍\U0001f466 wave \U0001f44b\U0001f3fd",
        "漢字とかな, 中文，한국어",
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


class Runner:
    """One cache of the fp32 IR, driven through its bare interface."""

    def __init__(self) -> None:
        import openvino as ov

        path = openvino_ir(ModelSpec(), print) / IR
        self.request = (
            ov.Core().compile_model(path, "CPU", EXACT).create_infer_request()
        )

    def __call__(
        self,
        tokens: list[int],
        positions: list[int],
        bias: NDArray[np.float32],
        rows: list[int],
    ) -> NDArray[np.float32]:
        """Logits [len(rows), V] of these new tokens under `bias` [n, P + n]."""
        inputs = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "position_ids": np.array([positions], dtype=np.int64),
            "beam_idx": np.zeros(1, dtype=np.int32),
            "attention_bias": bias[None, None],
            "rows": np.array(rows, dtype=np.int64),
        }
        return self.request.infer(inputs)["logits"][0].copy()

    def prefill(self, tokens: list[int], rows: list[int]) -> NDArray[np.float32]:
        self.request.reset_state()
        return self(tokens, list(range(len(tokens))), causal(0, len(tokens)), rows)


def causal(past: int, n: int) -> NDArray[np.float32]:
    return np.triu(np.full((n, past + n), HIDDEN, dtype=np.float32), past + 1)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner()


PROMPT = [1, 4093, 198, 19556, 28, 638, 359, 346, 47, 2, 198, 1, 520, 9531, 198]


class TestIr:
    def test_logits_of_chosen_rows_equal_torch(self, runner: Runner) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            model_files("built-in", print).folder, dtype=torch.float32
        )
        with torch.inference_mode():
            expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        rows = [14, 3, 3, 0]
        np.testing.assert_allclose(
            runner.prefill(PROMPT, rows), expected[rows], atol=1e-3, rtol=0
        )

    def test_no_rows_cost_no_logits_but_fill_the_cache(self, runner: Runner) -> None:
        whole = runner.prefill(PROMPT, [14])
        assert runner.prefill(PROMPT[:-1], []).shape == (0, 49152)
        last = runner(PROMPT[-1:], [14], causal(14, 1), [0])
        np.testing.assert_allclose(last, whole, atol=5e-4, rtol=0)

    def test_masked_rows_are_as_if_never_seen(self, runner: Runner) -> None:
        """A tree of four follows the prompt; one branch is kept, the other stays as a hole."""
        start, kept, other = len(PROMPT), [504, 1234], [5000, 6000]
        clean = runner.prefill([*PROMPT, *kept, 777], [15, 16, 17])

        runner.prefill(PROMPT, [])
        tree = np.full((4, start + 4), HIDDEN, dtype=np.float32)
        tree[:, :start] = 0
        for row, sees in enumerate([(0,), (1,), (0, 2), (1, 3)]):
            tree[row, [start + i for i in sees]] = 0
        tokens = [other[0], kept[0], other[1], kept[1]]
        positions = [start, start, start + 1, start + 1]
        branches = runner(tokens, positions, tree, [1, 3])
        np.testing.assert_allclose(branches, clean[:2], atol=5e-4, rtol=0)

        after = np.zeros((1, start + 5), dtype=np.float32)
        after[:, [start, start + 2]] = HIDDEN
        last = runner([777], [start + 2], after, [0])
        np.testing.assert_allclose(last, clean[2:], atol=5e-4, rtol=0)

    def test_an_unknown_precision_is_refused(self) -> None:
        with pytest.raises(DerbyError, match="fp32, int8 and int4, not 'fp8'"):
            openvino_ir(ModelSpec(precision="fp8"), quiet)
