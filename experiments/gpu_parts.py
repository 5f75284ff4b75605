"""The programme for a machine that has a CUDA device for a while: what is worth most comes first.

Each part yields its results one by one, and is given those of an earlier run, which it leaves out.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from backend.bench.prompts import Prompt
from backend.bench.verify import Case, verified_columns, verify
from backend.costs.measure import measure
from backend.errors import DerbyError, explain
from backend.models.files import model_files
from backend.racing.models import LoadedModels
from backend.results.metrics import Score
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
from experiments.gpu_results import DONE, RUNNING, Line, Record, read_record
from experiments.rotation import one_round, rounds
from experiments.runs import race_on, solo_runs

if TYPE_CHECKING:
    from backend.training.chats import Caps
    from backend.training.shards import Shard

log = logging.getLogger(__name__)

Say = Callable[[str], None]

#: Lookahead's settings that are measured, W, N and G.
LOOKAHEADS = ((5, 3, 5), (7, 4, 7), (15, 5, 15))


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. `prompts`, `tokens`, `temperatures`: of the equality; `widths` of
    passes, each `repeats` times; `precisions`; `answer`: tokens of an answer that is timed.
    `batch`: conversations that are synthesised together, cut at `cap` tokens (0: as usual).
    """

    prompts: int = 4
    tokens: int = 96
    temperatures: tuple[float, ...] = (0.0, 0.7)
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
    repeats: int = 9
    precisions: tuple[str, ...] = ("fp32", "bf16")
    answer: int = 128
    batch: int = 512
    cap: int = 0


FULL = Size()
SHORT = Size(1, 8, (0.0,), (1, 2, 8), 2, ("fp32",), 8, 4, 12)


@dataclass(frozen=True)
class Task:
    """What the programme measures, and where its results go. `minutes` are those of all parts."""

    target: ModelSpec
    prompts: tuple[Prompt, ...]
    folder: Path
    size: Size
    minutes: float
    say: Say
    models: LoadedModels = field(default_factory=LoadedModels)

    @property
    def conditions(self) -> dict[str, str]:
        """What results hold for: those of others are not gone on from."""
        import torch
        import transformers

        device = torch.cuda.get_device_name() if self.on_cuda else "CPU"
        model = self.target.name
        size = "short" if self.size == SHORT else f"{len(self.prompts)} questions"
        return {
            "device": device,
            "model": Path(model).name if "/" in model else model,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "size": size,
        }

    @property
    def on_cuda(self) -> bool:
        return self.target.device != "CPU"

    def spec(self, precision: str) -> ModelSpec:
        return replace(self.target, precision=precision)


@dataclass(frozen=True, slots=True)
class Part:
    """`share` of the programme's minutes; `lines(task, earlier, seconds)` measures what is not in
    the earlier lines. It should be over within the seconds; whatever it yields later is kept too.
    """

    name: str
    help: str
    share: float
    lines: Callable[[Task, Sequence[Line], float], Iterator[Line]]


def require_device(device: str) -> None:
    """Raise DerbyError unless the programme can run here."""
    if find_spec("torch") is None:
        raise DerbyError("This Python has no PyTorch: name one that has with make gpu BIN=FOLDER.")
    import torch

    if device != "CPU" and not torch.cuda.is_available():
        raise DerbyError(
            "PyTorch finds no CUDA device here: run this where there is one, or all of it in "
            "miniature with --device cpu --short."
        )


def run_part(part: Part, task: Task, seconds: float) -> Record:
    """Run a part for so long, keeping each result as it comes. What is there is not done again."""
    record = read_record(task.folder, part.name, task.conditions)
    if record.state == DONE:
        return record
    began, before = monotonic(), record.seconds
    record.state = RUNNING
    record.lines = [line for line in record.lines if "failed" not in line]
    try:
        for line in part.lines(task, tuple(record.lines), seconds):
            record.lines.append(line)
            record.seconds = before + monotonic() - began
            record.keep(task.folder)
            if monotonic() - began > seconds:
                record.state = "stopped by its time limit"
                break
        else:
            failed = any("failed" in line for line in record.lines)
            record.state = "done but for what failed" if failed else DONE
    except Exception as error:
        log.warning("the part %s failed", part.name, exc_info=True)
        record.state = f"failed: {explain(error)}"
    record.seconds = before + monotonic() - began
    record.keep(task.folder)
    return record


def known(earlier: Sequence[Line]) -> set[str]:
    """What earlier lines are of."""
    return {line["of"] for line in earlier}


def runnable(columns: Sequence[Column], task: Task, head: Path | None = None) -> "Runnable":
    """Of the columns, those for which everything is here."""
    from backend.heads.file import head_for

    kept: list[Column] = []
    missing: list[str] = []
    trained = head or head_for(task.target)
    for column in columns:
        settings = column.settings()
        draft = str(settings.get("draft", ""))
        if column.strategy.name == "grammar" and find_spec("llguidance") is None:
            missing.append(f"{column.label} (llguidance is not installed)")
        elif draft in ("trained", "hybrid") and trained is None:
            missing.append(f"{column.label} (no draft was trained for this model)")
        elif draft in ("int4", "int8") and (find_spec("openvino") is None or task.size == SHORT):
            missing.append(f"{column.label} (its draft runs on OpenVINO)")
        else:
            kept.append(column)
    return Runnable(tuple(kept), "; ".join(missing))


@dataclass(frozen=True, slots=True)
class Runnable:
    """Columns that can run, and what was left out and why."""

    columns: tuple[Column, ...]
    left_out: str

    def lines(self, earlier: Sequence[Line]) -> Iterator[Line]:
        """What is left out, once."""
        if self.left_out and "left out" not in known(earlier):
            yield {"of": "left out", "left out": self.left_out}


def equality(task: Task, earlier: Sequence[Line], _seconds: float) -> Iterator[Line]:
    """Every lossless column writes what KV reuse writes, at fp32."""
    chosen, done = runnable(verified_columns(), task), known(earlier)
    yield from chosen.lines(earlier)
    size = task.size
    for prompt, heat in product(task.prompts[: size.prompts], size.temperatures):
        name = f"{prompt.category} at T={heat}: {prompt.text[:40]}"
        if name in done:
            continue
        case = Case(task.spec("fp32"), prompt, heat, 0)
        (result,) = verify((case,), task.models, size.tokens, chosen.columns)
        yield {
            "of": name,
            "equal": result.equal,
            "tokens": result.tokens,
            "columns": [column.label for column in chosen.columns],
            "unequal": {column: said for column, said in result.verdicts if said != "equal"},
        }


def passes(task: Task, earlier: Sequence[Line], _seconds: float) -> Iterator[Line]:
    """T(k): what a pass over k rows takes, all of whose logits are fetched."""
    for precision in task.size.precisions:
        if precision in known(earlier):
            continue
        engine = task.models.get(task.spec(precision), task.say)
        costs = measure(engine, task.size.widths, task.size.repeats)
        ms = {str(k): s * 1e3 for k, s in zip(costs.widths, costs.seconds, strict=True)}
        yield {"of": precision, "ms": ms, "context": costs.context_slope}


def plain(task: Task, earlier: Sequence[Line], _seconds: float) -> Iterator[Line]:
    """KV reuse against loops that are not ours, greedily, on the same weights."""
    peers = {"a plain loop": _plain_loop, "generate(), static, compiled": _compiled}
    done = known(earlier)
    for (name, peer), precision in product(peers.items(), task.size.precisions):
        if (of := f"{name}, {precision}") in done:
            continue
        try:
            yield {"of": of, **_against(peer, task, task.spec(precision))}
        except Exception as error:
            log.warning("%s failed", of, exc_info=True)
            yield {"of": of, "failed": explain(error)}


def _against(
    peer: Callable[[Task, ModelSpec, int], Answering], task: Task, spec: ModelSpec
) -> dict[str, Any]:
    """The figures of KV reuse and a peer on the first prompts, who begins alternating."""
    count, column = task.size.answer, parse_column(BASELINE)
    prompts = [prompt.text for prompt in task.prompts[: task.size.prompts]]
    longest = max(len(encoded(task, spec, text)) for text in prompts) + count
    theirs = peer(task, spec, longest)

    def ours(text: str) -> Answer:
        return our_answer(text, column, count, spec, task.models)

    pairs = [(a, b) for a, b in rounds((ours, theirs), prompts, lambda _: None, warm_up=2)]
    return asdict(peer_result("the peer", pairs))


def encoded(task: Task, spec: ModelSpec, text: str) -> list[int]:
    return task.models.get(spec, task.say).tokenizer.encode(text, chat=True)


def _plain_loop(task: Task, spec: ModelSpec, longest: int) -> Answering:
    """Graphs that feed their own choice back. It does not see an end, so what is behind one is cut;
    a token took what all did on average.
    """
    from backend.engines.torch.engine import TorchEngine
    from backend.engines.torch.plain_loop import PlainLoop

    engine = task.models.get(spec, task.say)
    assert isinstance(engine, TorchEngine)
    loop, count = PlainLoop(engine.fixed_widths(), longest), task.size.answer
    ends = engine.tokenizer.eos_ids

    def answer(text: str) -> Answer:
        tokens, seconds = loop.run(encoded(task, spec, text), count)
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), count)
        each = seconds / (count - 1)
        return Answer(tuple(Block((t,), i * each) for i, t in enumerate(tokens[:end])))

    return answer


def _compiled(task: Task, spec: ModelSpec, _longest: int) -> Answering:
    """With a static cache, transformers compiles by itself on CUDA."""
    from transformers import AutoModelForCausalLM

    folder = model_files(spec.name, task.say).folder
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[spec.precision])
    model.to(spec.device.lower()).eval()
    options = {"cache_implementation": "static"}

    def answer(text: str) -> Answer:
        return generated(model, encoded(task, spec, text), task.size.answer, options)

    return answer


def columns(task: Task, earlier: Sequence[Line], _seconds: float) -> Iterator[Line]:
    """The strategies on every question."""
    named = [
        "speculative",
        "speculative:draft=trained",
        "lookup",
        *(f"lookahead:window={w},level={n},guesses={g}" for w, n, g in LOOKAHEADS),
        "lookahead",
        "grammar",
    ]
    yield from _on_questions(task, runnable([parse_column(name) for name in named], task), earlier)


def _on_questions(
    task: Task, chosen: Runnable, earlier: Sequence[Line], folder: str = ""
) -> Iterator[Line]:
    """A line a question: each column alone, KV reuse first, whoever begins rotating. `folder` is
    left out of the columns' names: results are of no machine's folders.
    """
    yield from chosen.lines(earlier)
    everyone = (parse_column(BASELINE), *chosen.columns)
    sides, done, warm = solo_runs(len(everyone), task.models), known(earlier), False
    for number, prompt in enumerate(task.prompts):
        if (name := f"question {number + 1}") in done:
            continue
        task.say(f"{name} of {len(task.prompts)} ({prompt.category})")
        race = race_on(prompt, everyone, Request("-", task.size.answer), task.target)
        if not warm:
            one_round(sides, race, 0)
            warm = True
        base, *scores = one_round(sides, race, number)
        found = zip(chosen.columns, scores, strict=True)
        yield {
            "of": name,
            "category": prompt.category,
            "tpot ms": base.tpot * 1e3,
            "columns": {
                column.label.replace(folder, ""): _figures(column, score, base)
                for column, score in found
            },
        }


def _figures(column: Column, score: Score, base: Score) -> dict[str, Any]:
    return {
        "speedup": score.speedup_over(base),
        "tokens_per_forward": score.tokens_per_forward,
        "accepted": score.accepted,
        "drafted": score.drafted,
        "rest ms": score.parts["rest"] / max(score.steps, 1) * 1e3,
        "equal": score.tokens == base.tokens[: column.limit or len(base.tokens)],
        "lossless": column.lossless,
    }


#: Of training's time: until when conversations are synthesised, and how much is left for the
#: questions after the fit.
SYNTHESIS, QUESTIONS = 0.4, 0.15


def training(task: Task, earlier: Sequence[Line], seconds: float) -> Iterator[Line]:
    """A draft of as many tokens as the time allows, and what it is accepted for."""
    from backend.heads.file import read_head
    from backend.training.features import add_features
    from backend.training.synthesis import synthesise
    from backend.training.targets import open_target
    from backend.training.train import HEAD, Work, recipe_for, train

    began, folder = monotonic(), task.folder / "training"
    head = folder / HEAD
    if "fit" not in known(earlier):
        target = open_target(task.target.name, task.say)
        caps = _caps(task.size)
        shards = synthesise(folder, 1, target, task.say, caps)
        while len(shards) < 2 or monotonic() - began < SYNTHESIS * seconds:
            shards = synthesise(folder, answered(shards) + 1, target, task.say, caps)
        written = monotonic()
        for shard in shards:
            add_features(shard, target)
        total, spent = answered(shards), written - began
        said = f"{total} tokens of answers in {len(shards)} files, {spent:.0f} s; features "
        yield {"of": f"data of {total}", "said": f"{said}{monotonic() - written:.0f} s"}
        left = max((1 - QUESTIONS) * seconds - (monotonic() - began), QUESTIONS * seconds)
        work = Work(1, left, recipe_for(target), resume=head.exists())
        report = train(folder, work, target, task.say, caps)
        yield {"of": "fit", "said": json.dumps(report["right at each draft step"]), **report}
    read_head(head)  # whole, or a sentence
    named = parse_column("speculative")
    drafts = [
        named.with_settings({"draft": str(head)}),
        named.with_settings({"draft": str(head), "auto": False, "k": 4}),
    ]
    yield from _on_questions(task, runnable(drafts, task, head), earlier, f"{folder}/")


def answered(shards: Sequence["Shard"]) -> int:
    """Tokens of answers."""
    return sum(int(shard.answer_counts(1).sum()) for shard in shards)


def _caps(size: Size) -> "Caps":
    """Conversations as large as usual, or as small as `size` says."""
    from backend.training.chats import Caps

    if not size.cap:
        return Caps(batch=size.batch)
    return Caps(size.batch, size.cap, size.cap, 2 * size.cap, 40 * size.cap)


PARTS = (
    Part("equality", "every lossless column writes what KV reuse writes, at fp32", 0.15, equality),
    Part("passes", "T(k) to 128 rows", 0.05, passes),
    Part("plain", "KV reuse against a plain loop and against generate()", 0.15, plain),
    Part("columns", "the strategies on every question", 0.25, columns),
    Part("training", "a draft of as many tokens as the time allows, and its acceptance", 0.4,
         training),
)  # fmt: skip


def part_named(name: str) -> Part:
    """Raises DerbyError if there is none of that name."""
    found = {part.name: part for part in PARTS}
    if name not in found:
        raise DerbyError(f"There is no part {name!r:.40}; run one of {', '.join(found)}.")
    return found[name]
