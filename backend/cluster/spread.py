"""A benchmark over the machines of a cluster: each comparison wholly on one of them."""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from backend.bench.prompts import Prompt
from backend.bench.runs import with_baseline
from backend.bench.solo import ColumnResult, Measured, measured, numbered, results
from backend.errors import DerbyError
from backend.events import Event, Failed
from backend.racing.hosts.host import POLL, Lease, Machines
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

Say = Callable[[str], None]

#: Times that a comparison is begun, each on another machine, if its machine is lost.
TRIES = 3

#: Machines that are used at once.
MOST = 256


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, answered by all columns, one after another; `place` is the prompt's among all.

    `key` names it in a file of results.
    """

    race: Race
    place: int
    category: str
    prompt: int

    @property
    def key(self) -> tuple[str, int]:
        return str(self.race.target), self.place


@dataclass(frozen=True, slots=True)
class Joined:
    """What a comparison came to: the machine's name, and each column that did not fail."""

    model: str
    place: int
    machine: str
    found: tuple[Measured, ...]
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpreadResult(ColumnResult):
    """A column's medians over the prompts that `machine` raced on `model`; "all": all machines."""

    model: str = ""
    machine: str = "all"


class Results:
    """A file of results, a line a comparison: what it holds is not measured again, and a line that
    was not written to its end counts for nothing. None: they are kept nowhere.
    """

    def __init__(self, path: Path | None, comparisons: Sequence[Comparison]) -> None:
        """Raises DerbyError if the file is of another benchmark, or cannot be read."""
        self._path, self._of = path, _identity(comparisons)
        self.joined: list[Joined] = []
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            whole, _, partial = path.read_text(encoding="utf-8").rpartition("\n")
            lines = [json.loads(line) for line in whole.splitlines()]
            if {line["of"] for line in lines} - {self._of}:
                raise DerbyError(
                    f"The results in {path} are of another benchmark: name another file."
                )
            found = {(line["model"], line["place"]): _joined(line) for line in lines}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DerbyError(f"The results in {path} cannot be read: {error}.") from error
        self.joined = list(found.values())
        if partial:  # its writer was killed
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def add(self, joined: Joined) -> None:
        self.joined.append(joined)
        if self._path is not None:
            line = {"of": self._of, **asdict(joined), "found": list(map(astuple, joined.found))}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _joined(line: dict[str, Any]) -> Joined:
    found = tuple(Measured(*figures) for figures in line["found"])
    return Joined(line["model"], line["place"], line["machine"], found, tuple(line["failures"]))


def _identity(comparisons: Sequence[Comparison]) -> str:
    """The same for the same prompts, columns, models and settings."""
    said = repr([(each.race, each.place, each.category) for each in comparisons])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def comparisons(
    prompts: Sequence[Prompt],
    columns: Sequence[Column],
    request: Request,
    targets: Iterable[ModelSpec],
) -> list[Comparison]:
    """Every prompt on every model, KV reuse beside the columns; who runs first rotates."""
    line_up = with_baseline(columns)
    return [
        Comparison(
            Race(
                replace(request, prompt=prompt.text),
                line_up,
                target,
                first=place % len(line_up),
            ),
            place,
            prompt.category,
            number,
        )
        for target in targets
        for place, (prompt, number) in enumerate(zip(prompts, numbered(prompts), strict=True))
    ]


def spread(machines: Machines, wanted: Sequence[Comparison], results: Results, say: Say) -> None:
    """Race what `results` does not hold yet on whichever machines are free, and add it there.

    A comparison whose machine is lost is begun anew on another one, which is said. Raises
    DerbyError if that happens to one too often.
    """
    have = {(joined.model, joined.place) for joined in results.joined}
    waiting = deque((each, 1) for each in wanted if each.key not in have)
    running: dict[Future[Joined | None], tuple[Comparison, int]] = {}
    warm: set[str] = set()
    with ThreadPoolExecutor(MOST) as pool:
        while waiting or running:
            if waiting and (lease := machines.lease((waiting[0][0].race,))) is not None:
                each, tries = waiting.popleft()
                running[pool.submit(_compare, each, lease, warm)] = each, tries
                continue
            for future in [future for future in running if future.done()]:
                each, tries = running.pop(future)
                if (joined := future.result()) is not None:
                    results.add(joined)
                    say(f"{len(results.joined)} of {len(wanted)} ({joined.machine})")
                    for failure in joined.failures:
                        say(failure)
                elif tries == TRIES:
                    raise DerbyError(
                        f"{TRIES} machines were lost at prompt {each.place + 1}: leave it out."
                    )
                else:
                    say(f"A machine was lost: prompt {each.place + 1} goes to another one.")
                    waiting.append((each, tries + 1))
            time.sleep(POLL)


def _compare(each: Comparison, lease: Lease, warm: set[str]) -> Joined | None:
    """Race a comparison on a machine that is held; on a cold one twice, and the first time does not
    count. None if the machine was lost.
    """
    try:
        joined = _raced(each, lease)
        if joined is not None and joined.machine not in warm:
            warm.add(joined.machine)
            joined = _raced(each, lease)
        return joined
    finally:
        lease.release()


def _raced(each: Comparison, lease: Lease) -> Joined | None:
    board, race = Scoreboard(each.race.columns), each.race
    events: list[Event] = []
    for event in lease.stream(race, lambda: False):
        events.append(event)
        board.add(event)
    if any(isinstance(event, Failed) and event.cause == "machine" for event in events):
        return None
    base, pairs = board.scores[0], zip(board.columns, board.scores, strict=True)
    found = tuple(
        measured(column, each.category, each.prompt, base, score)
        for column, score in pairs
        if base.written and score.written and not score.message
    )
    failures = tuple(
        f"{column.label}, prompt {each.place + 1}: {score.message}"
        for column, score in zip(board.columns, board.scores, strict=True)
        if score.message
    )
    name = board.placed.name if board.placed else ""
    return Joined(*each.key, name, found, failures)


def joined_results(joined: Sequence[Joined]) -> list[SpreadResult]:
    """Every column's medians by model: over all machines, and on each of them if there are more."""
    lines: list[SpreadResult] = []
    for model in dict.fromkeys(each.model for each in joined):
        own = [each for each in joined if each.model == model]
        names = sorted({each.machine for each in own})
        for name in ("all", *(names if len(names) > 1 else ())):
            found = [m for each in own if name in ("all", each.machine) for m in each.found]
            lines += [
                SpreadResult(**_fields(line), model=model, machine=name)
                for line in results(found)
                if line.category == "all"
            ]
    return lines


def _fields(line: ColumnResult) -> dict[str, Any]:
    return {each.name: getattr(line, each.name) for each in fields(line)}
