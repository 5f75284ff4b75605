"""python -m experiments gpu: what a CUDA device can show, by the program's own commands.

Each part is one command in a process of its own, so that one which crashes or hangs leaves the
others; what it prints is a file in a folder of the device's name. A part that ended well is not run
again, and the benchmark goes on from its rows.
"""

import re
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from backend.cli.console import out, say
from backend.cli.options import Model
from backend.errors import DerbyError, check_range

#: Each part's share of the time, and its command; {rows} stands for a file of its own, {on} for
#: model, engine and device, {prompts} for the prompts' option.
PARTS = {
    "equality": (
        0.3,
        "backend verify --prompts 4 --engine torch --model {model} --device {device}",
    ),
    "passes": (0.1, "backend tune --limit 1 {on} --precision fp32"),
    "columns-fp32": (
        0.3,
        "backend bench {on} --precision fp32 {columns} --results {rows} {prompts}",
    ),
    "columns-bf16": (
        0.3,
        "backend bench {on} --precision bf16 {columns} --results {rows} {prompts}",
    ),
}

COLUMNS = (
    "transformers",
    "speculative",
    "speculative:draft=trained",
    "lookup",
    "lookahead:window=5,level=3,guesses=5",
    "lookahead:window=7,level=4,guesses=7",
    "lookahead:window=15,level=5,guesses=15",
    "lookahead",
    "grammar",
)

#: The last line of the file of a part that ended well.
DONE = "# done"

#: The least seconds that a part is given, however late it is.
LEAST = 30


def gpu(
    folder: Annotated[Path, typer.Option(help="Where results go.")] = Path("build/gpu"),
    minutes: Annotated[float, typer.Option(help="For all parts together.")] = 40.0,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines with category and turns; default: our own six.")
    ] = None,
    model: Model = "built-in",
    device: Annotated[str, typer.Option(help="CUDA, CUDA:1, ... or CPU.")] = "CUDA",
) -> None:
    """Measure what a CUDA device can show; what is done is not done again."""
    check_range("minutes", minutes, 0.1, 60 * 24)
    place = folder / re.sub(r"\W+", "-", device_name(device)).lower()
    place.mkdir(parents=True, exist_ok=True)
    began, parts = monotonic(), list(PARTS)
    for number, part in enumerate(parts):
        remaining = 60 * minutes - (monotonic() - began)
        share = PARTS[part][0] / sum(PARTS[later][0] for later in parts[number:])
        end = run_part(part, place, model, device, prompts, max(LEAST, remaining * share))
        out.print(f"{part}: {end}", highlight=False, markup=False)


def device_name(device: str) -> str:
    """What the device is called. Raises DerbyError if there is none."""
    import torch

    if device == "CPU":
        return "CPU"
    if not torch.cuda.is_available():
        raise DerbyError("PyTorch finds no CUDA device here: run this where there is one.")
    return torch.cuda.get_device_name(device.lower())


def run_part(
    part: str, place: Path, model: str, device: str, prompts: Path | None, seconds: float
) -> str:
    """Run a part for so long, keeping what it prints; how it ended."""
    file = place / f"{part}.txt"
    if file.exists() and file.read_text(encoding="utf-8").endswith(f"{DONE}\n"):
        return "done already"
    values = {
        "model": [model],
        "device": [device],
        "on": ["--model", model, "--engine", "torch", "--device", device],
        "prompts": ["--prompts", str(prompts)] if prompts else [],
        "columns": [word for column in COLUMNS for word in ("-c", column)],
        "rows": [str(file.with_suffix(".jsonl"))],
    }
    words = PARTS[part][1].split()
    command = [w for word in words for w in values.get(word.strip("{}"), [word])]
    say(f"{part}: {seconds / 60:.1f} minutes at most")
    with file.open("w", encoding="utf-8") as printed:
        try:
            ended = subprocess.run(
                [sys.executable, "-m", *command], stdout=printed, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return "stopped by its time limit"
        if ended.returncode:
            return f"ended with code {ended.returncode}"
        printed.write(f"{DONE}\n")
    return "done"
