"""The launch: limits are strict where others can reach the page, and no library that the app uses
reports how it is used, as README.md and SECURITY.md promise. The installed package is the program
under one name, with the command `decode-derby`, all that it reads, and versions known to work.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import app
from backend.records.file import load

ROOT = Path(__file__).resolve().parent.parent

#: Folders of the installed package.
PACKAGED = ("backend", "page", "assets", "grammars")

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


def test_an_installed_package_is_one_name_that_works_beside_others(tmp_path: Path) -> None:
    source, site, here = (tmp_path / name for name in ("source", "site", "here"))
    for folder in PACKAGED:
        shutil.copytree(ROOT / folder, source / folder)
    for file in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md"))):
        shutil.copy(file, source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True)
    about = next(site.glob("*.dist-info")).name
    assert {path.name for path in site.iterdir()} == {"decode_derby", "bin", about}
    files = [path.relative_to(ROOT) for folder in PACKAGED for path in (ROOT / folder).rglob("*.*")]
    lost = {path for path in files if not (site / "decode_derby" / path).exists()}
    assert {path for path in lost if "__pycache__" not in path.parts} == set()
    for name in ("app.py", "backend/__init__.py", "page/__init__.py"):  # somebody's own
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("raise SystemExit(3)")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )

    grammar = str(site / "decode_derby/grammars/date.regex")
    checked = run("-m", "decode_derby", "grammar", grammar, "--text", "2026-11-28")  # in a child
    assert checked.returncode == 0, checked.stderr
    engine = ("--engine", "fake", "--model", "fake-loop")
    race = ("race", "a", *engine, "-c", "kv", "--record", "race.json")
    assert run(str(site / "bin" / "decode-derby"), *race).returncode == 0
    assert dict(load(here / "race.json").versions)["decode-derby"] in about
    refusal = run(str(site / "bin" / "decode-derby"), "page", "--limit", "colums=3")
    assert refusal.returncode == 2
    assert refusal.stderr.startswith("There is no limit 'colums'")


def test_what_is_pinned_lies_within_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for file, ranges in (
        ("requirements.txt", project["dependencies"]),
        ("requirements-libraries.txt", extras["libraries"]),
        ("requirements-ray.txt", extras["cluster"]),
    ):
        allowed = {each.name: each.specifier for each in map(Requirement, ranges)}
        lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
        pins = [Requirement(line) for line in lines if line]
        assert {pin.name for pin in pins} == allowed.keys()
        for pin in pins:
            assert allowed[pin.name].contains(str(pin.specifier).removeprefix("==")), pin
