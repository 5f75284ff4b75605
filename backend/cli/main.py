"""The command line: python -m backend setup | race | snapshot | grammar | tune | verify |
bench | train.

What a user can fix ends with one sentence on stderr and exit code 2.
"""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from backend.bench.prompts import PROMPTS, read_prompts, sample
from backend.cli import snapshot as shelf
from backend.cli.tables import curve, summary, texts
from backend.cli.train import train
from backend.engines.registry import (
    device_help,
    engine_help,
    offered_engines,
    plugin_problems,
    precision_help,
)
from backend.errors import DerbyError
from backend.events import to_json
from backend.grammar.sources import grammar_from_file
from backend.racing.hosts.inline import InlineHost
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import DEFAULT_COLUMNS, STRATEGIES, Strategy, parse_column
from backend.types import ModelSpec, Request, Sampling

app = typer.Typer(
    help="Decode Derby: one prompt, several decoding strategies, honest clocks.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(shelf.app, name="snapshot")
app.command()(train)
# Piped tables are read in files and logs, which are wider than the 80 columns rich assumes.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True)

COLUMN_HELP = "A column, name[:setting=value,...]; repeat for more. Names: " + ", ".join(STRATEGIES)
Model = Annotated[str, typer.Option(help="built-in, a folder (/..., ./..., ~/...), or a Hub id.")]
EngineName = Annotated[str, typer.Option(help=engine_help())]
Precision = Annotated[str, typer.Option(help=precision_help())]
Device = Annotated[str, typer.Option(help=device_help())]
Columns = Annotated[list[str], typer.Option("--column", "-c", help=COLUMN_HELP)]
MaxNew = Annotated[int, typer.Option(help="Tokens to generate, at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Noise is keyed by seed and position.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def say(text: str) -> None:
    err.print(text, style="dim", highlight=False)


@app.command()
def setup() -> None:
    """Fetch and convert everything that the app needs, once."""
    from backend.engines.openvino.export import prepare_all

    prepare_all(say)
    say("Everything is prepared.")


@app.command()
def race(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from standard input.')],
    column: Columns = list(DEFAULT_COLUMNS),  # noqa: B006 (typer copies it)
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "fp32",
    device: Device = "CPU",
    max_new_tokens: MaxNew = 128,
    temperature: Temperature = 0.0,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 1.0,
    seed: Seed = 0,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template.")] = False,
    stop: Annotated[list[str], typer.Option(help="End the text before this string.")] = [],  # noqa: B006
    context: Annotated[int, typer.Option(help="Positions to use; 0: all the model has.")] = 0,
    shift: Annotated[
        bool, typer.Option("--shift", help="Drop old tokens when the context is full, and go on.")
    ] = False,
    grammar: Annotated[
        Path | None,
        typer.Option(help="A .lark, .schema.json, .regex or .gbnf file: grammar=own in columns."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one prompt through several strategies at once."""
    text = sys.stdin.read() if prompt == "-" else prompt
    chosen = tuple(_columns(column, grammar))
    sampling = Sampling(temperature, top_k, top_p, seed)
    request = Request(text, max_new_tokens, sampling, not raw, tuple(stop), context, shift)
    entered = Race(request, chosen, ModelSpec(model, engine, precision, device))
    board = Scoreboard(chosen)
    host = InlineHost()
    if as_json:
        for event in host.stream(entered, lambda: False):
            board.add(event)
            print(json.dumps(to_json(event)), flush=True)  # noqa: T201 (this is the output)
    else:
        with Live(console=out, refresh_per_second=8, transient=True) as live:
            for event in host.stream(entered, lambda: False):
                board.add(event)
                live.update(board.preparing or summary(board))
        out.print(texts(board))
        out.print(summary(board))
    failures = {score.message for score in board.scores if score.state == "failed"}
    if failures:
        raise DerbyError("\n".join(sorted(failures)))


def _columns(names: list[str], grammar: Path | None) -> list[Strategy]:
    own = grammar_from_file(grammar) if grammar else None
    return [parse_column(name, own) for name in names]


@app.command()
def grammar(
    file: Annotated[Path, typer.Argument(help="A .lark, .schema.json, .regex or .gbnf file.")],
    text: Annotated[str, typer.Option(help="See how far this is accepted.")] = "",
) -> None:
    """Check a grammar, and how far a text fits it."""
    from backend.web.editor import SOUND, fit, page_tokenizer

    told = fit(grammar_from_file(file), page_tokenizer(), text)
    out.print(f"{SOUND} {told}", highlight=False, markup=False)


@app.command()
def verify(
    engine: Annotated[list[str], typer.Option(help="Repeat for more.")] = list(offered_engines()),  # noqa: B006, B008
    prompts: Annotated[int, typer.Option(help="How many of the six prompts.")] = len(PROMPTS),
    max_new_tokens: MaxNew = 96,
) -> None:
    """Check that every lossless column writes what KV reuse writes; exit code 1 if one does not."""
    from backend.bench.verify import cases
    from backend.bench.verify import verify as run_cases

    targets = tuple(ModelSpec(engine=name) for name in engine)
    chosen = cases(targets, PROMPTS[:prompts])
    engines = LoadedModels()
    unequal = 0
    for number, result in enumerate(run_cases(chosen, engines, max_new_tokens), 1):
        case = result.case
        unequal += not result.equal
        told = f"{len(result.verdicts)} columns equal" if result.equal else "NOT EQUAL"
        out.print(
            f"{number}/{len(chosen)} {case.target.engine} {case.prompt.category} "
            f"T={case.temperature} seed={case.seed}: {told}, {result.tokens} tokens",
            highlight=False,
        )
        for name, verdict in result.verdicts:
            if verdict != "equal":
                out.print(f"    {name}: {verdict}", highlight=False)
    out.print(f"{len(chosen) - unequal} of {len(chosen)} cases equal in every column")
    raise typer.Exit(1 if unequal else 0)


@app.command()
def bench(
    experiment: Annotated[
        str,
        typer.Option(help="solo, interleaved, program, structure, grammar, peers or assisted."),
    ] = "solo",
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with category and turns; default: six of our own."),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Use so many prompts, spread over the file; 0: all.")
    ] = 0,
    column: Columns = list(DEFAULT_COLUMNS),  # noqa: B006 (typer copies it)
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "fp32",
    device: Device = "CPU",
    max_new_tokens: MaxNew = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure: solo and warmed up, interleaved against solo, or against the engine's own loop."""
    from backend.bench import solo as benches
    from backend.bench.assisted import assisted_experiment, assisted_table
    from backend.bench.baselines import compare
    from backend.bench.grammar import grammar_experiment
    from backend.bench.program import program_experiment
    from backend.bench.structure import structure_experiment

    chosen = sample(read_prompts(prompts) if prompts else PROMPTS, limit)
    request = Request("-", max_new_tokens, Sampling(temperature, seed=seed))
    target = ModelSpec(model, engine, precision, device)
    columns = [parse_column(name) for name in column]
    engines = LoadedModels()
    match experiment:
        case "solo":
            rows: list[Any] = benches.solo(chosen, columns, request, target, engines, say)
        case "interleaved":
            rows = benches.interleaving(chosen, columns, request, target, engines, say)
        case "peers":
            rows = [compare(chosen, max_new_tokens, target, engines, say)]
        case "program":
            rows = program_experiment(request, target, engines, say, limit or 3)
        case "structure":
            rows = structure_experiment(request, target, engines, say, limit or 3)
        case "grammar":
            rows = grammar_experiment(say)
        case "assisted":
            rows = assisted_experiment(chosen, max_new_tokens, engines, say)
        case _:
            raise DerbyError(
                f"There is no experiment {experiment!r}; run solo, interleaved, program, "
                "structure, grammar, peers or assisted."
            )
    if not as_json and experiment == "assisted":
        out.print(assisted_table(rows, max_new_tokens))
    elif not as_json:
        run = f"{target}, {max_new_tokens} new tokens, T={temperature}"
        told = "masks alone, no model" if experiment == "grammar" else run
        out.print(_table(f"{experiment}: {told}", rows))
    print(json.dumps([asdict(row) for row in rows]))  # noqa: T201 (the last line is for programs)


@app.command()
def tune(
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines as for bench; default: six of our own.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Use so many prompts.")] = 4,
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "fp32",
    device: Device = "CPU",
    max_new_tokens: MaxNew = 96,
    as_json: AsJson = False,
) -> None:
    """Find the settings to use here: pass costs, predicted and measured speed-ups (minutes)."""
    from backend.bench.tune import tune as find

    chosen = sample(read_prompts(prompts) if prompts else PROMPTS, limit)
    target = ModelSpec(model, engine, precision, device)
    found = find(target, chosen, max_new_tokens, LoadedModels(), say)
    if as_json:
        print(json.dumps(asdict(found)))  # noqa: T201 (this is the output)
        return
    out.print(curve(found.costs, found.draft_steps))
    out.print(_table(f"tune: {target}, {max_new_tokens} new tokens, greedy", list(found.rows)))
    out.print(f"Use: -c {found.best}", highlight=False)


def _table(title: str, rows: list[Any]) -> Table:
    table = Table(title=title)
    for name in asdict(rows[0]):
        side = "left" if name in ("column", "grammar", "schema", "setting") else "right"
        table.add_column(name.replace("_", " "), justify=side)
    for row in rows:
        table.add_row(*(_cell(value) for value in asdict(row).values()))
    return table


def _cell(value: Any) -> str:
    match value:
        case float():
            return f"{value:.3g}" if value < 100 else f"{value:.0f}"
        case (low, high):
            return f"{low:.2f}-{high:.2f}"
        case _:
            return str(value)


def main() -> None:
    """Run the command line; a DerbyError is one sentence and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for problem in plugin_problems():
        err.print(problem, style="yellow", highlight=False, markup=False, soft_wrap=True)
    try:
        app()
    except DerbyError as error:
        err.print(str(error), style="bold red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
