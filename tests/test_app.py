"""The launch: what the operator can change is one sentence and exit code 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import app
from backend.errors import DerbyError
from backend.limits import PRIVATE, PUBLIC, Limits
from backend.web.address import free_port
from page.site import Site, site_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--limit", "columns=0"], "The limit columns is 0"),
        (["--limit", "colums=3"], "There is no limit 'colums'"),
        (["--port", "65536"], "The port is 65536; it must lie between 0 and 65535."),
        (["--host", "no.such.host.invalid"], "There is no host 'no.such.host.invalid'"),
        (["--host", "192.0.2.1"], "192.0.2.1 is not an address of this machine"),
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


def test_tools_without_their_package_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker had loaded the model, and gradio was imported, before the refusal."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr(app, "ProcessHost", lambda *_: pytest.fail("a worker was started"))
    monkeypatch.setattr(app.signal, "signal", lambda *_: None)
    command = typer.Typer()
    command.command()(app.main)
    with pytest.raises(SystemExit) as ended:
        command(["--mcp"])
    assert ended.value.code == 2
    assert "need the package mcp" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_with_the_remedy() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(DerbyError, match=r"is taken, .* choose another with --port"):
            free_port("127.0.0.1", other.getsockname()[1])
    assert free_port("127.0.0.1", 0) > 0


@pytest.mark.parametrize(
    ("host", "public", "space", "expected"),
    [
        ("127.0.0.1", False, "", PRIVATE),
        ("127.0.0.1", True, "", PUBLIC),  # --share or --public-host
        ("127.0.0.1", False, "me/derby", PUBLIC),
        ("0.0.0.0", False, "", PUBLIC),  # noqa: S104
    ],
)
def test_limits_are_strict_where_others_can_reach_the_page(
    host: str, public: bool, space: str, expected: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(app.SPACE, raising=False)
    if space:
        monkeypatch.setenv(app.SPACE, space)
    assert app._limits([], host, public=public) == expected


def test_a_site_knows_its_names() -> None:
    local = site_of("127.0.0.1", (), "", space=False)
    assert local.serves("localhost:7860")
    assert not local.serves("192.168.0.5")
    everywhere = site_of("0.0.0.0", ("Derby.Example:443",), "", space=False)  # noqa: S104
    for host in ("192.168.0.5:7860", "[2001:db8::1]", "derby.example", "localhost"):
        assert everywhere.serves(host)
    for host in ("", "evil.example", "1.2.3.4.evil.example", "a b", "x@localhost", "[::1"):
        assert not everywhere.serves(host)
    assert everywhere.trusts("https://derby.example", "127.0.0.1:7860")
    assert not everywhere.trusts("https://evil.example", "127.0.0.1:7860")
    assert not everywhere.trusts("https://derby.example:8443", "127.0.0.1:7860")
    space = site_of("0.0.0.0", (), "me-derby.hf.space", space=True)  # noqa: S104
    assert space.serves("me-derby.hf.space")
    assert not space.serves("evil.example")
    assert not Site().trusts("null", "localhost")


def test_a_page_of_another_port_is_another_page() -> None:
    """Whatever ran at another port of the machine once was let in as this page, with its cookie."""
    for bound, host in (
        ("127.0.0.1", "127.0.0.1:7860"),
        ("::1", "[::1]:7860"),
        ("lab", "lab:7860"),
    ):
        site = site_of(bound, (), "", space=False)
        assert site.trusts(f"http://{host}", host)
        assert not site.trusts(f"http://{host.replace('7860', '9999')}", host)
        assert not site.trusts(f"http://{host.removesuffix(':7860')}", host)
    proxied = site_of("127.0.0.1", ("derby.example:8443",), "", space=False)
    assert proxied.serves("derby.example:8443")
    assert proxied.trusts("https://derby.example:8443", "127.0.0.1:7860")
    assert not proxied.trusts("https://derby.example", "127.0.0.1:7860")
