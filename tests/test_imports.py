"""What starts without heavy libraries, and what no file may name."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = [path for room in ("backend", "page") for path in sorted((ROOT / room).rglob("*.py"))]

HEAVY = {"PIL", "gradio", "huggingface_hub", "llguidance", "nncf", "openvino", "optimum", "ray"}
HEAVY |= {"scipy", "tokenizers", "torch", "transformers"}

#: Modules that may begin with heavy imports: nothing else imports them at its start.
LATE = ("backend.engines.torch.", "backend.engines.eagle3.", "backend.export.generate.")

ELSEWHERE = re.compile(
    r"pypi\.org|pythonhosted\.org|--(extra-)?index-url|(?<![\w.])/(root|home|Users|tmp|work)/"
)


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
    assert imported.isdisjoint(HEAVY)
    assert "gradio" not in imports_of("app"), "app.py --help would wait for it"


def test_no_code_names_a_registry_or_a_folder_of_one_machine() -> None:
    files = [ROOT / "Makefile", ROOT / "app.py", *ROOT.glob("*.toml"), *ROOT.glob("*.txt")]
    files += [*CODE, *(ROOT / "tests").rglob("*.py"), *(ROOT / ".ci").iterdir()]
    for path in set(files) - {Path(__file__).resolve()}:  # which names them all, above
        assert not ELSEWHERE.search(path.read_text(encoding="utf-8")), path
