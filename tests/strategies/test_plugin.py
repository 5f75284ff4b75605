"""The package in tests/plugin, installed by pip: a strategy like ours wherever strategies are."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from browser import Visitor, launched, serving
from packages import install
from playwright.sync_api import expect

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.bench.runner import raced
from backend.bench.runner import run as run_plan
from backend.bench.summary import measured, results
from backend.bench.tune import tune
from backend.bench.verify import cases, runs_on, verified_columns, verify
from backend.errors import DerbyError
from backend.export.production import LIBRARIES, snippet
from backend.racing.models import LoadedModels
from backend.racing.race import MAX_COLUMNS
from backend.results.metrics import Score
from backend.strategies import registry
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests" / "plugin"
FAKE = ("--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "300")


def quiet(_: str) -> None: ...


#: Packages with one flaw each, by their names, and what is said of it.
BROKEN = {
    "does-not-import": ("import no_such_library", "No module named 'no_such_library'"),
    "is-no-strategy": ("METHOD = 'bigram'", "it must name a Strategy, not a str"),
    "is-named-as-ours": (
        "from backend.strategies.plain import KV_REUSE as METHOD",
        "the name 'kv' is taken",
    ),
    "is-declared-wrongly": (
        "import backend.strategies.declaration as d; METHOD = d.Strategy('', 'Mine', 'A way.')",
        "ValueError: strategy '' needs a name",
    ),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the package in it."""
    # Building a package leaves files beside its source.
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / "plugin")
    target = tmp_path_factory.mktemp("packages")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", target, source]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with all the broken packages."""
    folder = tmp_path_factory.mktemp("broken")
    for name, (module, _) in BROKEN.items():
        entry = f"{name} = {name.replace('-', '_')}:METHOD"
        install(folder, name, module, registry.GROUP, entry)
    return folder


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the package in this process, too."""
    monkeypatch.syspath_prepend(packages)
    registry._registered.cache_clear()
    yield
    registry._registered.cache_clear()


def run(path: tuple[Path, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the command line, with these folders on the path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200"}
    command = [sys.executable, "-m", "backend", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def events(stdout: str, kind: str) -> list[dict[str, object]]:
    return [event for event in map(json.loads, stdout.splitlines()) if event["kind"] == kind]


def test_it_is_one_short_file() -> None:
    """CONTRIBUTING.md shows it as the way to bring a method of one's own."""
    [module] = PACKAGE.glob("*.py")
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 60
    shown = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert module.relative_to(ROOT).as_posix() in shown


def test_the_command_line_races_it(packages: Path) -> None:
    columns = ("-c", "kv", "-c", "bigram:k=3", "-c", "bigram")
    ran = run((packages,), "race", "xx yy xx", *FAKE, *columns, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    steps = events(ran.stdout, "Step")
    plain, fixed, auto = ([s for s in steps if s["column"] == column] for column in range(3))
    texts = [[t for step in column for t in step["tokens"]] for column in (plain, fixed, auto)]
    assert len(texts[0]) == 300
    assert texts[1] == texts[2] == texts[0]
    assert max(step["drafted"] for step in fixed) == 3
    assert sum(step["accepted"] for step in fixed) > 0


@pytest.mark.usefixtures("installed")
def test_its_settings_are_checked_and_it_is_named() -> None:
    with pytest.raises(DerbyError, match="Bigram: K is 99"):
        parse_column("bigram:k=99")
    with pytest.raises(DerbyError, match="bigram"):
        parse_column("warp")


@pytest.mark.usefixtures("installed")
def test_bench_and_tune_measure_it() -> None:
    target = ModelSpec("fake-loop", "fake")
    columns = (parse_column("bigram"),)
    plan = Plan(PROMPTS[:1], columns, Request("-", 60), (target,))
    rows = run_plan(plan, [], partial(raced, models=LoadedModels()), quiet)
    found = {result.column: result for result in results(measured(plan, rows))}
    assert found["Bigram"].equal == found["Bigram"].prompts == 1
    tuned = tune(target, PROMPTS[:1], 60, LoadedModels(), quiet)
    tried = {row.setting for row in tuned.rows}
    assert {"bigram", *(f"bigram:min_count=2,k={k}" for k in range(1, 9))} <= tried


@pytest.mark.usefixtures("installed")
def test_verify_checks_it_and_it_passes() -> None:
    """All columns of a case were one race, which ours filled: with two more, verify ended."""
    checked = [str(column) for column in verified_columns() if column.name == "bigram"]
    assert checked == ["bigram", "bigram:k=10,min_count=2"]
    assert len(verified_columns()) > MAX_COLUMNS, "more than one race can have"
    target = ModelSpec("fake-loop", "fake")
    chosen = cases((target,), PROMPTS[:2], temperatures=(0.0, 0.7), seeds=(0,))
    for result in verify(chosen, LoadedModels(), 60):
        verdicts = dict(result.verdicts)
        assert verdicts["Bigram"] == verdicts["Bigram (k=10, min_count=2)"] == "equal"
        keeping = [c for c in verified_columns() if c.keeps_text(result.case.temperature)]
        assert len(verdicts) == sum(runs_on(c, target) for c in keeping)
        assert set(verdicts.values()) == {"equal"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("library", LIBRARIES)
def test_production_says_in_a_sentence_that_no_library_has_it(library: str) -> None:
    column = parse_column("bigram:k=6")
    made = snippet(column, Score(state="done"), Request("Hi"), ModelSpec(), library)
    assert not made.code
    assert "has no bigram drafts: use" in made.note
    assert "6" in made.note


def test_each_broken_package_is_one_line_and_everything_else_works(
    packages: Path, broken: Path
) -> None:
    ran = run((packages, broken), "race", "xx", *FAKE, "-c", "kv", "-c", "bigram", "--json")
    assert ran.returncode == 0
    assert len(events(ran.stdout, "Finished")) == 2
    assert_reported(ran.stderr.splitlines())


def assert_reported(lines: list[str]) -> None:
    """One line on each broken package, and nothing else."""
    assert len(lines) == len(BROKEN)
    for name, (_, reason) in BROKEN.items():
        [line] = [line for line in lines if f"of the package {name} 0.1" in line]
        assert reason in line
        assert line.endswith("Repair or uninstall it.")


@pytest.mark.thorough
@pytest.mark.browser
def test_the_page_offers_it_with_its_settings_beside_broken_ones(
    packages: Path,
    broken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (packages, broken))))
    with launched() as browser, serving("--fake", cache=tmp_path) as address:
        assert_reported(capfd.readouterr().err.splitlines())
        visitor = Visitor(browser, address)
        visitor.columns("kv")
        visitor.page.get_by_role("button", name="Add Bigram").click()
        added = visitor.page.locator(".dd-lineup-column").nth(1)
        added.locator("summary").click()
        for label in ("Auto", "K, at most", "Seen"):
            expect(added.get_by_label(label, exact=True)).to_be_visible()
        visitor.columns("kv", "bigram:k=3,min_count=2")
        visitor.ask("xx yy xx", tokens=40, model="fake-loop")
        visitor.wait_phase("ended")
        assert visitor.states == ["done"] * 2
        assert "Identical to KV reuse" in visitor.card("Bigram").part("told")
        assert visitor.complaints == []
        visitor.close()
        assert capfd.readouterr().err == ""
