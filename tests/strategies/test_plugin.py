"""Strategies of other packages: one that is whole runs like ours, and each broken one is a line."""

import json
import os
import subprocess
import sys
from pathlib import Path

from packages import install

from backend.strategies import registry

ROOT = Path(__file__).resolve().parents[2]

#: A strategy that proposes the last token again.
REPEAT = """
from backend.decoding.seams import Drafter
from backend.strategies.declaration import Strategy
from backend.types import Proposal

class Repeat(Drafter):
    def propose(self, context, budget):
        return Proposal.chain(context[-1:] * min(2, budget))

METHOD = Strategy("repeat", "Repeat", "Expects the last token again.", build=lambda _: Repeat())
"""

#: Packages with one flaw each, by their names, and what is said of it.
BROKEN = {
    "does-not-import": ("import no_such_library", "No module named 'no_such_library'"),
    "is-no-strategy": ("METHOD = 'repeat'", "no Strategy"),
    "is-named-as-ours": (
        "from backend.strategies.ours import KV_REUSE as METHOD",
        "'kv' is taken",
    ),
    "is-declared-wrongly": (
        "import backend.strategies.declaration as d; METHOD = d.Strategy('', 'Mine', 'A way.')",
        "ValueError: strategy ''",
    ),
}


def test_a_strategy_of_another_package_races_and_each_broken_one_is_a_line(tmp_path: Path) -> None:
    for name, module in {"whole": REPEAT, **{n: m for n, (m, _) in BROKEN.items()}}.items():
        entry = f"{name} = {name.replace('-', '_')}:METHOD"
        install(tmp_path, name, module, registry.GROUP, entry)
    places = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    command = ["race", "xx", "--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "40"]
    ran = subprocess.run(
        [sys.executable, "-m", "backend", *command, "-c", "kv", "-c", "repeat", "--json"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    steps = [event for event in map(json.loads, ran.stdout.splitlines()) if event["kind"] == "Step"]
    plain, ours = (
        [token for step in steps if step["column"] == column for token in step["tokens"]]
        for column in (0, 1)
    )
    assert ours == plain
    assert sum(step["drafted"] for step in steps if step["column"] == 1) > 0
    lines = ran.stderr.splitlines()
    assert len(lines) == len(BROKEN)
    for name, (_, reason) in BROKEN.items():
        [line] = [line for line in lines if f"({name} 0.1" in line]
        assert reason in line
