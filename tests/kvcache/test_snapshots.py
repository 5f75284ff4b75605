"""Snapshots: exactly what was saved, or a sentence that says why not."""

import errno
import hashlib
import json
import os
import random
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from backend.errors import DerbyError
from backend.kvcache import snapshot_file, snapshots
from backend.kvcache.snapshot_file import write_file
from backend.kvcache.snapshots import (
    Binding,
    Snapshot,
    SnapshotFolder,
    StoredCache,
    default_folder,
    layout_of,
    parse,
    require_fit,
)
from backend.limits import Limits

Content = dict[str, Any]
LENGTH = 5
MINE, OTHERS = "a" * 32, "b" * 32


def example(seed: int = 0) -> Snapshot:
    rng = np.random.default_rng(seed)
    arrays = {
        # int8 before float32 by name: alignment needs another order
        "a": rng.integers(-9, 9, (1, 1, LENGTH, 3)).astype(np.int8),
        "past.0.key": rng.standard_normal((1, 2, LENGTH, 4)).astype(np.float32),
        "past.0.value": rng.integers(0, 2**16, (1, 2, LENGTH, 4)).astype(np.uint16),
    }
    target = StoredCache(Binding("f" * 8, "openvino", "fp32", layout_of(arrays)), LENGTH, arrays)
    draft = StoredCache(Binding("d" * 8, "fake", "fp32", ""), 2, {})
    record = {"request": {"prompt": "Grüße \ud800 \N{SLICE OF PIZZA}"}, "list": [1, 2.5, None]}
    caches = {"target": target, "draft": draft}
    return Snapshot(record, (seed, 7, 2**31 - 1), (5, 6, 7, 8), caches)


def rendered(snapshot: Snapshot) -> bytes:
    header, chunks = snapshots._render(snapshot)
    return b"".join([header, *chunks])


def signed(change: Callable[[Content], object], table: Any = None, data: bytes = b"") -> bytes:
    """A file with right digests over wrong content: what no damage, but a forger, can make."""
    bare = replace(example(), caches={"draft": example().caches["draft"]})
    header, _ = snapshots._render(bare)
    content = json.loads(json.loads(header[8:])["__metadata__"]["snapshot"])
    change(content)
    digest = hashlib.sha256(data).hexdigest()
    return snapshot_file._header(json.dumps(content), table or {}, digest) + data


def assert_same(one: Snapshot, two: Snapshot) -> None:
    assert (one.record, one.prompt, one.answer) == (two.record, two.prompt, two.answer)
    assert list(one.caches) == list(two.caches)
    for name, cache in one.caches.items():
        other = two.caches[name]
        assert (cache.binding, cache.length) == (other.binding, other.length)
        assert cache.arrays.keys() == other.arrays.keys()
        for key, array in cache.arrays.items():
            assert array.dtype == other.arrays[key].dtype
            assert np.array_equal(array, other.arrays[key])


def refused(data: bytes, match: str = "") -> None:
    with pytest.raises(
        DerbyError, match=f"This snapshot cannot be used: .*{match}.*; remove"
    ) as told:
        parse(data)
    assert len(str(told.value)) < 400


def modes(folder: SnapshotFolder) -> set[int]:
    """Rights of the folder and of all files in it."""
    return {stat.S_IMODE(p.stat().st_mode) for p in (folder.folder, *folder.folder.iterdir())}


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(tmp_path / "snapshots")


class TestRoundTrip:
    def test_what_was_saved_is_loaded(self, folder: SnapshotFolder) -> None:
        loaded = folder.load(folder.save(example()))
        assert_same(example(), loaded)
        for array in loaded.caches["target"].arrays.values():
            assert not array.flags.writeable
            assert array.flags.aligned

    def test_strided_and_big_endian_arrays_and_numpy_tokens_are_saved_by_value(self) -> None:
        array = np.arange(48, dtype=">f4").reshape(1, 4, 6, 2)[:, :, ::2].transpose(0, 3, 2, 1)
        arrays = {"k": array}
        cache = StoredCache(Binding("f", "torch", "fp32", layout_of(arrays)), 3, arrays)
        tokens = tuple(np.arange(3, dtype=np.int64))
        loaded = parse(rendered(Snapshot({}, tokens, (), {"target": cache})))
        assert loaded.prompt == (0, 1, 2)
        assert np.array_equal(loaded.caches["target"].arrays["k"], array)

    def test_other_programs_can_open_the_file(self, folder: SnapshotFolder) -> None:
        plain = replace(example(), record={})
        path = folder.folder / f"{folder.save(plain)}.safetensors"
        with safe_open(path, "np") as file:
            for key, array in plain.caches["target"].arrays.items():
                assert np.array_equal(file.get_tensor(f"target/{key}"), array)

    def test_info_tells_all_but_the_arrays(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        path = folder.folder / f"{name}.safetensors"
        info = folder.info(name)
        assert (info.id, info.bytes) == (name, path.stat().st_size)
        assert (info.prompt_tokens, info.answer_tokens, info.record) == (3, 4, example().record)
        assert info.bindings == {k: c.binding for k, c in example().caches.items()}
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert folder.info(name) == info
        with pytest.raises(DerbyError, match="arrays are not those"):
            folder.load(name)

    def test_the_list_is_newest_first_and_skips_what_is_damaged(
        self, folder: SnapshotFolder
    ) -> None:
        assert folder.list() == []
        names = [folder.save(example(i)) for i in range(4)]
        (folder.folder / f"{names[1]}.safetensors").write_bytes(b"damaged")
        (folder.folder / "notes.safetensors").write_bytes(save({"a": np.zeros(1)}))
        (folder.folder / "0123456789abcdef.partial").write_bytes(b"")
        assert [info.id for info in folder.list()] == [names[3], names[2], names[0]]

    def test_the_default_folder_is_in_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
        assert default_folder().folder == tmp_path / "snapshots"


class TestFit:
    FIT = Binding("f", "openvino", "fp32", "")

    def test_equal_bindings_fit(self) -> None:
        require_fit("target", self.FIT, replace(self.FIT))

    @pytest.mark.parametrize("field", ["fingerprint", "engine", "precision", "layout"])
    def test_a_difference_is_told_with_both_values(self, field: str) -> None:
        present = replace(self.FIT, **{field: "other"})
        with pytest.raises(DerbyError, match=f"draft cache .*{field} '.*'.* 'other': load"):
            require_fit("draft", self.FIT, present)

    def test_the_layout_names_every_kind_of_array(self) -> None:
        small = np.zeros((1, 3, 9, 64), np.float32)
        arrays = {"a": small, "b": small, "c": np.zeros((1, 1, 9, 2), np.int8)}
        assert layout_of(arrays) == "2 x float32 [1, 3, n, 64], 1 x int8 [1, 1, n, 2]"
        assert layout_of({}) == ""


def four_d(*shape: int, kind: type = np.float32) -> Snapshot:
    arrays = {"k": np.zeros(shape, kind)}
    binding = Binding("f", "fake", "fp32", layout_of(arrays))
    return replace(example(), caches={"target": StoredCache(binding, 3, arrays)})


class TestSaving:
    @pytest.mark.parametrize(
        ("snapshot", "match"),
        [
            (replace(example(), prompt=(-1,)), "token id -1"),
            (replace(example(), answer=(2**31,)), f"token id {2**31}.*to {2**31 - 1}"),
            (replace(example(), answer=(1.0,)), "float"),
            (replace(example(), record={"x": float("nan")}), "JSON"),
            (replace(example(), record={"x": object()}), "JSON"),
            (replace(example(), record=[]), "content"),
            (replace(example(), record={"x": "y" * 2**22}), "limit is 4194304"),
            (replace(example(), prompt=(), answer=(1,)), "5 tokens, and the text has 1"),
            (four_d(1, 1, 2, 1), "2 tokens, its cache of 3"),
            (four_d(1, 3, 1), "4-D"),
            (four_d(1, 0, 3, 1), "values"),
            (four_d(1, 1, 3, 1, kind=np.complex64), "complex64, not one of F64"),
            (replace(example(), caches={"a/b": example().caches["draft"]}), "'a/b'"),
            (
                replace(example(), caches={"x": replace(example().caches["target"], arrays={})}),
                "'', not '1 x",
            ),
        ],
    )
    def test_what_load_would_refuse_is_not_saved(
        self, folder: SnapshotFolder, snapshot: Snapshot, match: str
    ) -> None:
        with pytest.raises(DerbyError, match=match) as told:
            folder.save(snapshot)
        assert str(told.value).startswith("This state cannot be saved: ")
        assert not folder.folder.exists()

    def test_deep_nesting_is_refused(self, folder: SnapshotFolder) -> None:
        deep: Content = {}
        for _ in range(100_000):
            deep = {"x": deep}
        with pytest.raises(DerbyError, match="recursion"):
            folder.save(replace(example(), record=deep))

    def test_a_state_beyond_the_limit_is_refused(self, folder: SnapshotFolder) -> None:
        folder.max_bytes = 1000
        with pytest.raises(DerbyError, match=r"takes \d+ bytes, and the limit is 1000"):
            folder.save(example())
        assert not folder.folder.exists()

    @pytest.mark.parametrize("step", [(os, "fsync"), (Path, "replace"), (snapshot_file, "flush")])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_a_failure_in_the_middle_leaves_nothing(
        self, folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch, step: Any, code: int
    ) -> None:
        def fail(*_: object) -> None:
            assert any(folder.folder.iterdir())
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(*step, fail)
        remedy = "check the permissions" if code == errno.EIO else "make room"
        with pytest.raises(DerbyError, match=f"{os.strerror(code)}.*{remedy}"):
            folder.save(example())
        assert list(folder.folder.iterdir()) == []

    def test_an_interrupt_leaves_nothing(
        self, folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            folder.save(example())
        assert list(folder.folder.iterdir()) == []

    def test_a_file_in_the_folders_place_is_told(self, folder: SnapshotFolder) -> None:
        folder.folder.write_text("a file")
        for act in (lambda: folder.save(example()), folder.list):
            with pytest.raises(DerbyError, match=r"cannot be read \(Not a directory\)"):
                act()
        folder.tidy()
        assert folder.folder.read_text() == "a file"

    @pytest.mark.parametrize("umask", [0, 0o022, 0o777])
    def test_files_are_their_owner_s_alone_whatever_the_umask(
        self, folder: SnapshotFolder, umask: int
    ) -> None:
        """They hold prompts, and were 0644 in folders of 0755."""
        before = os.umask(umask)
        try:
            name = folder.save(example(), MINE)
            folder.save(example(1))
        finally:
            os.umask(before)
        assert modes(folder) == {0o700, 0o600}
        assert_same(example(), folder.load(name))

    def test_what_an_earlier_version_left_open_is_closed(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        folder.folder.chmod(0o755)
        (folder.folder / f"{name}.safetensors").chmod(0o644)
        folder.tidy()
        assert modes(folder) == {0o700, 0o600}

    @pytest.mark.parametrize("act", ["save", "list", "load", "remove"])
    def test_no_sentence_names_a_folder(
        self, folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch, act: str
    ) -> None:
        """On a full disk a visitor of the page read where the server keeps its files."""
        name = folder.save(example())

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.folder))

        for step in ("open", "unlink"):
            monkeypatch.setattr(os, step, fail)
        monkeypatch.setattr(Path, "iterdir", fail) if act == "list" else None
        acts: dict[str, Callable[[], object]] = {
            "save": lambda: folder.save(example()),
            "list": folder.list,
            "load": lambda: folder.load(name),
            "remove": lambda: folder.remove(name),
        }
        with pytest.raises(DerbyError) as told:
            acts[act]()
        assert os.strerror(errno.ENOSPC) in str(told.value)
        assert "/" not in str(told.value)


class TestWriters:
    """Two writers of one name: the one that gave up removed the file of the other."""

    CHUNKS = (b"first", b" and last")

    def test_the_second_one_fails_and_the_first_one_s_file_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "0123456789abcdef.safetensors"

        def written_twice() -> Iterator[bytes]:
            yield self.CHUNKS[0]
            with pytest.raises(FileExistsError):
                write_file(path, [b"other"])
            yield self.CHUNKS[1]

        write_file(path, written_twice())
        assert path.read_bytes() == b"".join(self.CHUNKS)
        with pytest.raises(FileExistsError):
            write_file(path, [b"other"])
        assert path.read_bytes() == b"".join(self.CHUNKS)
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("step", [(os, "fsync"), (Path, "replace"), (snapshot_file, "flush")])
    def test_a_failure_removes_nothing_of_another_one_s(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Any
    ) -> None:
        other, path = tmp_path / "other.safetensors", tmp_path / "mine.safetensors"
        write_file(other, self.CHUNKS)

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(*step, fail)
        for target in (path, other):
            with pytest.raises(OSError, match=r"full|exists"):
                write_file(target, [b"mine"])
        assert list(tmp_path.iterdir()) == [other]
        assert other.read_bytes() == b"".join(self.CHUNKS)

    @pytest.mark.parametrize("writers", [2, 8])
    def test_of_many_at_once_one_succeeds(self, tmp_path: Path, writers: int) -> None:
        path, start = tmp_path / "one.safetensors", threading.Barrier(writers)
        succeeded: list[int] = []

        def write(number: int) -> None:
            start.wait()
            with suppress(FileExistsError):
                write_file(path, [bytes([number])] * 4096)
                succeeded.append(number)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(succeeded) == 1
        assert path.read_bytes() == bytes(succeeded) * 4096
        assert list(tmp_path.iterdir()) == [path]


class TestQuota:
    """Eight clicks on Save wrote 644 MB, no visitor could delete one, and nothing aged."""

    def test_a_visitor_keeps_so_many_and_no_more(self, tmp_path: Path) -> None:
        folder = SnapshotFolder(tmp_path, Limits(snapshots=2))
        names = [folder.save(example(seed), MINE) for seed in range(2)]
        with pytest.raises(DerbyError, match="You keep 2 snapshots, and the limit is 2: delete"):
            folder.save(example(), MINE)
        folder.save(example(), OTHERS)
        folder.save(example())
        folder.remove_own(names[0], MINE)
        folder.save(example(3), MINE)

    def test_visitors_who_may_save_none_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(DerbyError, match="the limit is 0: none can be saved"):
            SnapshotFolder(tmp_path, Limits(snapshots=0)).save(example(), MINE)

    def test_all_together_take_so_many_bytes_and_no_more(self, tmp_path: Path) -> None:
        size = len(rendered(example()))
        folder = SnapshotFolder(tmp_path, Limits(snapshot_bytes=2 * size))
        name = folder.save(example(), MINE)
        folder.save(example(), OTHERS)
        with pytest.raises(
            DerbyError, match=rf"{size:,} bytes beside {2 * size:,} .* limit is {2 * size:,} .*del"
        ):
            folder.save(example())
        assert len(folder.list()) == 2
        folder.remove_own(name, MINE)
        folder.save(example())

    def test_only_who_saved_one_sees_it_among_their_own_and_may_delete_it(
        self, folder: SnapshotFolder
    ) -> None:
        mine, theirs, nobodys = (folder.save(example(), owner) for owner in (MINE, OTHERS, ""))
        assert [info.id for info in folder.list(MINE)] == [mine]
        assert {info.id for info in folder.list()} == {mine, theirs, nobodys}
        for name in (theirs, nobodys, "0" * 16, "../x", None):
            with pytest.raises(DerbyError, match="You saved no snapshot"):
                folder.remove_own(name, MINE)  # type: ignore[arg-type]
        assert_same(example(), folder.load(theirs))
        folder.remove_own(mine, MINE)
        assert folder.list(MINE) == []
        assert len(folder.list()) == 2

    def test_old_ones_of_visitors_go_and_no_others(self, tmp_path: Path) -> None:
        folder = SnapshotFolder(tmp_path, Limits(snapshot_hours=2))
        names = [folder.save(example(), owner) for owner in (MINE, MINE, "")]
        abandoned = tmp_path / "0123456789abcdef.partial"
        abandoned.write_bytes(b"")
        at_work = tmp_path / "0123456789abcdff.partial"
        at_work.write_bytes(b"")
        then = time.time() - 2 * 3600 - 60
        for path in [abandoned, *(folder._path(name) for name in names[1:])]:
            os.utime(path, (then, then))
        kept = folder.save(example(), OTHERS)
        assert {info.id for info in folder.list()} == {names[0], names[2], kept}
        assert at_work.exists()
        assert not abandoned.exists()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.from_regex(r"[0-9a-f]{16}(-[0-9a-f]{32})?\.safetensors", fullmatch=True),
                st.from_regex(r"[a-z0-9 -]{1,20}\.(safetensors|partial)", fullmatch=True),
            ),
            st.sampled_from(["file", "folder", "link", "pipe", "cut", "closed"]),
            st.binary(max_size=40),
        ),
        max_size=6,
    )
)
def test_foreign_and_damaged_files_never_keep_the_list_from_being_told(
    tmp_path: Path, foreign: list[tuple[str, str, bytes]]
) -> None:
    place = tmp_path / secrets.token_hex(8)
    folder = SnapshotFolder(place)
    name = folder.save(example(), MINE)
    for file, kind, data in foreign:
        path = place / file
        if path.exists() or path.is_symlink() or name in file:
            continue
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(place / "nowhere")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(data if kind == "file" else rendered(example())[: 9 * len(data)])
            path.chmod(0 if kind == "closed" else 0o600)
    assert [info.id for info in folder.list(MINE)] == [name]
    assert [info.id for info in folder.list()] == [name]
    folder.tidy()
    folder.save(example(), MINE)


class TestIds:
    @pytest.mark.parametrize(
        "name",
        ["", ".", "../x", "0" * 15, "0" * 17, "0" * 15 + "G", "0" * 16 + "\n", "/etc/x", None],
    )
    def test_only_ids_reach_the_disk(self, folder: SnapshotFolder, name: Any) -> None:
        for act in (folder.load, folder.info, folder.remove):
            with pytest.raises(DerbyError, match="There is no snapshot"):
                act(name)

    def test_removed_is_gone(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        folder.remove(name)
        for act in (folder.load, folder.info, folder.remove):
            with pytest.raises(DerbyError, match="There is no snapshot"):
                act(name)

    def test_links_pipes_and_folders_are_not_followed(
        self, folder: SnapshotFolder, tmp_path: Path
    ) -> None:
        outside = folder.folder / f"{folder.save(example())}.safetensors"
        outside = outside.rename(tmp_path / "outside")
        link, pipe, directory = (folder.folder / f"{c * 16}.safetensors" for c in "abc")
        link.symlink_to(outside)
        os.mkfifo(pipe)
        directory.mkdir()
        for path in (link, pipe, directory):
            for act in (folder.load, folder.info):
                with pytest.raises(DerbyError):
                    act(path.stem)
        assert folder.list() == []
        folder.remove("a" * 16)
        assert outside.exists()
        with pytest.raises(DerbyError, match="Cannot remove"):
            folder.remove("c" * 16)


class TestRefusals:
    def test_a_file_beyond_the_limit_is_not_read(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        with pytest.raises(DerbyError, match="limit is 100"):
            SnapshotFolder(folder.folder, max_bytes=100).load(name)

    def test_a_sparse_file_takes_no_memory(
        self, folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = folder.save(example())
        os.truncate(folder.folder / f"{name}.safetensors", 2**32)
        monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("allocated"))
        with pytest.raises(DerbyError, match=rf"{name} .* {2**32} bytes where"):
            folder.load(name)

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (b"", "0 bytes"),
            (b"\xff" * 8, "8 bytes, fewer"),
            (b"\x02" + b"\0" * 7 + b"[]", "header is not a JSON object"),
            (b"\x02" + b"\0" * 7 + b"\xff{", "header is not a JSON object"),
            ((2**17).to_bytes(8, "little") + b"[" * 2**17, "header is not a JSON object"),
            ((2**23).to_bytes(8, "little") + b" " * 2**23, "limit is 4194304"),
            (b"PK\x03\x04" + b"\0" * 100, "104 bytes, fewer"),
            (save({"a": np.zeros(3)}), "not a snapshot of Decode Derby"),
            (save({"a": np.zeros(3)}, {"format": "pt"}), "not a snapshot of Decode Derby"),
            (
                save({"a": np.zeros(3)}, {"format": "pt", "snapshot": "", "arrays": ""}),
                "format is 'pt', and this version reads",
            ),
        ],
    )
    def test_other_files_are_named_for_what_they_are(self, data: bytes, match: str) -> None:
        refused(data, match)

    @pytest.mark.parametrize(
        ("key", "values"),
        [
            ("created", [None, 1, "", "yesterday", "2024-01-01T00:00:00"]),
            ("record", [None, [], "x"]),
            (
                "prompt",
                [None, {}, "abc", [True], [1.0], ["1"], ["1" * 2**20], [-1], [2**31], [[1]], [1]],
            ),
            ("answer", [None, {}, [None], [2**80]]),
            ("tokens", [None, 1, "", "0" * 64]),
            ("caches", [None, [], {"x": None}, {"x": {}}, {"x": []}]),
        ],
    )
    def test_wrong_types_and_values_are_refused_under_right_digests(
        self, key: str, values: list[object]
    ) -> None:
        parse(signed(lambda content: None))
        refused(signed(lambda content: content.pop(key)))
        for value in values:
            refused(signed(lambda content, value=value: content.update({key: value})))

    @pytest.mark.parametrize(
        "change",
        [
            {"length": -1},
            {"length": 8},
            {"length": True},
            {"length": 2.0},
            {"length": "2"},
            {"binding": None},
            {"binding": {}},
            {"binding": {"fingerprint": 1, "engine": "", "precision": "", "layout": ""}},
            {"binding": {"fingerprint": "", "engine": "", "precision": "", "layout": [], "x": 1}},
            {"binding": {"fingerprint": "", "engine": "", "precision": "", "layout": "1 x int8"}},
        ],
    )
    def test_wrong_caches_are_refused_under_right_digests(self, change: Content) -> None:
        refused(signed(lambda content: content["caches"]["draft"].update(change)))

    @pytest.mark.parametrize(
        ("table", "size"),
        [
            ({"draft/k": ("I8", [1, 1, 3, 1])}, 3),
            ({"other/k": ("I8", [1, 1, 2, 1])}, 2),
            ({"draft": ("I8", [1, 1, 2, 1])}, 2),
            ({"draft/k": ("I8", [1, 2, 1])}, 2),
            ({"draft/k": ("I8", [1, 1, -2, -1])}, 2),
            ({"draft/k": ("I8", [2**31 - 1, 2**31 - 1, 2, 2**31 - 1])}, 2),
            ({"draft/k": ("I8", [2**62, 2**62, 0, 1])}, 0),
            ({"draft/k": ("I8", [True, 1, 2, 1])}, 2),
        ],
    )
    def test_wrong_tables_are_refused_under_right_digests(self, table: Content, size: int) -> None:
        refused(signed(lambda content: None, table, bytes(size)))

    def test_an_array_needs_a_name_of_its_own(self) -> None:
        def bind(content: Content) -> None:
            content["caches"]["draft"]["binding"]["layout"] = "1 x int8 [1, 1, n, 1]"

        entry = "I8", [1, 1, 2, 1]
        parse(signed(bind, {"draft/k": entry}, bytes(2)))
        refused(signed(bind, {"draft": entry}, bytes(2)), "'draft'")

    def test_a_dtype_that_is_not_ours_is_refused(self) -> None:
        array = np.ones((1, 1, 2, 1), bool)
        meta = {"format": snapshot_file.FORMAT, "snapshot": "{}", "arrays": "", "digest": ""}
        refused(save({"draft/k": array}, meta), "known dtype")


def damaged(one: bytes, two: bytes, rng: random.Random) -> bytes:
    """One of many ways to spoil file `one`; `two` is another intact file."""
    data = bytearray(one)
    at, other = rng.randrange(len(one)), rng.randrange(len(one))
    match rng.randrange(8):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data[at], data[other] = data[other], data[at]
        case 3:
            data += rng.randbytes(rng.randrange(1, 40))
        case 4:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        case 5:
            del data[at : at + rng.randrange(1, 9)]
        case 6:  # most damaging in the header's length
            data[rng.randrange(8)] = rng.randrange(256)
        case _:
            data[at:other] = two[at:other]
    return bytes(data)


class TestDamage:
    def test_ten_thousand_damaged_files_are_refused(self) -> None:
        one, two = rendered(example(0)), rendered(example(1))
        rng = random.Random(7)
        refusals = 0
        for _ in range(10_000):
            data = damaged(one, two, rng)
            if data == one:
                continue
            refused(data)
            refusals += 1
        assert refusals > 8000

    def test_every_single_bit_counts(self) -> None:
        one = rendered(example())
        for at in range(len(one)):
            refused(one[:at] + bytes([one[at] ^ 1 << at % 8]) + one[at + 1 :])

    def test_header_and_arrays_of_two_files_do_not_mix(self) -> None:
        one, two = rendered(example(0)), rendered(example(1))
        starts = [8 + int.from_bytes(x[:8], "little") for x in (one, two)]
        assert len(one) == len(two)
        refused(one[: starts[0]] + two[starts[1] :], "arrays are not those")
        refused(two[: starts[1]] + one[starts[0] :], "arrays are not those")


@pytest.mark.parametrize("name", ["0123456789abcdef", "nonsense", ""])
def test_an_unknown_snapshot_s_sentence_holds_where_nothing_is_listed(
    tmp_path: Path, name: str
) -> None:
    """The page has a box for an id and no list; the error said to choose one of those listed."""
    with pytest.raises(DerbyError, match="no snapshot") as caught:
        SnapshotFolder(tmp_path).load(name)
    assert "listed" not in str(caught.value)
    assert "id" in str(caught.value)
