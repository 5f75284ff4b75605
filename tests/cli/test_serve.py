"""python -m backend serve: what it refuses to serve, and how it ends."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from hosting import PATIENCE, alive, until
from typer.testing import CliRunner

from backend.cli.main import app

ROOT = Path(__file__).resolve().parent.parent.parent


def refused(*options: str, key: str = "") -> str:
    """What is said of options that cannot be served with; exit code 2."""
    runner = CliRunner()
    ended = runner.invoke(
        app, ["serve", "--engine", "fake", *options], env={"DECODE_DERBY_API_KEY": key}
    )
    assert ended.exit_code == 2
    assert ended.stdout == ""
    return ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])  # noqa: S104
def test_others_may_not_use_it_without_a_key(host: str) -> None:
    said = refused("--host", host)
    assert said.count("\n") == 1
    assert f"Anyone who reaches {host} could use this server: set a key" in said


@pytest.mark.parametrize("text", ["", "two words", "two\nlines", "\x00", "é", "x" * 5000])
def test_a_file_without_a_key_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    said = refused("--api-key-file", str(file))
    assert "holds no API key" in said
    assert not text or text not in said
    assert "cannot be read" in refused("--api-key-file", str(tmp_path / "none"))
    assert "holds no API key" in refused(key="two words")


def test_what_cannot_be_offered_is_one_sentence() -> None:
    assert "There is no limit 'colums'" in refused("--limit", "colums=3")
    assert "There is no engine 'none'" in refused("--engine", "none")
    assert "Fake has no precision 'int4' here" in refused("--precision", "int4")
    assert "There is no host" in refused("--host", "no.such.host.invalid", key="x")


@pytest.mark.parametrize(
    "end", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_it_ends_at_once_and_says_so_to_its_clients(end: signal.Signals, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n", encoding="utf-8")
    command = [sys.executable, "-m", "backend", "serve", "--engine", "fake", "--port", "0"]
    with subprocess.Popen(
        [*command, "--model", "fake-endless", "--api-key-file", str(key)],
        cwd=ROOT,
        env=os.environ | {"DECODE_DERBY_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        family = [each.pid for each in psutil.Process(server.pid).children(recursive=True)]
        asked = {"model": "fake-endless:kv", "prompt": "Hello", "temperature": 0}
        asked |= {"max_tokens": 4000, "stream": True}
        with httpx.stream(
            "POST",
            f"{found[0]}/completions",
            json=asked,
            headers={"Authorization": "Bearer s3cret"},
            timeout=PATIENCE,
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.send_signal(end)
            *_, error, done = filter(None, lines)
        assert "The app is ending" in error
        assert done == "data: [DONE]"
        until(lambda: not any(map(alive, family)))
        assert server.wait(PATIENCE) == 0
        assert server.stderr.read() == ""
