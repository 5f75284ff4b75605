"""python -m experiments gpu: all that a CUDA device can show, what is worth most first.

Each part runs in a process of its own, which may crash or hang alone, and has a file of JSON Lines:
each result as soon as it is there. A line says of what it is ("of": a digest of what it holds for)
and which one ("job"). Whatever is there is not measured again.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import count, product
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt, read_prompts
from backend.bench.rows import Row, rows_in
from backend.bench.runner import raced, run
from backend.bench.summary import measured, results
from backend.bench.tables import results_table
from backend.bench.verify import Case, verified_columns, verify
from backend.cli.console import out, say
from backend.cli.options import Model
from backend.costs.measure import measure
from backend.errors import DerbyError, check_range, explain
from backend.models.files import model_files
from backend.racing.models import LoadedModels
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import BASELINE
from backend.types import ModelSpec, Request
from experiments.baselines import (
    DTYPES,
    Answer,
    Answering,
    Block,
    generated,
    our_answer,
    peer_result,
)
from experiments.runs import rounds

if TYPE_CHECKING:
    from backend.training.chats import Caps

log = logging.getLogger(__name__)

Line = dict[str, Any]

#: The job of a line that says how a part's run ended, and how if it was not cut short.
END, DONE = "end", "done"

#: Seconds beyond a part's time after which its process is ended: it may just be in a long answer.
PATIENCE = 90

#: The least that a part is given, however late it is.
LEAST = 30

#: Lookahead's settings that are measured, W, N and G.
LOOKAHEADS = ((5, 3, 5), (7, 4, 7), (15, 5, 15))

#: Of training's time: until when conversations are synthesised, and how much is left for the
#: questions after the fit.
SYNTHESIS, QUESTIONS = 0.4, 0.15


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. `prompts`, `tokens`, `temperatures`: of the equality; `widths` of
    passes, each `repeats` times; `precisions`; `answer`: tokens of an answer that is timed.
    `batch`: conversations that each of `writers` processes synthesises together, cut at `cap`
    tokens (0: as usual).
    """

    prompts: int = 4
    tokens: int = 96
    temperatures: tuple[float, ...] = (0.0, 0.7)
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
    repeats: int = 9
    precisions: tuple[str, ...] = ("fp32", "bf16")
    answer: int = 128
    batch: int = 2048
    cap: int = 0
    writers: int = 4


FULL = Size()
SHORT = Size(1, 8, (0.0,), (1, 2, 8), 2, ("fp32",), 8, 4, 12, 1)


class Journal:
    """A file of JSON Lines. A line that was not written to its end counts for nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, partial_line = text.rpartition("\n")
        self._lines: list[Line] = [json.loads(line) for line in whole.split("\n") if line]
        if partial_line:
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def of(self, digest: str) -> dict[Any, Line]:
        """The last line of each job that holds for this."""
        return {line["job"]: line for line in self._lines if line["of"] == digest}

    @property
    def ends(self) -> int:
        """How often a run of the part ended."""
        return sum(line["job"] == END for line in self._lines)

    def add(self, line: Line) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Task:
    """What is measured, and where its results go."""

    target: ModelSpec
    prompts: tuple[Prompt, ...]
    folder: Path
    size: Size
    models: LoadedModels = field(default_factory=LoadedModels)

    @cached_property
    def conditions(self) -> dict[str, str]:
        """What results hold for: those of others are not gone on from."""
        import torch
        import transformers

        model = self.target.name
        return {
            "device": "CPU" if self.target.device == "CPU" else torch.cuda.get_device_name(),
            "model": Path(model).name if "/" in model else model,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "size": "short" if self.size == SHORT else f"{len(self.prompts)} questions",
        }

    @cached_property
    def digest(self) -> str:
        return sha256(repr(self.conditions).encode()).hexdigest()[:32]

    def journal(self, part: str) -> Journal:
        """The part's file, in a folder of what it holds for."""
        device = "".join(c if c.isalnum() else "-" for c in self.conditions["device"].lower())
        return Journal(self.folder / f"{device}-{self.digest[:8]}" / f"{part}.jsonl")

    def spec(self, precision: str) -> ModelSpec:
        return replace(self.target, precision=precision)

    def encoded(self, spec: ModelSpec, text: str) -> list[int]:
        return self.models.get(spec, say).tokenizer.encode(text, chat=True)

    def plan(self, columns: Sequence[Column], precision: str = "fp32") -> Plan:
        """Of the columns those that can run here, on every question."""
        request = Request("-", self.size.answer)
        spec = self.spec(precision)
        return Plan(self.prompts, tuple(runnable(columns, self)), request, (spec,))


@dataclass(frozen=True, slots=True)
class Part:
    """`share` of the minutes; `lines(task, journal, seconds)` measures what the journal lacks. It
    should be over within the seconds; whatever it yields later is kept too.
    """

    name: str
    help: str
    share: float
    lines: Callable[[Task, Journal, float], Iterator[Line]]
    tell: Callable[[Task, Journal], None]


def require_device(device: str) -> None:
    """Raise DerbyError unless everything can run here."""
    if find_spec("torch") is None:
        raise DerbyError("This Python has no PyTorch: name one that has with make gpu BIN=FOLDER.")
    import torch

    if device != "CPU" and not torch.cuda.is_available():
        raise DerbyError(
            "PyTorch finds no CUDA device here: run this where there is one, or all of it in "
            "miniature with --device cpu --short."
        )


def run_part(part: Part, task: Task, seconds: float) -> str:
    """Run a part for so long, keeping each result as it comes; how it ended."""
    journal = task.journal(part.name)
    if ended(journal, task) == DONE:
        return DONE
    began, state = monotonic(), DONE
    try:
        for line in part.lines(task, journal, seconds):
            journal.add(line)
            if "failed" in line:
                state = "done but for what failed"
            if monotonic() - began > seconds:
                state = "stopped by its time limit"
                break
    except Exception as error:
        log.warning("the part %s failed", part.name, exc_info=True)
        state = f"failed: {explain(error)}"
    journal.add({"of": task.digest, "job": END, "state": state, "seconds": monotonic() - began})
    return state


def ended(journal: Journal, task: Task) -> str:
    """How the part's last run ended; "": none has."""
    return journal.of(task.digest).get(END, {}).get("state", "")


def left(task: Task, journal: Journal, jobs: Sequence[str]) -> Iterator[str]:
    """The jobs without a line; those that failed are tried again."""
    known = {job for job, line in journal.of(task.digest).items() if "failed" not in line}
    return (job for job in jobs if job not in known)


def runnable(columns: Sequence[Column], task: Task) -> Iterator[Column]:
    """Of the columns, those for which everything is here; of the others is said what is missing."""
    from backend.engines.heads.file import head_for

    for column in columns:
        draft, missing = str(column.settings().get("draft", "")), ""
        if column.strategy.name == "grammar" and find_spec("llguidance") is None:
            missing = "llguidance is not installed"
        elif draft in ("trained", "hybrid") and head_for(task.target) is None:
            missing = "no draft was trained for this model"
        elif draft in ("int4", "int8") and (find_spec("openvino") is None or task.size == SHORT):
            missing = "its draft runs on OpenVINO"
        if missing:
            say(f"{column.label} is left out: {missing}.")
        else:
            yield column


def equality(task: Task, journal: Journal, _seconds: float) -> Iterator[Line]:
    """Every lossless column writes what KV reuse writes, at fp32."""
    columns, size = tuple(runnable(verified_columns(), task)), task.size
    cases = {
        f"{prompt.category} at T={heat}: {prompt.text[:40]}": Case(task.target, prompt, heat, 0)
        for prompt, heat in product(task.prompts[: size.prompts], size.temperatures)
    }
    for job in left(task, journal, [*cases]):
        (result,) = verify((cases[job],), task.models, size.tokens, columns)
        unequal = {column: verdict for column, verdict in result.verdicts if verdict != "equal"}
        yield {"of": task.digest, "job": job, "columns": len(columns), "unequal": unequal}


def tell_equality(task: Task, journal: Journal) -> None:
    cases = [line for line in journal.of(task.digest).values() if "unequal" in line]
    equal = sum(not line["unequal"] for line in cases)
    out.print(f"{equal} of {len(cases)} cases equal in every column", highlight=False)
    for line in cases:
        for column, verdict in line["unequal"].items():
            out.print(f"    {line['job']}: {column}: {verdict}", highlight=False, markup=False)


def passes(task: Task, journal: Journal, _seconds: float) -> Iterator[Line]:
    """T(k): what a pass over k rows takes, all of whose logits are fetched."""
    for precision in left(task, journal, task.size.precisions):
        engine = task.models.get(task.spec(precision), say)
        costs = measure(engine, task.size.widths, task.size.repeats)
        ms = {str(k): s * 1e3 for k, s in zip(costs.widths, costs.seconds, strict=True)}
        yield {"of": task.digest, "job": precision, "ms": ms, "context": costs.context_slope}


def tell_passes(task: Task, journal: Journal) -> None:
    for line in journal.of(task.digest).values():
        if "ms" in line:
            one = line["ms"]["1"]
            each = (f"{k}: {ms:.2f} ({ms / one:.2f})" for k, ms in line["ms"].items())
            out.print(f"{line['job']}, ms by rows (times one row): {', '.join(each)}")


def plain(task: Task, journal: Journal, _seconds: float) -> Iterator[Line]:
    """KV reuse against loops that are not ours, greedily, on the same weights."""
    peers = {"a plain loop": plain_loop, "generate(), static, compiled": compiled}
    pairs = {f"{name}, {p}": (peers[name], p) for name, p in product(peers, task.size.precisions)}
    for job in left(task, journal, [*pairs]):
        peer, precision = pairs[job]
        line = {"of": task.digest, "job": job}
        try:
            yield line | against(peer, job, task, task.spec(precision))
        except Exception as error:
            log.warning("%s failed", job, exc_info=True)
            yield line | {"failed": explain(error)}


def tell_plain(task: Task, journal: Journal) -> None:
    for line in journal.of(task.digest).values():
        if "failed" in line:
            out.print(f"{line['job']} failed: {line['failed']}", markup=False)
        elif "ratio" in line:
            low, high = line["spread"]
            out.print(
                f"KV reuse at {line['ratio']:.3f} ({low:.3f}-{high:.3f}) of the speed of "
                f"{line['job']}, {line['theirs']:.1f} tokens a second; the same text on "
                f"{line['equal']} of {line['prompts']} prompts",
                highlight=False,
            )


Peer = Callable[[Task, ModelSpec, int], Answering]


def against(peer: Peer, name: str, task: Task, spec: ModelSpec) -> Line:
    """The figures of KV reuse and a peer on the first prompts, who begins alternating."""
    count, column = task.size.answer, parse_column(BASELINE)
    prompts = [prompt.text for prompt in task.prompts[: task.size.prompts]]
    theirs = peer(task, spec, max(len(task.encoded(spec, text)) for text in prompts) + count)

    def ours(text: str) -> Answer:
        return our_answer(text, column, count, spec, task.models)

    pairs = [(a, b) for a, b in rounds((ours, theirs), prompts, lambda _: None, warm_up=2)]
    return asdict(peer_result(name, pairs))


def plain_loop(task: Task, spec: ModelSpec, longest: int) -> Answering:
    """Graphs that feed their own choice back. It does not see an end, so what is behind one is cut;
    a token took what all did on average.
    """
    from backend.engines.torch.engine import TorchEngine
    from experiments.plain_loop import PlainLoop

    engine = task.models.get(spec, say)
    assert isinstance(engine, TorchEngine)
    loop, count = PlainLoop(engine.fixed_widths(), longest), task.size.answer
    ends = engine.tokenizer.eos_ids

    def answer(text: str) -> Answer:
        tokens, seconds = loop.run(task.encoded(spec, text), count)
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), count)
        each = seconds / (count - 1)
        return Answer(tuple(Block((t,), i * each) for i, t in enumerate(tokens[:end])))

    return answer


def compiled(task: Task, spec: ModelSpec, _longest: int) -> Answering:
    """With a static cache, transformers compiles by itself on CUDA."""
    from transformers import AutoModelForCausalLM

    folder = model_files(spec.name, say).folder
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[spec.precision])
    model.to(spec.device.lower()).eval()
    options = {"cache_implementation": "static"}

    def answer(text: str) -> Answer:
        return generated(model, task.encoded(spec, text), task.size.answer, options)

    return answer


def raced_columns() -> list[Column]:
    named = (
        "speculative",
        "speculative:draft=trained",
        "lookup",
        *(f"lookahead:window={w},level={n},guesses={g}" for w, n, g in LOOKAHEADS),
        "lookahead",
        "grammar",
    )
    return [parse_column(name) for name in named]


def rows_of(plan: Plan, journal: Journal) -> list[Row]:
    return rows_in("\n".join(map(json.dumps, journal.of(plan.identity).values())), plan)


def on_questions(
    task: Task, journal: Journal, columns: Sequence[Column], precision: str = "fp32"
) -> Iterator[Line]:
    """A row of the benchmark a question."""
    plan = task.plan(columns, precision)
    race = partial(raced, models=task.models)
    return (row.model_dump() for row in run(plan, rows_of(plan, journal), race, say))


def tell_columns(
    task: Task, journal: Journal, columns: Sequence[Column], precision: str = "fp32"
) -> None:
    plan = task.plan(columns, precision)
    if found := results(measured(plan, rows_of(plan, journal))):
        folder = f"{head_of(task).parent}/"
        named = [replace(each, column=each.column.replace(folder, "")) for each in found]
        out.print(results_table(str(plan), named))


def trained_columns(task: Task) -> list[Column]:
    """Of the draft that the part `training` makes."""
    named = parse_column("speculative").with_settings({"draft": str(head_of(task))})
    return [named, named.with_settings({"auto": False, "k": 4})]


def head_of(task: Task) -> Path:
    from backend.training.train import HEAD

    return task.folder / "training" / HEAD


def training(task: Task, journal: Journal, seconds: float) -> Iterator[Line]:
    """A draft of as many tokens as the time allows, and what it is accepted for."""
    from backend.engines.heads.file import read_head
    from backend.training.synthesis import synthesise
    from backend.training.targets import open_target
    from backend.training.train import Work, recipe_for, train

    began, folder = monotonic(), head_of(task).parent
    if "fit" not in journal.of(task.digest):
        write_together(task, began + SYNTHESIS * seconds)
        target, caps = open_target(task.target.name, say), caps_of(task.size)

        def answered() -> int:
            return sum(int(shard.answer_counts(1).sum()) for shard in shards)

        shards = synthesise(folder, 1, target, say, caps)
        while len(shards) < 2:
            shards = synthesise(folder, answered() + 1, target, say, caps)
        for shard in shards:
            shard.add_features(target.features)
        spent = monotonic() - began
        yield {"of": task.digest, "job": f"data of {answered()}", "seconds": spent}
        left_over = max((1 - QUESTIONS) * seconds - spent, QUESTIONS * seconds)
        work = Work(1, left_over, recipe_for(target), resume=head_of(task).exists())
        yield {"of": task.digest, "job": "fit"} | train(folder, work, target, say, caps)
    read_head(head_of(task))  # whole, or a sentence
    yield from on_questions(task, journal, trained_columns(task))


def write_together(task: Task, until: float) -> None:
    """Let several processes write conversations until then: one alone leaves the GPU idle."""
    folder = head_of(task).parent
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(task.size.writers, get_context("spawn")) as pool:
        each = (task.target.name, folder, task.size)
        numbers = range(task.size.writers)
        for writer in [pool.submit(write_shards, *each, first, until) for first in numbers]:
            writer.result()


def write_shards(model: str, folder: Path, size: Size, first: int, until: float) -> None:
    """Write every shard of one's own, one in `size.writers`, until then. `until`: of monotonic(),
    which counts alike in all processes.
    """
    import torch

    from backend.training.synthesis import shard_at, write_shard
    from backend.training.targets import open_target

    torch.set_num_threads(1)  # the others need the processor, too
    target, caps = open_target(model, say), caps_of(size)
    for number in count(first, size.writers):
        if monotonic() > until:
            return
        if not (shard := shard_at(folder, number)).path.exists():
            began, tokens = monotonic(), write_shard(shard, number, target, caps, until)
            say(f"{shard.path.name}: {tokens} tokens, {tokens / (monotonic() - began):.0f}/s")
        shard.add_features(target.features)


def tell_training(task: Task, journal: Journal) -> None:
    for job, line in journal.of(task.digest).items():
        if job != END:
            said = line.get("right at each draft step", f"{line.get('seconds', 0):.0f} s")
            out.print(f"{job}: {said}", highlight=False)
    tell_columns(task, journal, trained_columns(task))


def caps_of(size: Size) -> "Caps":
    """Conversations as large as usual, or as small as `size` says."""
    from backend.training.chats import Caps

    if not size.cap:
        return Caps(batch=size.batch)
    return Caps(size.batch, size.cap, size.cap, 2 * size.cap, 40 * size.cap)


def columns_part(name: str, precision: str, share: float) -> Part:
    def lines(task: Task, journal: Journal, _seconds: float) -> Iterator[Line]:
        return on_questions(task, journal, raced_columns(), precision)

    def tell(task: Task, journal: Journal) -> None:
        tell_columns(task, journal, raced_columns(), precision)

    return Part(name, f"the strategies on every question in {precision}", share, lines, tell)


PARTS = {
    part.name: part
    for part in (
        Part(
            "equality",
            "every lossless column writes what KV reuse writes, at fp32",
            0.15,
            equality,
            tell_equality,
        ),
        Part("passes", "T(k) to 128 rows", 0.05, passes, tell_passes),
        Part("plain", "KV reuse against a plain loop and generate()", 0.15, plain, tell_plain),
        columns_part("columns", "fp32", 0.15),
        columns_part("columns-bf16", "bf16", 0.1),
        Part(
            "training",
            "a draft of as many tokens as the time allows, and its acceptance",
            0.4,
            training,
            tell_training,
        ),
    )
}


def gpu(
    folder: Annotated[
        Path, typer.Option(help="Results, a file a part; what is done is not done again.")
    ] = Path("build/gpu"),
    minutes: Annotated[float, typer.Option(help="For all parts together.")] = 40.0,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with category and turns; default: six of our own."),
    ] = None,
    model: Model = "built-in",
    device: Annotated[str, typer.Option(help="CUDA, CUDA:1, ... or CPU.")] = "CUDA",
    only: Annotated[
        str, typer.Option(help=f"Run one part, in this process: {', '.join(PARTS)}.")
    ] = "",
    *,
    short: Annotated[bool, typer.Option("--short", help="All of it in miniature.")] = False,
) -> None:
    check_range("minutes", minutes, 0.1, 60 * 24)
    require_device(device.upper())
    if only and only not in PARTS:
        raise DerbyError(f"There is no part {only!r:.40}; run one of {', '.join(PARTS)}.")
    task = Task(
        ModelSpec(model, "torch", "fp32", device.upper()),
        read_prompts(prompts) if prompts else PROMPTS,
        folder,
        SHORT if short else FULL,
    )
    if only:
        raise typer.Exit(0 if run_part(PARTS[only], task, 60 * minutes) == DONE else 1)
    run_all(task, prompts, 60 * minutes)
    out.print(", ".join(f"{name} {value}" for name, value in task.conditions.items()))
    for part in PARTS.values():
        journal = task.journal(part.name)
        out.print(f"\n{part.name}: {ended(journal, task)}", style="bold", markup=False)
        part.tell(task, journal)


def run_all(task: Task, prompts: Path | None, seconds: float) -> None:
    """Run every part that is not done; none keeps the next ones from running."""
    began, parts = monotonic(), list(PARTS.values())
    for place, part in enumerate(parts):
        if ended(task.journal(part.name), task) == DONE:
            say(f"{part.name} is done already")
            continue
        # What earlier parts left over is shared among those that are left.
        share = part.share / sum(later.share for later in parts[place:])
        given = max(LEAST, (seconds - (monotonic() - began)) * share)
        say(f"{part.name}: {part.help}, {given / 60:.1f} minutes at most")
        run_alone(part, task, prompts, given)


def run_alone(part: Part, task: Task, prompts: Path | None, seconds: float) -> None:
    """Run a part in a process, which is ended when its time is over; how it ended is recorded."""
    command = [sys.executable, "-m", "experiments", "gpu", "--only", part.name]
    command += ["--folder", str(task.folder), "--minutes", str(seconds / 60)]
    command += ["--model", task.target.name, "--device", task.target.device]
    command += [*(["--prompts", str(prompts)] if prompts else [])]
    command += [*(["--short"] if task.size == SHORT else [])]
    before = task.journal(part.name).ends
    try:
        # Our own program, and arguments that no shell reads.
        run = subprocess.run(command, timeout=seconds + PATIENCE, check=False)
        state = f"ended by itself with code {run.returncode}"
    except subprocess.TimeoutExpired:
        state = f"was ended {PATIENCE} s after its time"
    journal = task.journal(part.name)
    if journal.ends == before:
        journal.add({"of": task.digest, "job": END, "state": state})
    if (state := ended(journal, task)) != DONE:
        say(f"{part.name}: {state}")
