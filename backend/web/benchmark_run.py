"""One benchmark: what is to be measured, what has been, and how a browser keeps that.

A visitor who comes back, to another process even, goes on from what the browser kept, which is
untrusted: its types and sizes are checked, and that it is of the same benchmark.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from backend.bench.prompts import Prompt
from backend.bench.solo import Measured, measured, numbered
from backend.errors import DerbyError
from backend.racing.race import Race
from backend.records.document import document_of, read_json
from backend.records.record import recorded
from backend.results.scoreboard import Scoreboard

if TYPE_CHECKING:
    from jsonschema_rs import Draft4Validator

#: Characters of what a browser kept.
MOST_TEXT = 1 << 21

#: Columns, prompts and tokens of a benchmark that goes on are fewer.
_MOST = 1_000_000

_COUNT = {"type": "integer", "minimum": 0, "maximum": _MOST}
_FIGURE = {"type": ["number", "null"], "minimum": -1e9, "maximum": 1e9}
_RATIO = {"type": "number", "minimum": 0, "maximum": 1e9}
_KNOWN = {"type": ["number", "null"], "minimum": 0, "maximum": 1e9}

#: A line of "found": the column's and the prompt's place, and what `Measured` holds behind them.
_LINE = [
    *[_COUNT] * 2,
    *[_RATIO] * 2,
    *[_KNOWN] * 4,
    *[_COUNT] * 2,
    _FIGURE,
    {"type": "boolean"},
    {"enum": ["own", "server", "network"]},
]

_SCHEMA = {
    "type": "object",
    "properties": {
        "of": {"type": "string"},
        "done": _COUNT,
        "seconds": _RATIO,
        "failures": {"type": "array", "items": {"type": "string", "maxLength": 2_000}},
        "found": {
            "type": "array",
            "items": {
                "type": "array",
                "items": _LINE,
                "additionalItems": False,
                "minItems": len(_LINE),
            },
        },
    },
    "required": ["of", "done", "seconds", "failures", "found"],
    "additionalProperties": False,
}


@dataclass
class Benchmark:
    """One visitor's: what is to be measured, and what has been. `race` holds request, columns (the
    baseline first) and target; its prompt is replaced.
    """

    race: Race
    prompts: Sequence[Prompt]
    done: int = 0  # of the prompts
    found: list[Measured] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0  # that the prompts done took, waiting included

    def add(self, board: Scoreboard, seconds: float) -> None:
        """Count the next prompt as measured: its columns ran alone."""
        prompt, number = self.prompts[self.done], numbered(self.prompts)[self.done]
        base = board.scores[0]
        for column, score in zip(board.columns, board.scores, strict=True):
            if score.message:
                self.failures.append(f"{column.label}, prompt {self.done + 1}: {score.message}")
            elif base.steps and score.steps:
                self.found.append(measured(column, prompt.category, number, base, score))
        self.done += 1
        self.seconds += seconds

    @property
    def left(self) -> float:
        """Seconds that it may still take; 0 while that is unknown."""
        return self.seconds / self.done * (len(self.prompts) - self.done) if self.done else 0.0

    @property
    def places(self) -> list[tuple[str, int]]:
        """Each prompt's category and number."""
        categories = [prompt.category for prompt in self.prompts]
        return list(zip(categories, numbered(self.prompts), strict=True))


def kept(bench: Benchmark) -> dict[str, Any]:
    """What `go_on` goes on from, as JSON values; it names neither models nor columns."""
    labels = {column.label: i for i, column in enumerate(bench.race.columns)}
    places = {place: i for i, place in enumerate(bench.places[: bench.done])}
    return {
        "of": _identity(bench),
        "done": bench.done,
        "seconds": round(bench.seconds, 3),
        "failures": bench.failures,
        "found": [
            [labels[each.column], places[each.category, each.prompt], *_figures(each)]
            for each in bench.found
        ],
    }


def _figures(each: Measured) -> list[Any]:
    """What was measured, behind column, category and prompt, in digits that mean something."""
    return [
        float(f"{value:.6g}") if isinstance(value, float) else value for value in astuple(each)[3:]
    ]


def go_on(bench: Benchmark, text: Any) -> None:
    """Take as measured what a browser kept of this benchmark. Raises DerbyError for anything else,
    and if nothing is left to be measured.
    """
    found = _read(text)
    if found["of"] != _identity(bench):
        raise DerbyError(
            "What was measured is of another line-up, prompt set, machine or version: start anew."
        )
    labels, places = [column.label for column in bench.race.columns], bench.places
    done = min(found["done"], len(bench.prompts))
    lines = found["found"]
    beyond = [1 for column, place, *_ in lines if column >= len(labels) or place >= done]
    if beyond or max(len(lines), len(found["failures"])) > done * len(labels):
        raise _nothing()
    if done == len(bench.prompts):
        raise DerbyError("This benchmark has ended: start a new one.")
    bench.done, bench.seconds, bench.failures = done, found["seconds"], found["failures"]
    bench.found = [
        Measured(labels[column], *places[place], *figures) for column, place, *figures in lines
    ]


def _read(text: Any) -> dict[str, Any]:
    from jsonschema_rs import ValidationError

    try:
        if not isinstance(text, str) or len(text) > MOST_TEXT:
            raise _nothing()
        value: Any = read_json(text.encode())
        _validator().validate(value)
    except (ValueError, RecursionError, ValidationError) as error:
        raise _nothing() from error
    return value


def _nothing() -> DerbyError:
    return DerbyError("There is no benchmark to go on with: start one.")


@cache
def _validator() -> "Draft4Validator":
    from jsonschema_rs import Draft4Validator

    return Draft4Validator(_SCHEMA)


def _identity(bench: Benchmark) -> str:
    """The same for the same settings, line-up and prompts on the same machine and versions."""
    race = bench.race
    settings = document_of(recorded(race.request, race.columns, race.target, (), "-"))
    said = json.dumps([settings, [asdict(prompt) for prompt in bench.prompts]], sort_keys=True)
    return sha256(said.encode()).hexdigest()[:32]
