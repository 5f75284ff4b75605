"""The launch: what the operator can change is one sentence and exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--limit", "columns=0"], "The limit 'columns' is '0'"),
        (["--limit", "colums=3"], "There is no limit 'colums'"),
        (["--port", "65536"], "Nothing can be served at 127.0.0.1, port 65536"),
        (["--host", "no.such.host.invalid"], "Nothing can be served at no.such.host.invalid"),
        (["--host", "192.0.2.1"], "Nothing can be served at 192.0.2.1"),
        (["--model", "./nowhere"], "There is no model folder './nowhere'"),
    ],
)
def test_a_launch_that_cannot_be_is_one_sentence(options: list[str], told: str) -> None:
    """A port in use and a bad host were tracebacks; a wrong limit ended with exit code 1."""
    ended = subprocess.run(
        [sys.executable, "app.py", "--fake", *options],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(told)
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("host", "share", "space", "public"),
    [
        ("127.0.0.1", False, "", False),
        ("127.0.0.1", True, "", True),
        ("127.0.0.1", False, "me/derby", True),
        ("0.0.0.0", False, "", True),  # noqa: S104
    ],
)
def test_limits_are_strict_where_others_can_reach_the_page(
    host: str, *, share: bool, space: str, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    if space:
        monkeypatch.setenv("SPACE_ID", space)
    assert app.is_public(host, share=share) == public
