"""What the command line prints: live columns, the final table, texts coloured by origin."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from backend.cli.console import out, visible
from backend.costs import PassCosts
from backend.events import Event, to_json
from backend.results.figures import FIGURES
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import doubt, headline, state, verdict, why

#: Times a second that the table is drawn.
FRAMES = 8

STYLES = {
    "sampled": "",
    "drafted": "green",
    "bonus": "cyan",
    "forced": "magenta",
    "fixed": "dim",
}


@contextmanager
def live(board: Scoreboard, *, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each event: it prints the event as JSON, or draws the table anew, a few
    times a second, which takes the race's time, though no clock's.
    """
    if as_json:
        yield lambda event: print(json.dumps(to_json(event)), flush=True)
        return
    latest = 0.0

    def draw(_event: Event) -> None:
        nonlocal latest
        if time.monotonic() - latest > 1 / FRAMES:
            table.update(board.preparing or summary(board), refresh=True)
            latest = time.monotonic()

    with Live(console=out, auto_refresh=False, transient=True) as table:
        yield draw


def conclude(board: Scoreboard) -> None:
    """Print every text, and the table below."""
    out.print(texts(board))
    out.print(summary(board))


def summary(board: Scoreboard) -> Table:
    """The result above one line a column: how it ended, timings and their causes."""
    result = result_of(board)
    table = Table(caption=visible(doubt(board, result)), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("column", min_width=13)
    table.add_column("state", min_width=11)
    shown = [figure for figure in FIGURES if figure.summary]
    for figure in shown:
        heading = figure.heading.replace(", ", " ").replace(" ", "\n")
        table.add_column(heading, justify="right", no_wrap=True, min_width=4)
    for row in result.rows:
        cells = [figure.cell(row) for figure in shown]
        table.add_row(visible(board.columns[row.column].label), state(row), *cells)
    return table


def texts(board: Scoreboard) -> Group:
    """The headline, and every column's text below its name and its sentences; a program's values
    below, as JSON.
    """
    result = result_of(board)
    parts: list[Text] = []
    for row in result.rows:
        parts.append(Text(f"\n{visible(board.columns[row.column].label)}", style="bold"))
        for sentence in filter(None, (verdict(board, row), why(board, row))):
            parts[-1].append(f"  {visible(sentence.removesuffix('.'))}.", style="not bold dim")
        body = Text()
        for origin, piece in row.score.spans:
            body.append(visible(piece), style=STYLES[origin])
        parts.append(body)
        if row.score.values:
            parts.append(Text(visible(json.dumps(row.score.values, ensure_ascii=False))))
    legend = Text("\n")
    for origin, style in STYLES.items():
        legend.append(f"{origin}  ", style=style)
    return Group(*parts, legend, Text(f"\n{visible(headline(board, result))}", style="bold"))


def curve(costs: PassCosts, draft_steps: Mapping[str, float]) -> Table:
    """The time of a pass over k rows, with a bar for each width."""
    table = Table(title="Time of a pass over k rows", box=box.SIMPLE_HEAD)
    for name in ("k", "ms", "times as long"):
        table.add_column(name, justify="right")
    table.add_column("")
    longest = costs.seconds[-1]
    for rows, seconds in zip(costs.widths, costs.seconds, strict=True):
        bar = "\N{FULL BLOCK}" * round(40 * seconds / longest)
        table.add_row(str(rows), f"{seconds * 1e3:.1f}", f"{costs.relative(rows):.2f}", bar)
    notes = [f"after a pass of another width: +{costs.width_change * 1e3:.1f} ms"]
    notes += [
        f"{name}: {seconds * 1e3:.2f} ms per draft call" for name, seconds in draft_steps.items()
    ]
    table.caption = "; ".join(notes)
    return table
