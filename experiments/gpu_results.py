"""What the parts of the GPU programme found: a JSON file each, and a summary in Markdown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from experiments.runs import ratios_of

#: One result of a part: plain values; "of" says of what, and is its own in the part.
Line = dict[str, Any]

DONE, RUNNING = "done", "running"


@dataclass
class Record:
    """A part's results so far. `conditions`: what they hold for; `state`: "done", or how it ended;
    `seconds`: what all of its runs took.
    """

    part: str
    conditions: dict[str, str]
    state: str = RUNNING
    seconds: float = 0.0
    lines: list[Line] = field(default_factory=list)

    def keep(self, folder: Path) -> None:
        """Write it to the folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = record_path(folder, self.part)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def record_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.json"


def read_record(folder: Path, part: str, conditions: dict[str, str]) -> Record:
    """What is there of the part under these conditions; an empty one if there is nothing."""
    try:
        found = Record(**json.loads(record_path(folder, part).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        found = Record(part, conditions)
    return found if found.conditions == conditions else Record(part, conditions)


def summary(records: Sequence[Record]) -> str:
    """All records as a page of Markdown, the device named in its title."""
    where = ", ".join(f"{name} {value}" for name, value in records[0].conditions.items())
    parts = [f"# {where}"]
    for record in records:
        parts.append(f"## {record.part}: {record.state}, {record.seconds:.0f} s")
        parts += TABLES[record.part](record.lines) if record.lines else ["nothing was measured"]
    return "\n\n".join(parts) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _equality(lines: Sequence[Line]) -> list[str]:
    cases = [line for line in lines if "equal" in line]
    unequal = [
        f"- {line['of']}: {name}: {said}"
        for line in cases
        for name, said in line["unequal"].items()
    ]
    equal = sum(line["equal"] for line in cases)
    columns = cases[0]["columns"] if cases else []
    said = f"{equal} of {len(cases)} cases equal in every column ({', '.join(columns)})."
    return [said, *(["\n".join(unequal)] if unequal else []), *_left_out(lines)]


def _left_out(lines: Sequence[Line]) -> list[str]:
    return [f"Left out: {line['left out']}" for line in lines if line.get("left out")]


def _passes(lines: Sequence[Line]) -> list[str]:
    widths = [str(width) for width in lines[0]["ms"]]
    rows = [
        [
            line["of"],
            *(f"{ms:.2f} ({ms / line['ms'][widths[0]]:.2f})" for ms in line["ms"].values()),
        ]
        for line in lines
    ]
    return [table(["ms (times one row)", *widths], rows)]


def _plain(lines: Sequence[Line]) -> list[str]:
    heads = ["KV reuse against", "ours tok/s", "theirs tok/s", "ratio", "lowest-highest", "equal"]
    rows = [
        [
            line["of"],
            f"{line['ours']:.1f}",
            f"{line['theirs']:.1f}",
            f"{line['ratio']:.3f}",
            "{:.3f}-{:.3f}".format(*line["spread"]),
            f"{line['equal']} of {line['prompts']}",
        ]
        for line in lines
        if "ratio" in line
    ]
    failed = [f"{line['of']} failed: {line['failed']}" for line in lines if "failed" in line]
    return [table(heads, rows), *failed]


def _columns(lines: Sequence[Line]) -> list[str]:
    """Medians of per-question ratios over KV reuse, all questions and by category."""
    runs = [line for line in lines if "columns" in line]
    if not runs:
        return _left_out(lines)
    categories = list(dict.fromkeys(line["category"] for line in runs))
    heads = ["column", "speed-up", "95 %", "spread", "tokens per forward", "equal", *categories]
    rows: list[list[str]] = []
    for name in runs[0]["columns"]:
        mine = [(line, line["columns"][name]) for line in runs]
        known = [each["speedup"] for _, each in mine if each["speedup"]]
        found = ratios_of(known)
        by_category = [
            [each["speedup"] for line, each in mine if line["category"] == c and each["speedup"]]
            for c in categories
        ]
        rows.append(
            [
                name,
                f"{found.median:.2f}",
                "{:.2f}-{:.2f}".format(*found.interval) if found.interval else "few",
                "{:.2f}-{:.2f}".format(*found.spread),
                f"{median(each['tokens_per_forward'] for _, each in mine):.2f}",
                _equals([each for _, each in mine]),
                *(f"{median(some):.2f}" if some else "" for some in by_category),
            ]
        )
    return [f"{len(runs)} questions.", table(heads, rows), *_left_out(lines)]


def _equals(figures: Sequence[Line]) -> str:
    """Of how many questions the text was KV reuse's, where it ought to be."""
    equal = sum(each["equal"] for each in figures)
    return f"{equal} of {len(figures)}" if figures[0]["lossless"] else "another text"


def _training(lines: Sequence[Line]) -> list[str]:
    facts = [f"- {line['of']}: {line['said']}" for line in lines if "said" in line]
    return ["\n".join(facts), *_columns(lines)]


TABLES = {
    "equality": _equality,
    "passes": _passes,
    "plain": _plain,
    "columns": _columns,
    "training": _training,
}
