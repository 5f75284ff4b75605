"""What was measured, a row a job: the one format of files and browsers, JSON Lines.

A row tells places and figures; what they are of stands in the plan, whose identity it names. Rows
that come back from a file or a browser are untrusted.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field

from backend.bench.plan import Job, Plan
from backend.bench.prompts import MOST_TURNS
from backend.errors import DerbyError
from backend.results.figures import figure
from backend.results.result import Row as ResultRow
from backend.results.result import result_of
from backend.results.score import Score
from backend.results.scoreboard import Scoreboard
from backend.untrusted import UntrustedError, read_json

#: Bytes and JSON values of the longest row: some turns of twelve columns, each of which may have
#: failed with a long sentence.
LONGEST, MOST_VALUES = 1_000_000, 50_000

Count = Annotated[int, Field(ge=0, le=1_000_000)]
Positions = tuple[tuple[Count, Count], ...]
Amount = Annotated[float, Field(ge=0, le=1e9)]


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Figures(_Read):
    """One column on one prompt, beside KV reuse alone on the same.

    speedup: as the result of a race has it, 0 where there is none. ttft, tpot, tokens_per_forward
    and mask are in their figures' units, overhead, a step's time outside draft, mask and forward,
    in milliseconds; None where unknown. drafted and accepted are counts, positions those of a
    score. equal: the text is KV reuse's. clock: whose time it is, as a score has it.
    """

    speedup: Amount
    ttft: Amount | None
    tpot: Amount | None
    tokens_per_forward: Amount | None
    mask: Amount | None
    drafted: Count
    accepted: Count
    positions: Positions = ()
    overhead: Annotated[float, Field(ge=-1e9, le=1e9)] | None
    equal: bool
    clock: Annotated[str, Field(pattern="^(own|server|network)$")]


#: Why a column has no figures; "": KV reuse has none to compare with.
Reason = Annotated[str, Field(max_length=2_000)]


class Row(_Read):
    """One job. `of` is the plan's identity, `machine` a cluster's name of where it ran; `raw`: the
    prompt was sent as it is, because the model has no chat template; `turns`: in each turn of the
    chat, the columns in the plan's order.
    """

    of: str
    job: Count
    machine: Annotated[str, Field(max_length=200)] = ""
    raw: bool = False
    turns: Annotated[
        tuple[Annotated[tuple[Figures | Reason, ...], Len(1, 12)], ...], Len(1, MOST_TURNS)
    ]

    @property
    def line(self) -> str:
        return self.model_dump_json() + "\n"


def row_of(plan: Plan, job: Job, boards: Sequence[Scoreboard], machine: str = "") -> Row:
    """What the races of a job's turns came to."""
    return Row(
        of=plan.identity,
        job=job.number,
        machine=machine[:200],
        raw=any(board.conditions is not None and board.conditions.raw for board in boards),
        turns=tuple(_turn(board) for board in boards),
    )


def _turn(board: Scoreboard) -> tuple[Figures | Reason, ...]:
    base = board.scores[0]
    return tuple(
        figures_of(base, row)
        if base.steps and row.score.steps and not (base.message or row.message)
        else row.message[:2_000]
        for row in result_of(board).rows
    )


def figures_of(base: Score, row: ResultRow) -> Figures:
    """What a column's run says beside the baseline's on the same prompt."""
    ttft, tpot, tokens_per_forward, mask = (
        _rounded(figure(name).value(row))
        for name in ("ttft", "tpot", "tokens_per_forward", "mask_wait")
    )
    score = row.score
    alike = score.tokenizer == base.tokenizer  # else a token's id means something else
    limit = len(score.tokens) if score.reason == "photo finish" else len(base.tokens)
    rest = score.parts.get("rest", 0.0) / max(score.steps, 1) * 1e3
    return Figures(
        speedup=_rounded(row.speedup.value) or 0.0,
        ttft=ttft,
        tpot=tpot,
        tokens_per_forward=tokens_per_forward,
        mask=mask,
        drafted=score.drafted,
        accepted=score.accepted,
        positions=tuple(score.positions),
        overhead=_rounded(rest) if score.parts else None,
        equal=score.tokens == base.tokens[:limit] if alike else score.text == base.text,
        clock=score.clock,
    )


def _rounded(value: float | None) -> float | None:
    """In digits that mean something."""
    return None if value is None else float(f"{value:.6g}")


def rows_in(text: str, plan: Plan) -> list[Row]:
    """The rows of a text in JSON Lines, the last one of each job. Raises DerbyError, whose sentence
    begins with "line 3" or the like, for a line that is none, or a row of another plan.
    """
    rows: dict[int, Row] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        try:
            row: Row = read_json(Row, line.encode(errors="replace")[:LONGEST], "it", MOST_VALUES)
        except UntrustedError as error:
            clause = f"line {number} is not a benchmark result: {error.clause}"
            raise DerbyError(clause) from error
        if row.of != plan.identity:
            raise OtherPlanError(f"line {number} belongs to another benchmark")
        if row.job >= len(plan.jobs) or {*map(len, row.turns)} != {len(plan.columns)}:
            raise DerbyError(f"line {number} names a prompt or a column that does not exist")
        rows[row.job] = row
    return list(rows.values())


class OtherPlanError(DerbyError):
    """Rows are of other prompts, columns, models or settings, another machine or version."""


class RowFile:
    """A file of rows, to which each new one is added; None: they are kept in memory alone."""

    def __init__(self, path: Path | None, plan: Plan) -> None:
        """Raises DerbyError if the file belongs to another benchmark or cannot be used."""
        self._path = path
        self.rows: list[Row] = []
        if path is not None and not path.parent.is_dir():
            raise DerbyError(f"There is no folder {str(path.parent)!r} for results: create it.")
        if path is not None and path.exists():
            self._read(path, plan)

    def _read(self, path: Path, plan: Plan) -> None:
        try:
            whole, _, partial = path.read_text(encoding="utf-8").rpartition("\n")
            self.rows = rows_in(whole, plan)
            if partial:  # its writer was killed
                path.write_text(whole + "\n" if whole else "", encoding="utf-8")
        except OtherPlanError as error:
            raise DerbyError(
                f"The results in {path} belong to another benchmark, machine or version: name "
                f"another file."
            ) from error
        except (OSError, UnicodeDecodeError, DerbyError) as error:
            raise DerbyError(
                f"The results in {path} cannot be read: {error}; name another file."
            ) from error

    def add(self, row: Row) -> None:
        self.rows = with_row(self.rows, row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(row.line)


def with_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """The rows with another one, in place of an earlier one of its job."""
    return [*(each for each in rows if each.job != row.job), row]


def left_of(plan: Plan, rows: Sequence[Row]) -> list[Job]:
    """The jobs that no row tells of yet, and those of which a column failed: what it lacked may be
    there by now.
    """
    failed = {
        row.job for row in rows for each in chain(*row.turns) if isinstance(each, str) and each
    }
    done = {row.job for row in rows} - failed
    return [job for job in plan.jobs if job.number not in done]
