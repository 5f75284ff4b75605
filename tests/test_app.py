"""The launch: limits are strict where others can reach the page, and no library that the app uses
reports how it is used, as README.md and SECURITY.md promise. The installed package is the program:
it has the command `decode-derby` and all that it reads.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import app

ROOT = Path(__file__).resolve().parent.parent

#: What each library would report by, as the app finds it.
PROGRAM = """
import backend
from gradio.analytics import analytics_enabled
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from nncf.telemetry.wrapper import NNCFTelemetry, telemetry
from openvino.tools.ovc.telemetry_utils import init_ovc_telemetry

print(isinstance(telemetry, NNCFTelemetry), type(init_ovc_telemetry()).__module__)
print(not HF_HUB_DISABLE_TELEMETRY, analytics_enabled())
"""


def test_no_library_reports_how_it_is_used(tmp_path: Path) -> None:
    """OpenVINO and NNCF would send conversions to Google Analytics, with an id in ~/intel."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["False", "openvino.tools.ovc.telemetry_stub", "False", "False"]
    assert not (tmp_path / "intel").exists()


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


def test_an_installed_package_has_its_command_and_its_files(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    for folder in ("backend", "page", "assets", "grammars"):
        shutil.copytree(ROOT / folder, source / folder)
    for file in ("app.py", "pyproject.toml", "requirements.txt", "README.md"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    for folder in ("assets", "grammars"):
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {path for path in files if not (site / path).is_file()} == set()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(site / "bin" / "decode-derby"), *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("grammar", str(site / "grammars/date.regex"), "--text", "2026-11-28").returncode == 0
    refusal = run("page", "--limit", "colums=3")
    assert refusal.returncode == 2
    assert refusal.stderr.startswith("There is no limit 'colums'")
