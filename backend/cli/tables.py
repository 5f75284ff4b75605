"""What the command line prints: live columns, the final table, texts coloured by origin."""

from collections.abc import Mapping

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from backend.costs.pass_costs import PassCosts
from backend.results.metrics import Score
from backend.results.reason import reason
from backend.results.scoreboard import Scoreboard

STYLES = {
    "sampled": "",
    "drafted": "green",
    "bonus": "cyan",
    "forced": "magenta",
    "fixed": "dim",
    "earlier": "dim",
}


def summary(board: Scoreboard) -> Table:
    """One row a column: how it ended, timings and their causes."""
    table = Table(
        caption="own clocks, interleaved; times in ms", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("column", min_width=13)
    table.add_column("state", min_width=11)
    for name in ("toks", "TTFT", "TPOT", "tok/s", "t/fwd", "acc.", "mask", "x KV"):
        table.add_column(name, justify="right", no_wrap=True, min_width=4)
    for index, (strategy, score) in enumerate(zip(board.columns, board.scores, strict=True)):
        speedup = board.speedup(index)
        table.add_row(
            strategy.label,
            _state(score),
            str(len(score.tokens)),
            _milliseconds(score.ttft),
            _milliseconds(score.tpot),
            f"{score.tokens_per_second:.1f}" if score.tpot else "-",
            f"{score.tokens_per_forward:.2f}" if score.tpot else "-",
            f"{score.acceptance:.0%}" if score.drafted else "-",
            _milliseconds(score.parts.get("mask", 0.0) / max(score.steps, 1)),
            f"{speedup:.2f}" if speedup else "-",
        )
    return table


def _milliseconds(seconds: float) -> str:
    """A time given in seconds with three digits; "-" below a hundredth of a millisecond."""
    return f"{seconds * 1e3:.3g}" if seconds >= 1e-5 else "-"


def _state(score: Score) -> str:
    if score.state == "prefill":
        return f"prefill {score.prefilled}/{score.prompt_tokens}"
    return score.reason or score.state


def texts(board: Scoreboard) -> Group:
    """Every column's text under its name and what is to be said of it."""
    parts: list[Text] = []
    for index, (strategy, score) in enumerate(zip(board.columns, board.scores, strict=True)):
        remark = score.message or board.verdict(index)
        parts.append(Text(f"\n{strategy.label}", style="bold"))
        for told in filter(None, (remark, reason(board, index))):
            parts[-1].append(f"  {told}.", style="not bold dim")
        body = Text()
        for origin, piece in score.spans:
            body.append(piece, style=STYLES[origin])
        parts.append(body)
    legend = Text("\n")
    for origin, style in STYLES.items():
        legend.append(f"{origin}  ", style=style)
    return Group(*parts, legend)


def curve(costs: PassCosts, draft_steps: Mapping[str, float]) -> Table:
    """What a forward over k rows costs, with a bar for each width."""
    table = Table(title="T(k): a forward pass over k rows", box=box.SIMPLE_HEAD)
    for name in ("k", "ms", "plain steps"):
        table.add_column(name, justify="right")
    table.add_column("")
    longest = costs.seconds[-1]
    for rows, seconds in zip(costs.widths, costs.seconds, strict=True):
        bar = "\N{FULL BLOCK}" * round(40 * seconds / longest)
        table.add_row(str(rows), f"{seconds * 1e3:.1f}", f"{costs.relative(rows):.2f}", bar)
    notes = [f"another width than before: +{costs.width_change * 1e3:.1f} ms"]
    notes += [
        f"{name}: {seconds * 1e3:.2f} ms a draft call" for name, seconds in draft_steps.items()
    ]
    table.caption = "; ".join(notes)
    return table
