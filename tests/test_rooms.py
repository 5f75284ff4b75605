"""What may import what, what ARCHITECTURE.md says of it, and what no file may contain."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BACKEND = sorted((ROOT / "backend").rglob("*.py"))
PAGE = sorted((ROOT / "page").rglob("*.py"))

#: The rooms: packages and modules of the backend.
ROOMS = sorted(
    path.stem
    for path in (ROOT / "backend").iterdir()
    if (path.suffix == ".py" or (path / "__init__.py").exists()) and path.stem != "__init__"
)
HEAVY = {
    "PIL",
    "gradio",
    "huggingface_hub",
    "llguidance",
    "nncf",
    "openvino",
    "optimum",
    "ray",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
}
#: Rooms whose files may begin with heavy imports: nothing else imports these files at its start.
LATE = (
    "backend.engines.torch.",
    "backend.engines.heads.device",
    "backend.engines.heads.network",
)
ELSEWHERE = re.compile(
    r"pypi\.org|pythonhosted\.org|--(extra-)?index-url|(?<![\w.])/(root|home|Users|tmp|work)/"
)

#: What ARCHITECTURE.md means as a path: from the root, with a slash or an ending.
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|[\w-]+\.(?:py|md|toml)")


def test_the_rooms_import_one_another_as_declared() -> None:
    """The contracts stand in pyproject.toml; `lint-imports` names each import that breaks one."""
    found = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_every_package_says_what_it_is_for() -> None:
    for path in (path for path in (*BACKEND, *PAGE) if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_the_launch_imports_gradio_only_once_it_serves() -> None:
    """`app.py --help` must not take the time that gradio takes."""
    found = subprocess.run(
        [sys.executable, "-c", "import sys, app\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "gradio" not in found.stdout.split()


def test_nothing_heavy_is_imported_before_a_model_is_asked_for() -> None:
    """Starting the command line, the page or a worker must not take the seconds these take."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in BACKEND}
    modules = ", ".join(sorted(n for n in names if not n.startswith(LATE))).replace(".__init__", "")
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
            if not wanted or wanted.startswith("-r requirements"):
                continue
            requirement = Requirement(wanted)
            name, pinned = requirement.name, str(requirement.specifier)
            assert pinned.startswith("=="), f"{file}: {wanted} is not pinned"
            if requirement.marker is None or requirement.marker.evaluate():
                assert name not in names, f"{name} is listed twice"
                names.add(name)
                assert version(name).split("+")[0] == pinned.removeprefix("=="), name
    assert {"gradio", "openvino", "pytest"} <= names


def test_no_code_names_a_registry_or_a_folder_of_one_machine() -> None:
    files = [ROOT / "Makefile", ROOT / "app.py", *ROOT.glob("*.toml"), *ROOT.glob("*.txt")]
    files += [*BACKEND, *PAGE, *(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").iterdir()]
    files += [path for path in (ROOT / "assets").rglob("*") if path.suffix in (".js", ".html")]
    assert len(files) > 40
    for path in set(files) - {Path(__file__).resolve()}:  # which names them all, above
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not ELSEWHERE.search(line), f"{path.name}: {line}"


def test_the_architecture_names_every_room_and_only_what_exists() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = {span for span in re.findall(r"`([^`\s]+)`", page) if PATH.fullmatch(span)}
    assert len(named) > 30
    for path in named:
        assert (ROOT / path).exists(), f"ARCHITECTURE.md names {path}"
    rooms = {
        f"backend/{r}/" if (ROOT / "backend" / r).is_dir() else f"backend/{r}.py" for r in ROOMS
    }
    others = {"app.py", "page/", "grammars/", "assets/", "tests/"}
    assert sorted((rooms | others) - named) == []
