"""python -m experiments gpu: each part in a process of its own, which may crash or hang alone."""

import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from backend.bench.prompts import PROMPTS, read_prompts
from backend.cli.console import say
from backend.cli.options import Model
from backend.errors import check_range
from backend.types import ModelSpec
from experiments.gpu_parts import (
    FULL,
    PARTS,
    SHORT,
    Part,
    Task,
    part_named,
    require_device,
    run_part,
)
from experiments.gpu_results import DONE, RUNNING, Record, read_record, summary

#: Seconds beyond a part's time after which its process is ended: it may just be in a long answer.
PATIENCE = 90

#: The least that a part is given, however late it is.
LEAST = 30

PARTS_HELP = "Run one part in this process; " + "; ".join(f"{p.name}: {p.help}" for p in PARTS)


def gpu(
    folder: Annotated[
        Path, typer.Option(help="Results, one JSON file a part; what is done is not done again.")
    ] = Path("build/gpu"),
    minutes: Annotated[float, typer.Option(help="For all parts together.")] = 40.0,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with category and turns; default: six of our own."),
    ] = None,
    model: Model = "built-in",
    device: Annotated[str, typer.Option(help="CUDA, CUDA:1, ... or CPU.")] = "CUDA",
    only: Annotated[str, typer.Option(help=f"{PARTS_HELP}.")] = "",
    *,
    short: Annotated[bool, typer.Option("--short", help="All of it in miniature.")] = False,
) -> None:
    check_range("minutes", minutes, 0.1, 60 * 24)
    require_device(device.upper())
    task = Task(
        ModelSpec(model, "torch", "fp32", device.upper()),
        read_prompts(prompts) if prompts else PROMPTS,
        folder,
        SHORT if short else FULL,
        minutes,
        say,
    )
    if only:
        part = part_named(only)
        record = run_part(part, task, 60 * minutes)
        raise typer.Exit(0 if record.state == DONE else 1)
    run_all(task, prompts)
    print(summary([read_record(folder, part.name, task.conditions) for part in PARTS]))


def run_all(task: Task, prompts: Path | None) -> None:
    """Run every part that is not done; none keeps the next ones from running."""
    began = monotonic()
    for place, part in enumerate(PARTS):
        if read_record(task.folder, part.name, task.conditions).state == DONE:
            say(f"{part.name} is done already")
            continue
        # What earlier parts left over is shared among those that are left.
        left = 60 * task.minutes - (monotonic() - began)
        share = part.share / sum(later.share for later in PARTS[place:])
        seconds = max(LEAST, left * share)
        say(f"{part.name}: {part.help}, {seconds / 60:.1f} minutes at most")
        run_alone(part, task, prompts, seconds)


def run_alone(part: Part, task: Task, prompts: Path | None, seconds: float) -> None:
    """Run a part in a process, which is ended when its time is over; how it ended is recorded."""
    command = [sys.executable, "-m", "experiments", "gpu", "--only", part.name]
    command += ["--folder", str(task.folder), "--minutes", str(seconds / 60)]
    command += ["--model", task.target.name, "--device", task.target.device]
    command += [*(["--prompts", str(prompts)] if prompts else [])]
    command += [*(["--short"] if task.size == SHORT else [])]
    try:
        # Our own program, and arguments that no shell reads.
        run = subprocess.run(command, timeout=seconds + PATIENCE, check=False)  # noqa: S603
        code = run.returncode
        ended = f"ended by itself with code {code}"
    except subprocess.TimeoutExpired:
        ended = f"was ended {PATIENCE} s after its time"
    record: Record = read_record(task.folder, part.name, task.conditions)
    if record.state == RUNNING:
        record.state = ended
        record.keep(task.folder)
    if record.state != DONE:
        say(f"{part.name}: {record.state}")
