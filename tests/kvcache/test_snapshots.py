"""Snapshots: exactly what was saved, or a sentence that says why not."""

import errno
import os
import random
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, load_file, save

from backend.errors import DerbyError
from backend.kvcache import cache_file
from backend.kvcache.snapshots import (
    Binding,
    Snapshot,
    SnapshotFolder,
    StoredCache,
    default_folder,
    layout_of,
    require_fit,
)
from backend.limits import Limits

LENGTH = 5
MINE, OTHERS = "a" * 32, "b" * 32


def example(seed: int = 0) -> Snapshot:
    rng = np.random.default_rng(seed)
    arrays = {
        "a": rng.integers(-9, 9, (1, 1, LENGTH, 3)).astype(np.int8),
        "past.0.key": rng.standard_normal((1, 2, LENGTH, 4)).astype(np.float32),
        "past.0.value": rng.integers(0, 2**16, (1, 2, LENGTH, 4)).astype(np.uint16),
    }
    target = StoredCache(Binding("f" * 8, "openvino", "fp32", layout_of(arrays)), LENGTH, arrays)
    draft = StoredCache(Binding("d" * 8, "fake", "fp32", ""), 2, {})
    record = {"request": {"prompt": "Grüße \ud800 \N{SLICE OF PIZZA}"}, "list": [1, 2.5, None]}
    caches = {"target": target, "draft": draft}
    return Snapshot(record, (seed, 7, 2**31 - 1), (5, 6, 7, 8), caches)


def same(one: Snapshot, two: Snapshot) -> bool:
    if (one.record, one.prompt, one.answer) != (two.record, two.prompt, two.answer):
        return False
    return list(one.caches) == list(two.caches) and all(
        (cache.binding, cache.length) == (two.caches[name].binding, two.caches[name].length)
        and cache.arrays.keys() == two.caches[name].arrays.keys()
        and all(
            array.dtype == two.caches[name].arrays[key].dtype
            and np.array_equal(array, two.caches[name].arrays[key])
            for key, array in cache.arrays.items()
        )
        for name, cache in one.caches.items()
    )


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(tmp_path / "snapshots")


def file_of(folder: SnapshotFolder, name: str) -> Path:
    (path,) = folder.folder.glob(f"{name}*")
    return path


def refused(folder: SnapshotFolder, name: str, match: str = "") -> None:
    with pytest.raises(DerbyError, match=f"{name} .*{match}") as told:
        folder.load(name)
    assert len(str(told.value)) < 450


class TestRoundTrip:
    def test_what_was_saved_is_loaded(self, folder: SnapshotFolder) -> None:
        assert same(example(), folder.load(folder.save(example())))

    def test_views_and_numpy_tokens_are_saved_by_value(self, folder: SnapshotFolder) -> None:
        array = np.arange(48, dtype=np.float32).reshape(1, 4, 6, 2)[:, :, ::2].transpose(0, 3, 2, 1)
        arrays = {"k": array}
        cache = StoredCache(Binding("f", "torch", "fp32", layout_of(arrays)), 3, arrays)
        tokens = tuple(np.arange(3, dtype=np.int64))
        loaded = folder.load(folder.save(Snapshot({}, tokens, (), {"target": cache})))
        assert loaded.prompt == (0, 1, 2)
        assert np.array_equal(loaded.caches["target"].arrays["k"], array)

    def test_other_programs_can_open_the_file(self, folder: SnapshotFolder) -> None:
        arrays = load_file(file_of(folder, folder.save(example())))
        for key, array in example().caches["target"].arrays.items():
            assert np.array_equal(arrays[f"target/{key}"], array)

    def test_info_tells_all_but_the_arrays(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        path = file_of(folder, name)
        info = folder.info(name)
        assert (info.id, info.bytes) == (name, path.stat().st_size)
        assert (info.prompt_tokens, info.answer_tokens, info.record) == (3, 4, example().record)
        assert info.bindings == {k: c.binding for k, c in example().caches.items()}
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert folder.info(name) == info
        refused(folder, name, "arrays are not those")

    def test_the_list_is_newest_first(self, folder: SnapshotFolder) -> None:
        assert folder.list() == []
        names = [folder.save(example(i)) for i in range(3)]
        assert [info.id for info in folder.list()] == names[::-1]

    def test_the_default_folder_is_in_the_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
        assert default_folder().folder == tmp_path / "snapshots"


@pytest.mark.parametrize("field", ["fingerprint", "engine", "precision", "layout"])
def test_a_cache_of_something_else_is_refused_with_both_named(field: str) -> None:
    fit = Binding("f", "openvino", "fp32", "")
    require_fit("target", fit, replace(fit))
    with pytest.raises(DerbyError, match=f"draft cache .*{field} '.*'.* 'other': load"):
        require_fit("draft", fit, replace(fit, **{field: "other"}))


def test_the_layout_names_every_kind_of_array() -> None:
    small = np.zeros((1, 3, 9, 64), np.float32)
    arrays = {"a": small, "b": small, "c": np.zeros((1, 1, 9, 2), np.int8)}
    assert layout_of(arrays) == "2 x float32 [1, 3, n, 64], 1 x int8 [1, 1, n, 2]"
    assert layout_of({}) == ""


class TestSaving:
    @pytest.mark.parametrize("record", [{"x": float("nan")}, {"x": object()}])
    def test_what_json_cannot_say_is_not_saved(self, folder: SnapshotFolder, record: Any) -> None:
        with pytest.raises(DerbyError, match=r"This state cannot be saved: .*JSON"):
            folder.save(replace(example(), record=record))
        assert not folder.folder.exists()

    def test_a_state_or_file_beyond_the_limit_is_refused(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        folder.max_bytes = 100
        with pytest.raises(DerbyError, match=r"This state takes \d+ bytes, and the limit is 100"):
            folder.save(example())
        refused(folder, name, "limit is 100")
        assert len(list(folder.folder.iterdir())) == 1

    @pytest.mark.parametrize(
        ("step", "error"),
        [
            ((cache_file, "save_file"), cache_file.SafetensorError("no room")),
            ((os, "fsync"), OSError(errno.ENOSPC, "no room")),
            ((Path, "replace"), OSError(errno.EDQUOT, "no room")),
            ((cache_file, "flush"), OSError(errno.EIO, "no room")),
            ((os, "fsync"), KeyboardInterrupt()),
        ],
    )
    def test_a_failure_in_the_middle_leaves_nothing(
        self,
        folder: SnapshotFolder,
        monkeypatch: pytest.MonkeyPatch,
        step: Any,
        error: BaseException,
    ) -> None:
        def fail(*_: object) -> None:
            assert any(folder.folder.iterdir())
            raise error

        monkeypatch.setattr(*step, fail)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                folder.save(example())
        else:
            with pytest.raises(DerbyError, match=r"\(no room\): make room in the cache folder"):
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
        finally:
            os.umask(before)
        assert stat.S_IMODE(file_of(folder, name).stat().st_mode) == 0o600
        assert same(example(), folder.load(name))
        folder.folder.chmod(0o755)  # as earlier versions left it
        folder.tidy()
        assert stat.S_IMODE(folder.folder.stat().st_mode) == 0o700

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
        monkeypatch.setattr("backend.kvcache.cache_file.safe_open", fail)
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

    def test_all_together_take_so_many_bytes_and_no_more(self, folder: SnapshotFolder) -> None:
        name = folder.save(example(), MINE)
        size = folder.info(name).bytes
        folder.save(example(), OTHERS)
        folder.limits = Limits(snapshot_bytes=2 * size + 100)
        with pytest.raises(
            DerbyError, match=rf"beside {2 * size:,} .* limit is {2 * size + 100:,} .*delete one"
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
            with pytest.raises(DerbyError, match="was not saved in this browser"):
                folder.remove_own(name, MINE)  # type: ignore[arg-type]
        assert same(example(), folder.load(theirs))
        folder.remove_own(mine, MINE)
        assert folder.list(MINE) == []
        assert len(folder.list()) == 2

    def test_old_ones_of_visitors_go_and_no_others(self, tmp_path: Path) -> None:
        folder = SnapshotFolder(tmp_path, Limits(snapshot_hours=2))
        names = [folder.save(example(), owner) for owner in (MINE, MINE, "")]
        abandoned, at_work = (tmp_path / f"0123456789abcd{x}f.partial" for x in "ef")
        for path in (abandoned, at_work):
            path.write_bytes(b"")
        then = time.time() - 2 * 3600 - 60
        for path in [abandoned, *(file_of(folder, name) for name in names[1:])]:
            os.utime(path, (then, then))
        kept = folder.save(example(), OTHERS)
        assert {info.id for info in folder.list()} == {names[0], names[2], kept}
        assert at_work.exists()
        assert not abandoned.exists()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    whole = file_of(folder, name).read_bytes()
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
            path.write_bytes(data if kind == "file" else whole[: 9 * len(data)])
            path.chmod(0 if kind == "closed" else 0o600)
    assert [info.id for info in folder.list(MINE)] == [name]
    assert [info.id for info in folder.list()] == [name]
    folder.tidy()
    folder.save(example(), MINE)


class TestIds:
    @pytest.mark.parametrize(
        "name", ["", ".", "../x", "0" * 15, "0" * 16, "0" * 16 + "\n", "/etc/x", None, "listed"]
    )
    def test_only_ids_of_snapshots_reach_the_disk(self, folder: SnapshotFolder, name: Any) -> None:
        """The page has a box for an id and no list; the error said to choose from those listed."""
        for act in (folder.load, folder.info, folder.remove):
            with pytest.raises(DerbyError, match=r"There is no snapshot .*: give the id"):
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
        outside = file_of(folder, folder.save(example())).rename(tmp_path / "outside")
        link, pipe, directory = (folder.folder / f"{c * 16}.safetensors" for c in "abc")
        link.symlink_to(outside)
        os.mkfifo(pipe)
        directory.mkdir()
        for path in (link, pipe, directory):
            for act in (folder.load, folder.info):
                with pytest.raises(DerbyError, match="is not a file: remove it"):
                    act(path.stem)
        folder.remove("a" * 16)
        assert outside.exists()
        with pytest.raises(DerbyError, match="Cannot remove"):
            folder.remove("c" * 16)


EARLIER = {"format": "decode-derby-snapshot-1", "snapshot": "{}", "arrays": "", "digest": ""}


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "damaged"),
        (b"PK\x03\x04" + b"\0" * 100, "damaged"),
        ((2**17).to_bytes(8, "little") + b"[" * 2**17, "damaged"),
        (save({"a": np.zeros(3)}), "not a file of Decode Derby"),
        (save({"a": np.zeros(3)}, {"format": "pt"}), "not a file of Decode Derby"),
        (save({}, EARLIER), "'decode-derby-snapshot-1', and this version reads 'decode-derby-"),
    ],
)
def test_other_files_are_named_for_what_they_are(
    folder: SnapshotFolder, data: bytes, match: str
) -> None:
    name = folder.save(example())
    file_of(folder, name).write_bytes(data)
    refused(folder, name, f"cannot be used: .*{match}.*; remove it and save it again")


def test_a_sparse_file_takes_no_memory(
    folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = folder.save(example())
    os.truncate(file_of(folder, name), 2**32)
    monkeypatch.setattr(cache_file.CacheFile, "arrays", lambda _: pytest.fail("read"))
    refused(folder, name, "damaged")


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
    """A damaged file is refused, unless what is in it is still exactly what was saved."""

    def holds(self, folder: SnapshotFolder, name: str, path: Path, data: bytes) -> bool:
        path.write_bytes(data)
        try:
            loaded = folder.load(name)
        except DerbyError:
            return False
        assert same(loaded, example())
        return True

    def test_thousands_of_damaged_files_are_refused(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        path, other = file_of(folder, name), file_of(folder, folder.save(example(1)))
        one, two, rng = path.read_bytes(), other.read_bytes(), random.Random(7)
        spoilt = [data for _ in range(1000) if (data := damaged(one, two, rng)) != one]
        refusals = sum(not self.holds(folder, name, path, data) for data in spoilt)
        assert refusals > 800

    def test_every_single_bit_counts(self, folder: SnapshotFolder) -> None:
        name = folder.save(example())
        path = file_of(folder, name)
        one = path.read_bytes()
        for at in range(len(one)):
            data = one[:at] + bytes([one[at] ^ 1 << at % 8]) + one[at + 1 :]
            assert not self.holds(folder, name, path, data), (at, one[at])

    def test_header_and_arrays_of_two_files_do_not_mix(self, folder: SnapshotFolder) -> None:
        paths = [file_of(folder, folder.save(example(seed))) for seed in (0, 1)]
        one, two = (path.read_bytes() for path in paths)
        start = 8 + int.from_bytes(one[:8], "little")
        assert load(one).keys() == load(two).keys()
        paths[0].write_bytes(one[:start] + two[start:])
        refused(folder, paths[0].stem, "arrays are not those")
