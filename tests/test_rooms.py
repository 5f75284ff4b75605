"""What may import what, what ARCHITECTURE.md says of it, and what no file may contain."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BACKEND = sorted((ROOT / "backend").rglob("*.py"))
PAGE = sorted((ROOT / "page").rglob("*.py"))

#: The rooms from the bottom up, each with the rooms that it may import.
ROOMS = {
    "errors": "",
    "events": "",
    "limits": "errors",
    "types": "errors",
    "text": "errors",
    "plugins": "errors",
    "processes": "",
    "machine": "",
    "models": "limits errors",
    "engines": "models plugins text types machine errors",
    "heads": "engines models types errors",
    "training": "heads engines models text types errors",
    "costs": "engines models types errors",
    "decoding": "engines text events types errors",
    "grammar": "decoding text types processes errors",
    "kvcache": "decoding engines models types limits errors",
    "programs": "grammar decoding events types errors",
    "drafters": "decoding costs heads engines types errors",
    "servers": "decoding events types errors",
    "strategies": "servers drafters decoding costs kvcache grammar heads engines plugins types "
    "errors",
    "results": "strategies decoding costs events types errors",
    "records": "results strategies grammar engines machine events types errors",
    "racing": "strategies programs kvcache grammar decoding costs heads engines models text events "
    "types processes machine limits errors",
    "export": "records results strategies grammar decoding models events types errors",
    "bench": "racing records results strategies grammar costs training heads engines models text "
    "events types machine errors",
    "cluster": "bench racing records results strategies servers kvcache engines events types "
    "processes limits errors",
    "web": "export bench racing records results strategies servers programs kvcache grammar "
    "engines models text events types limits errors",
    "serving": "web racing records results strategies kvcache grammar events types limits errors",
    "cli": "serving web cluster export bench racing records results strategies training kvcache "
    "grammar costs engines models events types limits errors",
    "__main__": "cli",
    "page": "web racing strategies servers export programs grammar engines models text types "
    "limits errors",
    "app": "page cli web cluster racing strategies servers kvcache engines models types processes "
    "machine limits errors",
}
MAY_IMPORT = {room: set(names.split()) for room, names in ROOMS.items()}
PACKAGES = [room for room in ROOMS if (ROOT / "backend" / room).is_dir()] + ["page"]
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
#: Imported only once its engine is asked for.
LATE = {
    *(
        f"backend.engines.torch.{name}"
        for name in ("batch", "graphs", "growing", "plain_loop", "session", "static")
    ),
    "backend.heads.device_head",
    "backend.heads.torch_head",
    "backend.heads.torch_weights",
    *(f"backend.training.{name}" for name in ("features", "fit", "synthesis", "targets", "train")),
}
ELSEWHERE = re.compile(
    r"pypi\.org|pythonhosted\.org|--(extra-)?index-url|(?<![\w.])/(root|home|Users|tmp|work)/"
)

#: What ARCHITECTURE.md means as a path: from the root, with a slash or an ending.
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|[\w-]+\.(?:py|md|toml)")


def module_of(path: Path) -> str:
    """The name that a file is imported by."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in (*BACKEND, *PAGE, ROOT / "app.py")}


def imports_in(tree: ast.AST) -> Iterator[str]:
    """Every module that the code imports anywhere, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module or ""


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, inside functions too."""
    yield from imports_in(ast.parse(path.read_text(encoding="utf-8")))


def imported_at_once(path: Path) -> Iterator[str]:
    """Every module that importing a file imports: no function's, and none for types alone."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_in(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def room_of(module: str) -> str:
    """The room that a module stands in: "web" for backend.web.form; "" for backend alone."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "backend" else top


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """The nodes on a circle and those that lead to one; [] where there is none."""
    left = {node: set(to) & set(edges) for node, to in edges.items()}
    while ends := {node for node, to in left.items() if not to}:
        left = {node: to - ends for node, to in left.items() if node not in ends}
    return sorted(left)


def test_every_room_is_in_the_table() -> None:
    assert {room_of(module) for module in FILES} - {""} == set(ROOMS)


def test_the_table_has_a_direction() -> None:
    """What a room may import stands above it in the table, so no circle can be allowed."""
    rooms = list(ROOMS)
    for index, room in enumerate(rooms):
        assert MAY_IMPORT[room] <= set(rooms[:index]), room


@pytest.mark.parametrize("module", FILES)
def test_a_file_imports_its_own_room_and_those_below(module: str) -> None:
    room = room_of(module)
    for name in imported(FILES[module]):
        if name.split(".")[0] in ("backend", "page", "app"):
            other = room_of(name)
            assert other == room or other in MAY_IMPORT.get(room, set()), f"{room} takes {name}"


def test_no_files_import_one_another_in_a_circle() -> None:
    """Four files of the OpenVINO engine once did, by imports inside functions: the engine needed
    its export, which converted the trained head, which needed the engine's core.
    """
    edges = {module: set(imported(path)) - {module} for module, path in FILES.items()}
    assert circle(edges) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) != []


@pytest.mark.parametrize("room", PACKAGES)
def test_a_room_says_what_it_is_for_and_what_it_may_import(room: str) -> None:
    folder = ROOT / room if room == "page" else ROOT / "backend" / room
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert said, f"{room}/__init__.py says nothing"
    purpose, line, may = said.partition("May import:")
    assert purpose.strip(), f"{room}/__init__.py does not say what the room is for"
    assert line, f"{room}/__init__.py lacks its line 'May import: ...'"
    assert set(re.findall(r"\w+", may.partition(".")[0])) == MAY_IMPORT[room]


def test_every_package_says_what_it_is_for() -> None:
    for path in (path for path in FILES.values() if path.name == "__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("module", sorted(set(FILES) - LATE))
def test_heavy_libraries_are_imported_in_functions(module: str) -> None:
    own = {"gradio"} if room_of(module) == "page" else set()
    tops = {name.split(".")[0] for name in imported_at_once(FILES[module])}
    assert tops.isdisjoint(HEAVY - own)


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
    for file in ("requirements.txt", "requirements-mcp.txt", "requirements-dev.txt"):
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
    folders = {f"backend/{room}/" for room in PACKAGES if room != "page"}
    files = {f"backend/{room}.py" for room in ROOMS if (ROOT / f"backend/{room}.py").is_file()}
    others = {"app.py", "page/", "grammars/", "assets/", "tests/"}
    assert sorted((folders | files | others) - named) == []
