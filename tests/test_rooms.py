"""What may import what, what ARCHITECTURE.md says of it, and what no file may contain.

The contracts of rooms stand in pyproject.toml; `lint-imports` checks them.
"""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
CODE = [path for room in ("backend", "page") for path in sorted((ROOT / room).rglob("*.py"))]

HEAVY = {"PIL", "gradio", "huggingface_hub", "llguidance", "nncf", "openvino", "optimum", "ray"}
HEAVY |= {"scipy", "tokenizers", "torch", "transformers"}

#: Modules that may begin with heavy imports: nothing else imports them at its start.
LATE = ("backend.engines.torch.", "backend.engines.eagle3.", "backend.export.generate.")

ELSEWHERE = re.compile(
    r"pypi\.org|pythonhosted\.org|--(extra-)?index-url|(?<![\w.])/(root|home|Users|tmp|work)/"
)

#: What ARCHITECTURE.md means as a path: from the root, with a slash or an ending.
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|[\w-]+\.(?:py|md|toml)")


def imports_of(modules: str) -> set[str]:
    """The packages that a process has imported after these modules."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_nothing_heavy_is_imported_before_a_model_is_asked_for() -> None:
    """Starting the command line, the page or a worker must not take the seconds these take."""
    modules = [path.relative_to(ROOT).with_suffix("") for path in CODE if "backend" in path.parts]
    names = [".".join(module.parts).removesuffix(".__init__") for module in modules]
    imported = imports_of(", ".join(name for name in names if not name.startswith(LATE)))
    assert {"backend", "numpy"} <= imported
    assert imported.isdisjoint(HEAVY)
    assert "gradio" not in imports_of("app"), "app.py --help would wait for it"


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned_and_is_what_runs_here(file: str) -> None:
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    for line in (line for line in lines if line and not line.startswith("-r ")):
        requirement = Requirement(line)
        pinned = str(requirement.specifier)
        assert pinned.startswith("=="), f"{line} is not pinned"
        if requirement.marker is None or requirement.marker.evaluate():
            assert version(requirement.name).split("+")[0] == pinned.removeprefix("==")


def test_every_package_says_what_it_is_for() -> None:
    for path in (path for path in CODE if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_no_code_names_a_registry_or_a_folder_of_one_machine() -> None:
    files = [ROOT / "Makefile", ROOT / "app.py", *ROOT.glob("*.toml"), *ROOT.glob("*.txt")]
    files += [*CODE, *(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").iterdir()]
    for path in set(files) - {Path(__file__).resolve()}:  # which names them all, above
        assert not ELSEWHERE.search(path.read_text(encoding="utf-8")), path


def test_the_architecture_names_every_room_and_only_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = {span for span in re.findall(r"`([^`\s]+)`", text) if PATH.fullmatch(span)}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    modules = {path.relative_to(ROOT) for path in CODE if path.name != "__init__.py"}
    rooms = {
        f"backend/{path.parts[1]}" if len(path.parts) == 2 else f"backend/{path.parts[1]}/"
        for path in modules
        if path.parts[0] == "backend"
    }
    assert rooms | {"app.py", "page/", "grammars/", "assets/", "tests/"} <= named
