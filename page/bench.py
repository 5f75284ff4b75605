"""The benchmark: every column alone on every prompt, in a table that grows."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import gradio as gr

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt, prompts_in
from backend.bench.rows import Figures, PromptRow, row_of
from backend.bench.summary import ALL, HEADINGS, cells, conclusion, failures, measured, results
from backend.errors import DerbyError
from backend.export.tables import csv_of
from backend.form import read_race
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.line import Line, Place
from backend.results.figures import counted
from backend.results.scoreboard import Scoreboard
from page.components import QUIET, Fields, in_browser, plain, refusal
from page.guests import guest_of
from page.race import Run, running

#: Characters of a prompt set.
MOST_TEXT = 200_000


def fill(host: Host, line: Line, offer: Offer, fields: Fields) -> None:
    """Lay the benchmark out and connect it. Its columns and settings are those of the race."""
    gr.Markdown(
        "Runs the line-up of the settings on several prompts, each column alone. Speed-ups are "
        "medians over the prompts."
    )
    prompts = gr.Textbox(
        label="Prompts",
        info="One a line, or JSON with prompt, turns or messages, such as Spec-Bench's; empty: "
        f"{len(PROMPTS)} of our own.",
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

    async def start(request: gr.Request, text: str, *values: Any) -> AsyncIterator[Any]:
        try:
            plan = plan_of(text, dict(zip(fields, values, strict=True)), offer)
            known, rows = -1, list[PromptRow]()
            with line.place(guest_of(request)) as place:
                async with aclosing(measured_rows(host, place, plan, offer)) as steps:
                    async for rows in steps:  # gradio sees at a yield that a tab was closed
                        grown, known = len(rows) > known, len(rows)
                        yield outputs_of(plan, rows, over=False) if grown else gr.skip()
            yield outputs_of(plan, rows, over=True)
        except DerbyError as error:
            raise refusal(error) from error

    going = run.click(
        start,
        [prompts, *fields.values()],
        [status, table, rows],
        concurrency_limit=None,
        api_visibility="private",
        show_progress="hidden",
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
    texts = (text for prompt in prompts for text in (prompt.text, *prompt.later))
    race, *_ = [read_race(form | {"prompt": text}, offer) for text in texts]
    return Plan([*prompts], race.columns, race.request, race.target)


async def measured_rows(
    host: Host, place: Place, plan: Plan, offer: Offer
) -> AsyncGenerator[Sequence[PromptRow], None]:
    """The rows so far, some times a second, until there is one of each prompt. Before each race,
    others have their turns. Raises DerbyError for one that takes too long while others wait.
    """
    rows, seconds = list[PromptRow](), offer.limits.seconds
    yield rows
    warm_up = replace(plan.jobs[0], later=())  # the first race is slower
    for job in (warm_up, *plan.jobs):
        boards = list[Scoreboard]()
        while (race := job.next_race(boards)) is not None:
            run = Run(race, offer)
            async with aclosing(running(host, place, race, run, seconds)) as steps:
                async for _ in steps:
                    yield rows
            if run.overdue:
                raise DerbyError(
                    f"Others wait, and a prompt took longer than {seconds} s: ask for fewer tokens "
                    "or columns."
                )
            boards.append(run.board)
            place.again()
        if job is not warm_up:
            rows.append(row_of(plan, job, boards))
    yield rows


def outputs_of(plan: Plan, rows: Sequence[PromptRow], *, over: bool) -> tuple[Any, ...]:
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
