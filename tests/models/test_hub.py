"""Models of the Hub: in the Hub's own cache, data alone, and none where downloads are off."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.limits import Limits
from backend.models import files as module
from backend.models.files import HUB_ID, gguf_file, hub_folder, model_files
from backend.racing.models import LoadedModels
from backend.types import ModelSpec

CONFIG = json.dumps({"model_type": "llama", "max_position_embeddings": 9, "vocab_size": 9})
FILES = ("config.json", "model.safetensors")


def quiet(_: str) -> None: ...


@dataclass
class FakeHub:
    """Stands in for the Hub's client: repositories by name, each with its files' names."""

    cache: Path
    repositories: dict[str, Sequence[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    online: bool = True

    def snapshot_download(
        self,
        name: str,
        *,
        allow_patterns: Sequence[str],
        ignore_patterns: Sequence[str],
        local_files_only: bool,
    ) -> str:
        self.asked.append(name)
        folder = self.cache / name
        if self.online and not local_files_only and name in self.repositories:
            for file in self.repositories[name]:
                fits = [
                    any(fnmatchcase(file, p) for p in many)
                    for many in (allow_patterns, ignore_patterns)
                ]
                if fits == [True, False]:
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
    monkeypatch.setattr(module, "_fetched", {})
    return fake


def test_data_of_the_top_folder_alone_is_fetched_and_the_hub_is_asked_once(hub: FakeHub) -> None:
    others = ("pytorch_model.bin", "modeling.py", "onnx/config.json", "consolidated.safetensors")
    hub.repositories["owner/one"] = (*FILES, "chat_template.jinja", *others)
    for _ in range(2):
        assert model_files("owner/one", quiet).folder == hub.cache / "owner/one"
    assert hub.files("owner/one") == {*FILES, "chat_template.jinja"}
    assert hub.asked == ["owner/one"]


def test_a_gguf_file_is_named_and_comes_with_its_other_parts(hub: FakeHub) -> None:
    parts = [f"big-{i:05}-of-00002.gguf" for i in (1, 2)]
    hub.repositories["owner/packed"] = (*parts, "small.gguf", "config.json")
    assert gguf_file(f"owner/packed:{parts[0]}", quiet).name == parts[0]
    assert hub.files("owner/packed") == set(parts)
    with pytest.raises(DerbyError, match=r"small.gguf' is a GGUF file, which .*-c llamacpp"):
        model_files("owner/packed:small.gguf", quiet)
    with pytest.raises(DerbyError, match="name one"):
        gguf_file("owner/packed", quiet)


def test_what_the_hubs_cache_holds_serves_where_the_hub_cannot_be_reached(hub: FakeHub) -> None:
    hub.repositories["owner/one"] = FILES
    model_files("owner/one", quiet)
    module._fetched.clear()  # as a new process
    hub.online = False
    assert model_files("owner/one", quiet).vocab_size == 9
    with pytest.raises(DerbyError, match=r"'owner/two' could not be fetched \(FileNotFoundError\)"):
        model_files("owner/two", quiet)


def test_where_downloads_are_off_offered_models_run_and_no_others(hub: FakeHub) -> None:
    """Any visitor could have any model downloaded."""
    hub.repositories |= {"owner/one": FILES, "owner/two": FILES}
    hub_folder("owner/one", quiet)  # as a page does before it opens
    module._fetched.clear()  # races run in another process
    models = LoadedModels(limits=Limits(hub=0))
    models.fetch("owner/one", quiet)
    with pytest.raises(DerbyError, match=r"'owner/two' is not here.*hub is 0"):
        models.get(ModelSpec("owner/two", "torch"), quiet)
    assert not hub.files("owner/two")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("owner/model", True),
        ("owner/model:file-Q4_K_M.gguf", True),
        ("owner/model:file.bin", False),
        ("owner/../model", False),
        ("owner/model/more", False),
        ("model", False),
        ("owner/model:../a.gguf", False),
    ],
)
def test_a_name_of_the_hub(name: str, *, allowed: bool) -> None:
    assert bool(HUB_ID.fullmatch(name)) == allowed
