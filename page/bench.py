"""The benchmark: every column alone on every prompt, in a table that grows."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import gradio as gr

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt, prompts_in
from backend.bench.rows import Figures, Row, row_of
from backend.bench.summary import ALL, HEADINGS, cells, conclusion, failures, measured, results
from backend.errors import DerbyError
from backend.export.tables import csv_of
from backend.form import read_race
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.race import Race
from backend.results.figures import counted
from backend.results.scoreboard import Scoreboard
from page.components import QUIET, Fields, in_browser, plain, refusal
from page.race import events_of

#: Characters of a prompt set.
MOST_TEXT = 200_000


def fill(host: Host, offer: Offer, fields: Fields) -> None:
    """Lay the benchmark out and connect it. Its columns and settings are those of the race."""
    gr.Markdown(
        "Runs the line-up of the settings on several prompts, each column alone. Speed-ups are "
        "medians over the prompts."
    )
    prompts = gr.Textbox(
        label="Prompts",
        info=f"One a line, or JSON Lines as Spec-Bench has them; empty: {len(PROMPTS)} of our own.",
        lines=3,
        max_lines=10,
        elem_id="bench-prompts",
    )
    with gr.Row():
        run = gr.Button("Run the benchmark", variant="primary", elem_id="bench-run")
        stop = gr.Button("Stop", elem_id="bench-stop")
        save = gr.Button("Download", elem_id="bench-save")
    status = plain(elem_id="bench-status")
    table = gr.Dataframe(
        [], headers=[*HEADINGS], interactive=False, wrap=True, elem_id="bench-table"
    )
    rows = gr.Textbox(visible=False)

    async def start(
        text: str,
        *values: Any,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> AsyncIterator[tuple[Any, ...]]:
        try:
            plan = plan_of(text, dict(zip(fields, values, strict=True)), offer)
            done, count = list[Row](), len(plan.jobs)
            progress((0, 1 + count), desc="warming up")  # the first race is slower
            await raced(host, plan.jobs[0].race, offer.limits.seconds)
            yield outputs_of(plan, done, over=False)
            for number, job in enumerate(plan.jobs, 1):
                progress((number, 1 + count), desc=f"prompt {number} of {count}")
                boards: list[Scoreboard] = []
                while (race := job.next_race(boards)) is not None:
                    boards.append(await raced(host, race, offer.limits.seconds))
                done.append(row_of(plan, job, boards))
                yield outputs_of(plan, done, over=False)
            yield outputs_of(plan, done, over=True)
        except DerbyError as error:
            raise refusal(error) from error

    going = run.click(
        start,
        [prompts, *fields.values()],
        [status, table, rows],
        concurrency_id="benchmark",
        concurrency_limit=2,
        api_visibility="private",
        show_progress_on=status,
    )
    stop.click(None, cancels=[going], **QUIET)
    save.click(None, rows, None, js=in_browser("save", "benchmark.csv"), **QUIET)


def plan_of(text: str, form: dict[str, Any], offer: Offer) -> Plan:
    """What is to be measured. Raises DerbyError."""
    if len(text) > MOST_TEXT:
        raise DerbyError(f"The prompts have {len(text):,} characters; {MOST_TEXT:,} are allowed.")
    prompts: Sequence[Prompt] = prompts_in(text, "The prompt set") if text.strip() else PROMPTS
    runs = sum(1 + len(prompt.later) for prompt in prompts)
    if runs > offer.limits.benchmark_races:
        raise DerbyError(
            f"{counted(runs, 'run')} are more than the {offer.limits.benchmark_races:,} that a "
            "benchmark may have here: give fewer prompts."
        )
    race = read_race(form | {"prompt": prompts[0].text}, offer)
    return Plan([*prompts], race.columns, race.request, race.target)


async def raced(host: Host, race: Race, seconds: float) -> Scoreboard:
    """The race's end; other visitors' races may run before it. Raises DerbyError for one that takes
    longer than so many seconds.
    """
    board = Scoreboard(race.columns)
    async with aclosing(events_of(host, race, most=seconds)) as batches:
        async for events in batches:
            for event in events:
                board.add(event)
    if any(score.state == "stopped" for score in board.scores):
        raise DerbyError(f"A race took longer than {seconds:g} s: ask for fewer tokens or columns.")
    return board


def outputs_of(plan: Plan, rows: Sequence[Row], *, over: bool) -> tuple[Any, ...]:
    """The conclusion, the table, and the rows as CSV."""
    lines = measured(plan, rows)
    columns = [c for c in results(lines) if c.category == ALL]
    status = f"{len(rows)} of {len(plan.jobs)} prompts measured."
    if over:
        status = " ".join([conclusion(plan, columns, rows), *failures(plan, rows)])
    heads = ["column", "category", "prompt", *Figures.model_fields]
    csv = [
        [m.column, m.category, m.prompt, *m.figures.model_dump().values()]
        for m in lines
        if m.figures
    ]
    return status, [cells(column) for column in columns], csv_of([heads, *csv])
