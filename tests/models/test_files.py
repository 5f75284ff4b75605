"""What a model's name means and what is refused; of the Hub, data alone comes, into the Hub's own
cache, and none where downloads are off; and what a folder's configuration states of its model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub.utils import filter_repo_objects
from safetensors.numpy import save, save_file

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.limits import Limits
from backend.models import files
from backend.models.files import ModelFiles, gguf_file, hub_folder, model_files, weights_in
from backend.racing.models import LoadedModels
from backend.strategies.registry import GGUF_COLUMNS, usual_columns
from backend.types import ModelSpec

CONFIG = json.dumps({"model_type": "llama", "max_position_embeddings": 9, "vocab_size": 9})
FILES = ("config.json", "model.safetensors")


@dataclass
class FakeHub:
    """Stands in for the Hub's client: repositories by name, each with its files' names."""

    cache: Path
    repositories: dict[str, Sequence[str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    online: bool = True

    def snapshot_download(self, name: str, *, local_files_only: bool, **patterns: Any) -> str:
        self.requests.append(name)
        folder = self.cache / name
        if self.online and not local_files_only and name in self.repositories:
            for file in filter_repo_objects(self.repositories[name], **patterns):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(CONFIG)
        if not folder.is_dir():
            raise FileNotFoundError(name)
        return str(folder)

    def files(self, name: str) -> set[str]:
        folder = self.cache / name
        return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(files, "_fetched", {})
    return fake


def test_data_of_the_top_folder_alone_is_fetched_and_the_hub_is_asked_once(hub: FakeHub) -> None:
    others = ("pytorch_model.bin", "modeling.py", "onnx/config.json", "consolidated.safetensors")
    hub.repositories["owner/one"] = (*FILES, "chat_template.jinja", *others)
    for _ in range(2):
        assert model_files("owner/one", print).folder == hub.cache / "owner/one"
    assert hub.files("owner/one") == {*FILES, "chat_template.jinja"}
    assert hub.requests == ["owner/one"]
    with pytest.raises(DerbyError, match="name one"):
        gguf_file("owner/one", print)


PARTS = "sub/m-Q8_0-00001-of-00002.gguf sub/m-Q8_0-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf m-UD-Q4_K_M.gguf"),
        ("q8_0", PARTS),
        ("sub/m-Q8_0-00001-of-00002.gguf", PARTS),
        ("F16", "m.f16.gguf"),
        ("iq4_xs", "IQ4_XS/IQ4_XS.GGUF"),
        ("sub/m-Q2_K.gguf", "sub/m-Q2_K.gguf"),
        ("Q4_K", ""),
    ],
)
def test_a_gguf_file_is_found_by_its_quantisation_or_its_name(
    hub: FakeHub, name: str, fetched: str
) -> None:
    """As llama.cpp and Ollama name it; also where others fetched more."""
    others = "mmproj-F16.gguf m-BF16.gguf m-UD-Q4_K_M.gguf m-Q4_K_M.gguf m.f16.gguf config.json"
    hub.repositories["owner/m"] = f"{others} {PARTS} sub/m-Q2_K.gguf IQ4_XS/IQ4_XS.GGUF".split()
    (folder := hub.cache / "owner/m").mkdir(parents=True)
    if not fetched:
        with pytest.raises(DerbyError, match="model:Q4_K_M"):
            gguf_file(f"owner/m:{name}", print)
        return
    first = folder / fetched.split(maxsplit=1)[0]
    assert gguf_file(f"owner/m:{name}", print) == first
    assert hub.files("owner/m") == set(fetched.split())
    with pytest.raises(DerbyError, match=r"is a GGUF file, which .*-c llamacpp"):
        model_files(f"owner/m:{name}", print)
    for other in hub.repositories["owner/m"]:
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).touch()
    assert gguf_file(f"owner/m:{name}", print) == first


def test_an_ending_in_capitals_is_a_gguf_file_s(tmp_path: Path) -> None:
    file = tmp_path / "UPPER.GGUF"
    file.touch()
    assert gguf_file(str(file), print) == file
    assert usual_columns("a/b:Q4_K_M") == GGUF_COLUMNS


def test_what_the_hubs_cache_holds_serves_where_the_hub_cannot_be_reached(hub: FakeHub) -> None:
    hub.repositories["owner/one"] = FILES
    model_files("owner/one", print)
    files._fetched.clear()  # as a new process
    hub.online = False
    assert model_files("owner/one", print).vocab_size == 9
    with pytest.raises(DerbyError, match=r"'owner/two' could not be fetched \(FileNotFoundError\)"):
        model_files("owner/two", print)


def test_where_downloads_are_off_offered_models_run_and_no_others(hub: FakeHub) -> None:
    """Any visitor could have any model downloaded."""
    hub.repositories |= {"owner/one": FILES, "owner/two": FILES}
    hub_folder("owner/one", print)  # as a page does before it opens
    files._fetched.clear()  # races run in another process
    models = LoadedModels(limits=Limits(hub=0))
    models.fetch("owner/one", print)
    with pytest.raises(DerbyError, match=r"'owner/two' is not here.*hub is 0"):
        models.get(ModelSpec("owner/two", "torch"), print)
    assert not hub.files("owner/two")


# Folders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("", "smollm", "a/b/c", "a b/c", "built-in ", "owner/", "a/..", "a/b\n", "a/" + "b" * 97),
        *("owner/../model", "owner/model:../a.gguf", "owner/model:file.bin", "owner/model:/a.gguf"),
    ],
)
def test_what_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(DerbyError, match="There is no model"):
        model_files(name, print)


def test_a_folder_is_named_by_a_path_and_holds_weights_without_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DerbyError, match="There is no model 'mine'"):
        model_files("mine", print)
    with pytest.raises(DerbyError, match="nowhere"):
        model_files("./nowhere", print)
    (mine / "config.json").write_text("{}")
    (mine / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(DerbyError, match=r"safetensors files \(no pickles"):
        model_files("./mine", print)


def test_a_ready_made_openvino_model_is_no_pickle(tmp_path: Path) -> None:
    """openvino_model.bin holds plain numbers."""
    for name in ("openvino_model.bin", "openvino_model.xml", "config.json"):
        (tmp_path / name).write_text(CONFIG)
    first = model_files(str(tmp_path), print)
    assert first.ready_made
    (tmp_path / "openvino_model.bin").write_bytes(b"\x01")
    assert model_files(str(tmp_path), print).fingerprint != first.fingerprint


def folder_like(folder: Path, generation: object = None, **config: object) -> ModelFiles:
    """The files of a Llama folder whose configs say this and whose weights are a stub."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").write_bytes(save({}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return model_files(str(folder), print)


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        ({"eos_token_id": [7, 9]}, 3, {7, 9}),
        ({"eos_token_id": 0}, 3, {0}),
        ({}, [3, 4], {3, 4}),
        (None, 3, {3}),
    ],
)
def test_every_eos_id_counts_and_generation_config_wins(
    tmp_path: Path, generation: object, config: object, ids: set[int]
) -> None:
    assert folder_like(tmp_path, generation, eos_token_id=config).eos_ids == ids


def test_the_fingerprint_is_of_the_hubs_commit_or_of_the_files_as_they_lie(tmp_path: Path) -> None:
    """It is asked for at each open, of models of gigabytes: no weights are read."""
    first, other = folder_like(tmp_path / "a"), folder_like(tmp_path / "b")
    assert model_files(str(first.folder), print).fingerprint == first.fingerprint
    written_again = folder_like(tmp_path / "a")  # of the same size
    assert len({each.fingerprint for each in (first, other, written_again)}) == 3
    snapshots = tmp_path / "snapshots"
    commits = [folder_like(snapshots / commit).fingerprint for commit in ("c1", "c1", "c2")]
    assert commits[0] == commits[1] != commits[2]


def test_weights_are_counted_in_all_files_whatever_they_are_stored_as(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    first = {"a": np.zeros((32, 8), np.float32), "scale": np.zeros((), np.float32)}
    save_file(first, tmp_path / "model-1.safetensors", metadata={"format": "pt"})
    save_file({"b": np.zeros((5, 4, 2), np.float16)}, tmp_path / "model-2.safetensors")
    save_file(first, tmp_path / "consolidated.safetensors")  # the maker's own, of the same weights
    assert weights_in(tmp_path) == (count := 32 * 8 + 1 + 40)
    sizes = {"torch fp32": 4.0, "torch bf16": 2.0, "openvino fp32": 4.0, "openvino int4": 0.8}
    for which, size in sizes.items():
        engine, precision = which.split()
        spec = ModelSpec(str(tmp_path), engine, precision)
        assert engine_named(engine).estimate_bytes(spec, print) == round(count * size)


LAYERS = {"max_position_embeddings": 4096, "vocab_size": 9, "num_hidden_layers": 2}
QWEN = {"model_type": "qwen2", **LAYERS, "sliding_window": 512, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("config", "window", "sliding"),
    [
        ({"model_type": "mistral", **LAYERS, "sliding_window": 512}, 512, (True, True)),
        ({"model_type": "mistral", **LAYERS, "sliding_window": None}, 0, ()),
        ({**QWEN, "use_sliding_window": False}, 0, ()),
        ({**QWEN, "use_sliding_window": True}, 512, (False, True)),
    ],
)
def test_a_sliding_window_leaves_the_context_as_long_as_it_is(
    tmp_path: Path, config: dict[str, object], window: int, sliding: tuple[bool, ...]
) -> None:
    stated = folder_like(tmp_path, **config)
    assert (stated.max_context, stated.window, stated.sliding) == (4096, window, sliding)


LONGROPE = {
    "model_type": "phi3",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 99,
    "pad_token_id": 1,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({**LONGROPE, "max_position_embeddings": 512}, 128),  # behind it positions change
        ({**LONGROPE, "max_position_embeddings": 128}, 128),
        ({"model_type": "bloom", "vocab_size": 99}, files.ENDLESS_CONTEXT),
        ({"model_type": "mpt", "vocab_size": 99, "max_seq_len": 640}, 640),
        ({"model_type": "gpt2", "n_positions": 512}, 512),
    ],
)
def test_every_model_has_a_longest_text_whatever_it_is_called(
    tmp_path: Path, config: dict[str, object], longest: int
) -> None:
    assert folder_like(tmp_path, **config).max_context == longest
