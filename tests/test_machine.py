"""Threads are as many as a container's quota pays for, not as many as its host has cores."""

from math import inf
from pathlib import Path

import pytest

from backend.machine import quota


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "", inf),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "50000 100000\n"}, "0::/a/b\n", 0.5),
        ({"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "max 100000\n"}, "0::/a/b\n", 1.0),
    ],
)
def test_the_tightest_group_counts(
    tmp_path: Path, files: dict[str, str], own: str, expected: float
) -> None:
    groups, group = tmp_path / "groups", tmp_path / "own"
    group.write_text(own)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text)
    assert quota(groups, group) == expected
