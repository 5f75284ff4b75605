"""python -m experiments first_token: what a large model waits for before its first token."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.models.builtin import built_in_folder
from backend.models.files import Say
from backend.models.prepared import CACHE, cache_dir, prepared
from experiments.experiment import Experiment, Setup

#: A Llama of 1.17 B parameters, in bfloat16 2.3 GB, with the built-in model's tokenizer.
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
NAME, RECIPE = "random-1.17b", "random Llama v1"

#: What a start knows of those before it, and the folders of the cache that are therefore removed.
STARTS = {
    "converts": ("openvino-*", "costs", "compiled"),
    "first": ("costs", "compiled"),
    "later": (),
}

#: What is done, by the first word of the sentence that says so; all else is loading.
PHASES = {"Converting": "converting", "Compressing": "converting", "Measuring": "measuring"}

#: Seconds between two looks at the memory.
LOOK = 0.2


@dataclass(frozen=True, slots=True)
class StartResult:
    """Seconds from the start of the command to the first token, and to what; `processor` is the
    time that the command used of all cores, and `memory` the most that it held, in GB, mapped files
    included. `start`: see STARTS.
    """

    start: str
    first_token: float
    starting: float
    converting: float
    loading: float
    measuring: float
    reading: float
    processor: float
    memory: float


def first_token(setup: Setup) -> list[StartResult]:
    """A race of the columns on SHAPE in a process of its own, once for each of STARTS that the
    engine has.
    """
    converts = engine_named(setup.target.engine).peak_bytes is not None
    model = prepared(NAME, RECIPE, lambda folder: _make(folder, setup.say), setup.say)
    cache = cache_dir() / "first-token"
    found: list[StartResult] = []
    for start, unknown in list(STARTS.items())[not converts :]:
        for path in [path for name in unknown for path in cache.glob(name)]:
            path.unlink() if path.is_file() else shutil.rmtree(path)
        setup.say(f"start: {start}")
        found.append(_started(start, _command(setup, model), cache, setup.say))
    return found


def _make(folder: Path, say: Say) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    say("Making a model of 1.17 B random parameters...")
    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", **SHAPE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(built_in_folder(say) / name, folder)


def _command(setup: Setup, model: Path) -> list[str]:
    target = setup.target
    words = [sys.executable, "-m", "backend", "race", "Why is the sky blue?", "--raw", "--json"]
    words += ["--model", str(model), "--engine", target.engine, "--device", target.device]
    words += ["--precision", target.precision, "--max-new-tokens", "4"]
    return [*words, *(word for column in setup.columns for word in ("-c", str(column)))]


def _started(start: str, command: Sequence[str], cache: Path, say: Say) -> StartResult:
    """Run the command up to its first token."""
    began = monotonic()
    # Every word of the command is ours.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {CACHE: str(cache)}
    )
    assert process.stdout
    with _watched(process.pid) as most:
        spent, total = _phases(process.stdout, began, say)
        used = sum(psutil.Process(process.pid).cpu_times()[:2])
    process.send_signal(signal.SIGINT)
    process.wait()
    return StartResult(
        start=start,
        first_token=total,
        starting=spent["starting"],
        converting=spent["converting"],
        loading=spent["loading"],
        measuring=spent["measuring"],
        reading=spent["reading"],
        processor=used,
        memory=most[0] / 1e9,
    )


def _phases(lines: Iterator[str], began: float, say: Say) -> tuple[dict[str, float], float]:
    """Seconds of each phase up to the first step, and of all. Raises DerbyError without one."""
    spent, phase, since = defaultdict[str, float](float), "starting", began
    for line in lines:
        event, now = json.loads(line), monotonic()
        spent[phase] += now - since
        since = now
        match event["kind"]:
            case "Preparing":
                say(event["text"])
                phase = PHASES.get(event["text"].partition(" ")[0], "loading")
            case "Started":
                phase = "reading"
            case "Step":
                return spent, now - began
            case "Failed":
                raise DerbyError(event["message"])
    raise DerbyError("The race ended before its first token: its sentence is above.")


@contextmanager
def _watched(pid: int) -> Iterator[list[int]]:
    """The most bytes that a process holds meanwhile."""
    most, over = [0], threading.Event()

    def look() -> None:
        process = psutil.Process(pid)
        while not over.wait(LOOK):
            most[0] = max(most[0], process.memory_info().rss)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield most
    finally:
        over.set()
        looking.join()


FIRST_TOKEN = Experiment(
    "first_token", "What a large model of one's own waits for before its first token.", first_token
)
