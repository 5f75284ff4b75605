"""Our drafting columns against transformers' own assisted generation, on torch at fp32, greedy.

Both sides have the same target, draft and K, and both are timed by the wall from the first token's
arrival to the last one's. The draft is the built-in model with coarser weights: too large
to gain anything over plain decoding, but it errs as a draft does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from backend.bench.prompts import Prompt
from backend.errors import DerbyError
from backend.events import Event, Step
from backend.models.builtin import RECIPE, built_in_folder
from backend.models.prepared import prepared
from backend.racing.models import LoadedModels
from backend.racing.race import Race, run_race
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import Strategy, parse_column
from backend.types import ModelSpec, Request

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]
Answering = Callable[[str], "Answer"]

TARGET = ModelSpec(engine="torch", precision="fp32")

#: Settings of both sides: tokens copied after a match and the longest ending looked up; tokens
#: drafted a round.
LOOKUP_K, NGRAM, DRAFT_K = 6, 3, 5

#: Of the draft's matrices, so many weights share one range, which is cut into 2**BITS values.
GROUP, BITS = 64, 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer, as it arrived in blocks.

    passes, rows: the target's forward passes after the one that gave the first block, and the
    token rows they computed. seconds: wall time from the first block's arrival to the last one's.
    """

    tokens: tuple[int, ...]
    first_block: int
    passes: int
    rows: int
    seconds: float

    @property
    def later(self) -> int:
        """Tokens after the first block's."""
        return len(self.tokens) - self.first_block

    @property
    def tokens_per_forward(self) -> float:
        """As of `metrics.Score`: the prefill's pass and tokens are left out."""
        return self.later / self.passes

    @property
    def tpot(self) -> float:
        """Seconds per token after the first block."""
        return self.seconds / self.later


@dataclass(frozen=True, slots=True)
class Row:
    """One of our columns and its peer, `generate()` of transformers, over all prompts.

    per_forward, rows, tpot: medians of tokens and of rows a target forward pass, and of
    milliseconds a token; ours, then the peer's. forward_ratio, speed_ratio: per-prompt ratios,
    above 1 where we are ahead: median, lowest, highest. equal: prompts with the same token ids.
    What either side answered in one block counts in `prompts` and `equal` alone.
    """

    column: str
    k: int
    prompts: int
    per_forward: tuple[float, float]
    rows: tuple[float, float]
    tpot: tuple[float, float]
    forward_ratio: tuple[float, float, float]
    speed_ratio: tuple[float, float, float]
    equal: int


def generated(model: Any, ids: Sequence[int], count: int, options: Mapping[str, Any]) -> Answer:
    """What `model.generate()` writes after the token ids of a prompt, at most `count` tokens."""
    import torch

    prompt = torch.tensor([list(ids)])
    arrivals = _Arrivals()
    hook = model.register_forward_pre_hook(arrivals.count, with_kwargs=True)
    try:
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            streamer=arrivals,
            **options,
        )
    finally:
        hook.remove()
    return arrivals.answer(count)


class _Arrivals:
    """What `generate()` streams to, and what the target's forward hook tells.

    The prompt is streamed first, then each block as soon as it is verified.
    """

    def __init__(self) -> None:
        self._rows: list[int] = []  # of every pass of the target
        self._puts: list[tuple[list[int], float, int]] = []  # tokens, time, passes so far

    def count(self, _module: Any, _args: Any, kwargs: Mapping[str, Any]) -> None:
        self._rows.append(kwargs["input_ids"].shape[1])

    def put(self, value: Any) -> None:
        self._puts.append((value.flatten().tolist(), perf_counter(), len(self._rows)))

    def end(self) -> None: ...

    def answer(self, limit: int) -> Answer:
        """Tokens beyond `limit`, which prompt lookup may write, are no part of the answer."""
        blocks, times, passes = zip(*self._puts[1:], strict=True)
        tokens = tuple(chain.from_iterable(blocks))[:limit]
        rows, first = self._rows[passes[0] :], min(len(blocks[0]), limit)
        return Answer(tokens, first, len(rows), sum(rows), times[-1] - times[0])


def our_answer(
    prompt: str, column: Strategy, count: int, target: ModelSpec, engines: LoadedModels
) -> Answer:
    """What our column writes. Raises DerbyError if it fails."""
    board = Scoreboard((column,))
    steps: list[tuple[float, int]] = []

    def emit(event: Event) -> None:
        if isinstance(event, Step):
            steps.append((perf_counter(), event.rows))
        board.add(event)

    run_race(Race(Request(prompt, count), (column,), target), engines, emit, lambda: False)
    score = board.scores[0]
    if score.state != "done":
        raise DerbyError(f"{column.label} did not finish: {score.message}")
    times, rows = zip(*steps, strict=True)
    passes, spent = len(steps) - 1, times[-1] - times[0]
    return Answer(tuple(score.tokens), score.first_block, passes, sum(rows[1:]), spent)


def assisted_experiment(
    prompts: Sequence[Prompt], max_new_tokens: int, engines: LoadedModels, say: Say
) -> list[Row]:
    """Prompt lookup, then with ours free to verify fewer than K tokens, then a draft model."""
    from transformers import AutoModelForCausalLM

    # Ours comes first: it also sets the number of torch's threads, for both sides.
    encode = engines.get(TARGET, say).tokenizer.encode
    model = AutoModelForCausalLM.from_pretrained(built_in_folder(say), dtype="float32")
    draft = draft_folder(say)
    assistant = AutoModelForCausalLM.from_pretrained(draft, dtype="float32")

    def duel(name: str, column: Strategy, k: int, options: Mapping[str, Any]) -> Row:
        say(f"{name} against transformers")
        pairs = alternate(
            prompts,
            lambda text: our_answer(text, column, max_new_tokens, TARGET, engines),
            lambda text: generated(model, encode(text, chat=True), max_new_tokens, options),
            say,
        )
        return row(name, k, pairs)

    # With more than one branch a pass would verify more than K tokens.
    lookup = parse_column(f"lookup:k={LOOKUP_K},ngram={NGRAM},branches=1")
    looked_up = {"prompt_lookup_num_tokens": LOOKUP_K, "max_matching_ngram_size": NGRAM}
    speculative = parse_column(f"speculative:k={DRAFT_K}").with_settings({"draft": str(draft)})
    return [
        duel(lookup.title, lookup, LOOKUP_K, looked_up),
        duel(f"{lookup.title}, auto", lookup.with_settings({"auto": True}), LOOKUP_K, looked_up),
        duel(speculative.title, speculative, DRAFT_K, assisted_by(assistant, DRAFT_K)),
    ]


def assisted_by(draft: Any, k: int) -> dict[str, Any]:
    """`generate()`'s options for a draft of always `k` tokens, however unsure it is of them.

    The settings are written into the draft's own configuration, for that is where transformers
    looks: given to the target's `generate()` they are accepted and without effect.
    """
    draft.generation_config.num_assistant_tokens = k
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return {"assistant_model": draft}


def alternate(
    prompts: Sequence[Prompt], ours: Answering, theirs: Answering, say: Say
) -> list[tuple[Answer, Answer]]:
    """Both answers to every prompt, after one discarded warm-up; who begins alternates."""
    pairs: list[tuple[Answer, Answer]] = []
    for number, prompt in enumerate([prompts[0], *prompts]):
        say(f"prompt {number} of {len(prompts)}" if number else "warming up")
        before = theirs(prompt.text) if number % 2 else None
        own = ours(prompt.text)
        pairs.append((own, before or theirs(prompt.text)))
    return pairs[1:]


def row(column: str, k: int, pairs: Sequence[tuple[Answer, Answer]]) -> Row:
    """The figures of (ours, theirs) pairs. Raises DerbyError if all answers are too short."""
    measured = [pair for pair in pairs if all(side.later > 0 for side in pair)]
    if not measured:
        raise DerbyError(
            f"{column} answered no prompt in more than one block, and blocks of up to {k + 1} "
            "tokens leave nothing to measure: raise the number of new tokens."
        )

    def medians(figure: Callable[[Answer], float]) -> tuple[float, float]:
        return median(figure(ours) for ours, _ in measured), median(figure(p) for _, p in measured)

    return Row(
        column,
        k,
        len(pairs),
        medians(lambda answer: answer.tokens_per_forward),
        medians(lambda answer: answer.rows / answer.passes),
        medians(lambda answer: answer.tpot * 1e3),
        _spread([ours.tokens_per_forward / p.tokens_per_forward for ours, p in measured]),
        _spread([p.tpot / ours.tpot for ours, p in measured]),
        sum(ours.tokens == theirs.tokens for ours, theirs in pairs),
    )


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def assisted_table(rows: Sequence[Row], max_new_tokens: int) -> Table:
    """One row a duel; times in milliseconds."""
    table = Table(
        title=f"assisted: {TARGET}, {max_new_tokens} new tokens, greedy",
        caption="ours / transformers', medians; ratios above 1: ours is ahead",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("column")
    for name in ("K", "t/fwd", "x t/fwd", "rows/fwd", "TPOT", "x speed", "equal"):
        table.add_column(name, justify="right", no_wrap=True)
    both, ratio = "{:.2f} / {:.2f}".format, "{:.2f} ({:.2f}-{:.2f})".format
    for r in rows:
        each = both(*r.per_forward), ratio(*r.forward_ratio), both(*r.rows), both(*r.tpot)
        equal = f"{r.equal} of {r.prompts}"
        table.add_row(r.column, str(r.k), *each, ratio(*r.speed_ratio), equal)
    return table


def draft_folder(say: Say) -> Path:
    """The built-in model with every matrix of its layers rounded: a Hugging Face folder."""
    recipe = f"assisted draft v1: {BITS} bits in groups of {GROUP}, stored as bf16, of {RECIPE}"
    return prepared("assisted-draft", recipe, lambda folder: _build(folder, say))


def _build(folder: Path, say: Say) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = built_in_folder(say)
    say("Making a draft that errs, for the comparison with transformers...")
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.model.layers.parameters():
            if weights.dim() == 2:
                weights.copy_(rounded(weights))
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def rounded(weights: "torch.Tensor") -> "torch.Tensor":
    """Each weight of [O, I] as the nearest of 2**BITS values, evenly spaced from the least to the
    greatest of its GROUP neighbours along I, which GROUP must divide.
    """
    groups = weights.unflatten(1, (-1, GROUP))
    low = groups.amin(2, keepdim=True)
    step = (groups.amax(2, keepdim=True) - low) / (2**BITS - 1)
    codes = ((groups - low) / step.clamp_min(1e-12)).round()
    return (low + codes * step).flatten(1)
