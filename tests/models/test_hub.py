"""Models of the Hub: fetched once, whole, within a quota; what is refused before it is fetched."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest
from races import board_after, events_of
from safetensors.numpy import save
from tiny_gguf import write_gguf

from backend.engines.fake import FakeEngine
from backend.engines.openvino.export import RECIPE as EXPORT_RECIPE
from backend.errors import DerbyError
from backend.limits import Limits
from backend.models.files import gguf_file, model_files
from backend.models.hub import hub_place
from backend.models.hub_quota import RECENT, HubQuota, fetched_models, remove_fetched
from backend.models.prepared import MANIFEST, prepared
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.preparation import fetch_offered
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

CONFIG = json.dumps({"model_type": "llama", "max_position_embeddings": 9, "vocab_size": 9})


def quiet(_: str) -> None: ...


@dataclass
class FakeHub:
    """Stands in for the Hub's client: repositories by name, each with its files' bytes."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    online: bool = True

    def add(self, name: str, size: int = 200, **files: bytes) -> None:
        """A model whose files take `size` bytes."""
        length = size - len(CONFIG) - 8  # of a safetensors file without tensors
        header = json.dumps({"__metadata__": {"name": name}}).ljust(length).encode()
        weights = length.to_bytes(8, "little") + header
        whole = {"config.json": CONFIG.encode(), "model.safetensors": weights}
        self.repositories[name] = whole | files

    def model_info(self, name: str, **__: object) -> SimpleNamespace:
        self.asked.append(name)
        if not self.online or name not in self.repositories:
            raise OSError("no such host")
        files = self.repositories[name].items()
        siblings = [SimpleNamespace(rfilename=file, size=len(data)) for file, data in files]
        return SimpleNamespace(sha="f" * 40, siblings=siblings)

    def snapshot_download(
        self,
        name: str,
        local_dir: Path | None = None,
        allow_patterns: Sequence[str] = (),
        **_: object,
    ) -> str:
        if local_dir is None:
            raise FileNotFoundError(name)  # no other program fetched it
        self.fetched.append(name)
        (local_dir / ".cache").mkdir()
        (local_dir / ".cache" / "notes").write_text("the client's")
        for file, data in self.repositories[name].items():
            if any(fnmatchcase(file, pattern) for pattern in allow_patterns):
                (local_dir / file).write_bytes(data)
        return str(local_dir)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fake.model_info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    return fake


def age(name: str, seconds: float) -> None:
    """Have a model been used so long ago."""
    manifest = hub_place(name) / MANIFEST
    then = manifest.stat().st_mtime - seconds
    os.utime(manifest, (then, then))


def names() -> set[str]:
    return {model.name for model in fetched_models()}


class TestFetching:
    def test_a_model_is_fetched_once_and_then_the_hub_is_not_asked(self, hub: FakeHub) -> None:
        """Every race asked the Hub, and waited for it where there was no network."""
        hub.add("owner/one")
        first = model_files("owner/one", quiet)
        hub.online = False
        assert model_files("owner/one", quiet) == first
        assert hub.asked == hub.fetched == ["owner/one"]
        assert {p.name for p in first.folder.iterdir()} == {
            "config.json",
            "model.safetensors",
            MANIFEST,
        }

    def test_a_gguf_file_is_fetched_where_there_is_nothing_else_or_it_is_named(
        self, hub: FakeHub, tmp_path: Path
    ) -> None:
        write_gguf(tmp_path / "a.gguf", "Q4_0")
        data = (tmp_path / "a.gguf").read_bytes()
        hub.repositories["owner/one"] = {"a.gguf": data, "README.md": b"x", "more/b.gguf": b"x"}
        found = model_files("owner/one", quiet)
        hub.add("owner/two", 200, **{"a.gguf": data, "b.gguf": b"x"})
        assert model_files("owner/two:a.gguf", quiet).fingerprint == found.fingerprint
        del hub.repositories["owner/two"]["model.safetensors"]
        with pytest.raises(DerbyError, match=r"2 GGUF files: name one, as in owner/two:a\.gguf"):
            model_files("owner/two", quiet)
        with pytest.raises(DerbyError, match="nor such a GGUF file"):
            model_files("owner/two:c.gguf", quiet)
        parts = {f"q4-0000{i}-of-00002.gguf": data for i in (1, 2)}
        hub.repositories["owner/three"] = parts | {"q8.gguf": b"x"}
        whole = gguf_file("owner/three:q4-00001-of-00002.gguf", quiet)
        assert {path.name for path in whole.parent.glob("*.gguf")} == set(parts)
        models = {model.name: model for model in fetched_models()}
        assert found.folder in models["owner/one"].folders, "what is made of it counts"
        remove_fetched("owner/one")
        assert not found.folder.exists(), "and goes with it"

    @pytest.mark.parametrize(
        ("wanted", "others"),
        [
            (
                {"config.json", "model.safetensors", "[a].json"},
                {"a.bin", "model.py", "consolidated.safetensors", "onnx/model.json"},
            ),
            (
                {"config.json", "openvino_model.xml", "openvino_model.bin"},
                {"openvino_tokenizer.bin", "a.bin", "pytorch_model.bin"},
            ),
        ],
        ids=["safetensors", "ready-made"],
    )
    def test_data_alone_is_fetched_and_of_the_top_folder(
        self, hub: FakeHub, wanted: set[str], others: set[str]
    ) -> None:
        files = dict.fromkeys(wanted | others, CONFIG.encode())
        weights = {name: save({}) for name in files if name.endswith(".safetensors")}
        hub.repositories["owner/one"] = files | weights
        folder = model_files("owner/one", quiet).folder
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        assert found == wanted | {MANIFEST}

    def test_a_model_without_safe_weights_is_refused_unfetched(self, hub: FakeHub) -> None:
        hub.repositories["owner/one"] = {"config.json": b"{}", "pytorch_model.bin": b"\x80"}
        with pytest.raises(DerbyError, match="neither safetensors weights nor"):
            model_files("owner/one", quiet)
        assert not hub.fetched

    def test_an_unreachable_model_is_one_clear_sentence(self, hub: FakeHub) -> None:
        with pytest.raises(DerbyError, match=r"'owner/none' could not be fetched \(OSError\)"):
            model_files("owner/none", quiet)

    def test_what_others_fetched_serves_where_the_hub_cannot_be_reached(
        self, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "config.json").write_text(CONFIG)
        (tmp_path / "model.safetensors").write_bytes(save({}))
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
        assert model_files("owner/one", quiet).folder == tmp_path

    def test_one_that_memory_or_the_disk_cannot_hold_is_refused_unfetched(
        self, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was downloaded until the disk was full."""
        hub.add("owner/one", 3_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000))
        with pytest.raises(DerbyError, match=r"needs 3 MB, and 2 MB are free"):
            model_files("owner/one", quiet)
        little = SimpleNamespace(available=1000)
        monkeypatch.setattr("psutil.virtual_memory", lambda: little)
        with pytest.raises(DerbyError, match=r"take 0\.0 GB and only 0\.0 GB"):
            model_files("owner/one", quiet)
        assert not hub.fetched


class TestQuota:
    """Any visitor could have any model downloaded, each beside all that were fetched before."""

    def test_without_a_quota_none_is_fetched_and_what_is_here_serves(self, hub: FakeHub) -> None:
        hub.add("owner/one")
        hub.add("owner/two")
        model_files("owner/one", quiet)
        HubQuota(0).fetch("owner/one", quiet)
        with pytest.raises(DerbyError, match=r"'owner/two' is not here.*hub_bytes is 0"):
            HubQuota(0).fetch("owner/two", quiet)
        assert hub.asked == ["owner/one"]

    def test_those_used_longest_ago_make_room(self, hub: FakeHub) -> None:
        quota = HubQuota(2000)
        for number, name in enumerate(("owner/one", "owner/two", "owner/three")):
            hub.add(name, 400)
            quota.fetch(name, quiet)
            age(name, RECENT + 100 * (3 - number))
        quota.fetch("owner/one", quiet)  # and so it is used just now
        hub.add("owner/four", 400)
        quota.fetch("owner/four", quiet)
        assert names() == {"owner/one", "owner/three", "owner/four"}

    def test_none_that_is_needed_or_used_just_now_makes_room(self, hub: FakeHub) -> None:
        quota = HubQuota(2000)
        for name in ("owner/one", "owner/two", "owner/new"):
            hub.add(name, 600)
        quota.fetch("owner/one", quiet)
        quota.fetch("owner/two", quiet)
        with pytest.raises(DerbyError, match=r"takes 0 MB.* may take 0 MB.* try again later"):
            quota.fetch("owner/new", quiet)
        age("owner/one", RECENT + 1)
        with pytest.raises(DerbyError, match="try again later"):
            quota.fetch("owner/new", quiet, needed={"owner/one"})
        assert names() == {"owner/one", "owner/two"}
        quota.fetch("owner/new", quiet)
        assert names() == {"owner/two", "owner/new"}

    def test_what_was_made_of_a_model_counts_and_goes_with_it(self, hub: FakeHub) -> None:
        """The conversion of a model is as large as the model, or twice that."""
        hub.add("owner/one")
        files = model_files("owner/one", quiet)
        (before,) = fetched_models()

        def convert(folder: Path) -> None:
            (folder / "a.bin").write_bytes(bytes(5000))

        made = prepared(f"openvino-fp32-{files.fingerprint[:16]}", EXPORT_RECIPE, convert)
        (after,) = fetched_models()
        assert after.size >= before.size + 5000
        age("owner/one", RECENT + 1)
        HubQuota(4000).trim({"owner/one"})
        assert made.exists()
        HubQuota(4000).trim()
        assert not made.exists()
        assert not fetched_models()

    def test_removal_is_by_name_and_tells_what_there_is(self, hub: FakeHub) -> None:
        hub.add("owner/one")
        folder = model_files("owner/one", quiet).folder
        with pytest.raises(DerbyError, match=r"'owner/two'.*there are: owner/one"):
            remove_fetched("owner/two")
        assert remove_fetched("owner/one") > 100
        assert not folder.exists()

    def test_a_race_fetches_within_the_limit_or_says_why_not(self, hub: FakeHub) -> None:
        hub.add("owner/one")
        models = LoadedModels(limits=Limits(hub_bytes=0))
        spec = ModelSpec("owner/one", "torch")
        models.require_room([spec], quiet)  # why it cannot be had is for its column to tell
        with pytest.raises(DerbyError, match="hub_bytes"):
            models.get(spec, quiet)
        assert not hub.asked
        allowed = LoadedModels(limits=Limits(hub_bytes=10**6))
        allowed.require_room([spec], quiet)
        assert hub.fetched == ["owner/one"]

    def test_what_the_operator_offers_is_fetched_at_the_start(self, hub: FakeHub) -> None:
        """A public page fetches nothing for its visitors, and so it must be there before them."""
        hub.add("owner/one")
        fetch_offered(["built-in", "./folder", "owner/one"], quiet)
        assert hub.fetched == ["owner/one"]


class TestDrafts:
    """A draft may be a Hub id, as its target may."""

    column = parse_column("speculative:draft=owner/draft")
    target = FakeEngine()

    def test_it_is_fetched_once(self, hub: FakeHub) -> None:
        hub.add("owner/draft")
        models = LoadedModels(limits=Limits(hub_bytes=10**6))
        for _ in range(2):
            found = Loading(models, quiet).weights(self.column, self.target)
            assert found == replace(self.target.spec, name="owner/draft")
            hub.online = False
        assert hub.fetched == ["owner/draft"]

    @pytest.mark.parametrize(
        ("limit", "said"),
        [
            (10**6, r"^The Hub model 'owner/draft' could not be fetched \(OSError\): check .*\.$"),
            (0, r"^The Hub model 'owner/draft' is not here, .*\(the limit hub_bytes is 0\).*\.$"),
        ],
    )
    def test_one_that_cannot_be_had_is_one_sentence_in_its_column(
        self, hub: FakeHub, limit: int, said: str
    ) -> None:
        hub.online = False
        columns = (parse_column("kv"), self.column)
        race = Race(Request("Hi", 4), columns, self.target.spec)
        models = LoadedModels(limits=Limits(hub_bytes=limit))
        plain, drafted = board_after(columns, events_of(race, models)).scores
        assert plain.message == ""
        assert re.search(said, drafted.message)
