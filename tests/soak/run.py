"""The soak: python tests/soak/run.py [ROW...] [--minutes N | --short] [--report FILE]

Prints a table of figures against bars and ends with exit code 1 if one is not held. Every row runs
in a process of its own: first, one after another, those that hold seconds; then side by side the
long ones and the rest. `--report FILE` writes the table to FILE (.md) and its figures beside it
(.json), or one of them if FILE ends so.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from soak.report import BROKEN, Log, Result, as_json, as_markdown, read_json  # noqa: E402
from soak.rows import ROWS  # noqa: E402

#: Rows whose bars are seconds: nothing else runs beside them.
ALONE = ("cycles", "kills", "page", "hostile")

#: Rows that take as long as they are told, each beside all others but those.
LONG = ("crowd",)


def main() -> int:
    # A shell has what it starts in the background ignore Ctrl-C, and so would what the rows start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--minutes", type=float, help="minutes of each crowd (60)")
    size.add_argument("--short", action="store_true", help="a few counts and seconds of each")
    parser.add_argument("--report", type=Path, help="where the report goes: FILE.md, FILE.json")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.rows if name not in ROWS]:
        parser.error(f"there is no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    names = given.rows or list(ROWS)
    options = ["--short"] if given.short else []
    options += [] if given.minutes is None else ["--minutes", str(given.minutes)]
    if given.here:
        seconds = None if given.minutes is None else 60 * given.minutes
        results = [ROWS[name].run(short=given.short, seconds=seconds) for name in names]
    else:
        results = _in_lanes(names, options)
        print(as_markdown(results))  # noqa: T201 (the output)
    if given.report:
        write(results, given.report)
    return 0 if all(r.passed for r in results) else 1


def write(results: Sequence[Result], report: Path) -> None:
    """Write the report, as Markdown and as JSON unless the file's ending names one."""
    report.parent.mkdir(parents=True, exist_ok=True)
    if report.suffix != ".json":
        report.with_suffix(".md").write_text(as_markdown(results), encoding="utf-8")
    if report.suffix != ".md":
        report.with_suffix(".json").write_text(as_json(results), encoding="utf-8")


def _in_lanes(names: Sequence[str], options: Sequence[str]) -> list[Result]:
    """Run the rows, long ones side by side: their results in the order of `names`."""
    found = {name: _apart(name, options) for name in names if name in ALONE}
    rest = [name for name in names if name not in (*ALONE, *LONG)]
    lanes = [[name] for name in names if name in LONG] + ([rest] if rest else [])
    with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as pool:
        for lane in pool.map(lambda lane: [(n, _apart(n, options)) for n in lane], lanes):
            found.update(lane)
    return [found[name] for name in names]


def _apart(name: str, options: Sequence[str]) -> Result:
    """Run a row in a process of its own; one that breaks is a failure with its last words."""
    with tempfile.TemporaryDirectory(prefix="derby-soak-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, name, *options, "--here", "--report", str(report)]
        _say(f"{name} begins")
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        if report.is_file():
            (found,) = read_json(report.read_text(encoding="utf-8"))
        else:
            log = Log()
            log.flaw(BROKEN, done.stderr[-2000:])
            found = log.result(name, "")
        _say(f"{name} {'passed' if found.passed else 'FAILED'}")
        return found


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
