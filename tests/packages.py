"""Packages that are installed for a test."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Declaration:
    """What they declare."""

    name: str


def install(folder: Path, name: str, module: str, group: str, entry: str) -> None:
    """Do what pip does: put the text of a module and its package's metadata into a folder of
    `sys.path`. The module is named like the package.
    """
    package = name.replace("-", "_")
    (folder / f"{package}.py").write_text(module, encoding="utf-8")
    metadata = folder / f"{package}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
