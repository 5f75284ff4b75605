"""What may import what, and what no file may contain."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BACKEND = sorted((ROOT / "backend").rglob("*.py"))
PAGE = sorted((ROOT / "page").rglob("*.py"))
HEAVY = {
    "gradio",
    "huggingface_hub",
    "llguidance",
    "nncf",
    "openvino",
    "optimum",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
}
#: Imported only once its engine is asked for.
LATE = {
    "backend.engines.torch.session",
    "backend.heads.torch_head",
    "backend.heads.torch_weights",
    *(f"backend.training.{name}" for name in ("features", "fit", "synthesis", "targets", "train")),
}
ELSEWHERE = re.compile(
    r"pypi\.org|pythonhosted\.org|--(extra-)?index-url|(?<![\w.])/(root|home|Users|tmp|work)/"
)


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("path", BACKEND, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_backend_knows_neither_gradio_nor_the_page_nor_the_tests(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    assert tops.isdisjoint({"gradio", "gradio_client", "page", "app", "tests", "lib", "spaces"})


def test_gradio_is_imported_in_the_page_alone() -> None:
    """The launch imports the page only once it serves: its --help must not take gradio's time."""
    assert "gradio" in {name.split(".")[0] for path in PAGE for name in imported(path)}
    assert {name.split(".")[0] for name in imported(ROOT / "app.py")}.isdisjoint({"gradio"})
    launch = ast.parse((ROOT / "app.py").read_text(encoding="utf-8"))
    at_start = {node.module or "" for node in launch.body if isinstance(node, ast.ImportFrom)}
    assert "page" not in {name.split(".")[0] for name in at_start}


def test_nothing_heavy_is_imported_before_a_model_is_asked_for() -> None:
    """Starting the command line, the page or a worker must not take the seconds these take."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in BACKEND}
    modules = ", ".join(sorted(names - LATE)).replace(".__init__", "")
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.split(".")[0] for name in found.stdout.split()}
    assert {"backend", "numpy"} <= loaded
    assert loaded.isdisjoint(HEAVY)


def test_every_requirement_is_pinned_and_is_what_runs_here() -> None:
    names = set()
    for file in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            wanted = line.partition("#")[0].strip()
            if not wanted or wanted == "-r requirements.txt":
                continue
            name, equals, pinned = wanted.partition("==")
            assert equals, f"{file}: {wanted} is not pinned"
            assert name not in names, f"{name} is listed twice"
            names.add(name)
            assert version(name.partition("[")[0]).split("+")[0] == pinned, name
    assert {"gradio", "openvino", "pytest"} <= names


def test_no_code_names_a_registry_or_a_folder_of_one_machine() -> None:
    files = [ROOT / "Makefile", ROOT / "app.py", *ROOT.glob("*.toml"), *ROOT.glob("*.txt")]
    files += [*BACKEND, *PAGE, *(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").iterdir()]
    files += [path for path in (ROOT / "assets").rglob("*") if path.suffix in (".js", ".html")]
    assert len(files) > 40
    for path in set(files) - {Path(__file__).resolve()}:  # which names them all, above
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not ELSEWHERE.search(line), f"{path.name}: {line}"
