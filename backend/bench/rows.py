"""What was measured, a row a job, and the file that holds rows as JSON Lines.

A row holds figures; what they are of stands in the plan, whose identity it names.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from backend.bench.plan import Job, Plan
from backend.errors import DerbyError
from backend.records.file import require_folder
from backend.results.figures import figure
from backend.results.result import Row, result_of
from backend.results.scoreboard import Score, Scoreboard
from backend.untrusted import Untrusted, UntrustedError, read_json

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]


class Figures(Untrusted, extra="forbid"):
    """One column on one prompt, beside the baseline alone on the same.

    speedup: as the result of a race has it, 0 where there is none. ttft, tpot and
    tokens_per_pass are in their figures' units, None where unknown. equal: the text is the
    baseline's. one_clock: both were timed alike.
    """

    speedup: Amount
    ttft: Amount | None
    tpot: Amount | None
    tokens_per_pass: Amount | None
    drafted: Count
    accepted: Count
    equal: bool
    one_clock: bool


class PromptRow(Untrusted, extra="forbid"):
    """One job. `of` is the plan's identity. `others`: the most of the machine that others used in
    one of its races. `turns`: in each turn of the chat the columns in the plan's order, each with
    its figures, or why it has none; "": the baseline has none to compare with.
    """

    of: str
    job: Count
    others: Amount = 0.0
    turns: tuple[tuple[Figures | str, ...], ...]

    @property
    def failed(self) -> bool:
        """True if a column failed."""
        return any(isinstance(entry, str) and entry for entry in chain(*self.turns))


def row_of(plan: Plan, job: Job, boards: Sequence[Scoreboard]) -> PromptRow:
    """What the races of a job's turns came to."""
    return PromptRow(
        of=plan.identity,
        job=job.number,
        others=max((board.others for board in boards), default=0.0),
        turns=tuple(_turn(board, job.baseline) for board in boards),
    )


def _turn(board: Scoreboard, baseline: int) -> tuple[Figures | str, ...]:
    base, result = board.scores[baseline], result_of(board)
    return tuple(
        _figures(row, base, equal=result.wrote_baseline_text(row))
        if base.steps and row.score.steps and not (base.message or row.message)
        else row.message
        for row in result.rows
    )


def _figures(row: Row, base: Score, *, equal: bool) -> Figures:
    """What a column's run says beside the baseline's on the same prompt."""
    speedup, ttft, tpot, tokens_per_pass = (
        None if value is None else float(f"{value:.6g}")  # digits that mean something
        for name in ("speedup", "ttft", "tpot", "tokens_per_pass")
        for value in [figure(name).value(row)]
    )
    score = row.score
    return Figures(
        speedup=speedup or 0.0,
        ttft=ttft,
        tpot=tpot,
        tokens_per_pass=tokens_per_pass,
        drafted=score.drafted,
        accepted=score.accepted,
        equal=equal,
        one_clock=score.clock == base.clock,
    )


class RowFile:
    """The last row of each job, and the file to which each new one is added; without a path they
    are in memory alone.
    """

    def __init__(self, path: Path | None, plan: Plan) -> None:
        """Raises DerbyError if the file belongs to another benchmark or cannot be used."""
        self._path, self._rows = path, dict[int, PromptRow]()
        if path is None:
            return
        require_folder(path)
        try:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                row = _row_in(line, plan, f"The results in {path}", f"line {number}")
                self._rows[row.job] = row
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise DerbyError(
                f"The results in {path} cannot be read: {error}; name another file."
            ) from error

    @property
    def rows(self) -> list[PromptRow]:
        return list(self._rows.values())

    def add(self, row: PromptRow) -> None:
        self._rows[row.job] = row
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(row.model_dump_json() + "\n")


def _row_in(line: str, plan: Plan, name: str, where: str) -> PromptRow:
    """The row in a line of a file. Raises DerbyError if it is none of this plan."""
    try:
        row: PromptRow = read_json(PromptRow, line.encode(), "it")
    except UntrustedError as error:
        raise DerbyError(
            f"{name} cannot be read: {where} is not a benchmark result: {error.clause}; "
            "delete that line, or name another file."
        ) from error
    columns = {*map(len, row.turns)} == {len(plan.columns)}
    if row.of != plan.identity or row.job >= len(plan.jobs) or not columns:
        raise DerbyError(
            f"{name} belong to another benchmark, machine or version: name another file."
        )
    return row


def remaining(plan: Plan, rows: Sequence[PromptRow]) -> list[Job]:
    """The jobs that no row tells of yet, and those of which a column failed: what it lacked may be
    there by now.
    """
    done = {row.job for row in rows if not row.failed}
    return [job for job in plan.jobs if job.number not in done]
