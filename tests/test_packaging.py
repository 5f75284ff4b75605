"""The installed package is the program: it has the command `decode-derby` and all that it reads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
