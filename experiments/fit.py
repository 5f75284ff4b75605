"""Fits an EAGLE-3 draft to its target: the target's own distribution is the lesson at every token.

Each text is run at once, the target's states given; then, as in drafting, what the draft predicted
takes their place, `steps` times, so that it learns to go on from its own guesses (training-time
test, arXiv 2503.01840, section 3.2).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import cos, pi
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backend.engines.eagle3.checkpoint import INPUT, OUTPUT, tensor_of
from backend.engines.eagle3.network import Eagle3, Eagle3Shape
from experiments.shards import Shard, Text, groups

KeyValue = tuple[Tensor, Tensor]

#: Later draft steps count for less: they are reached less often.
FADE = 0.8


@dataclass(frozen=True, slots=True)
class Recipe:
    """`vocabulary`: how many of the answers' most frequent tokens can be drafted. `batch`: tokens a
    batch. `steps`: draft steps trained, by share of the training time passed.
    """

    vocabulary: int = 12288
    batch: int = 1400
    rate: float = 1e-3
    steps: tuple[int, ...] = (1, 1, 2, 2, 3, 3)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Teacher:
    """Of the target: `output` [V', D], bf16, is its output projection of the tokens that can be
    drafted; `scale` [3 D] are the root mean squares of the states that a draft reads. A few of them
    are a hundred times as large as others, so while it is fitted a draft reads states divided by
    their scale.
    """

    output: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of one draft step: its loss, how often the draft's choice was the target's, and of how many
    tokens.
    """

    loss: Tensor
    hit: float
    tokens: int


def shape_of(config: dict[str, Any], vocabulary: int) -> Eagle3Shape:
    """The draft that suits a Llama-shaped target with this config.json."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = config.get("rope_parameters") or {}
    return Eagle3Shape(
        hidden=hidden,
        states=3 * hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        vocabulary=vocabulary,
        eps=config["rms_norm_eps"],
        theta=config.get("rope_theta") or rope["rope_theta"],
    )


def new_draft(folder: Path, tokens: NDArray[np.int64], scale: Tensor, seed: int) -> Eagle3:
    """A draft cut out of the target in `folder`: its last layer, behind the last of the states that
    a draft reads, and its output projection of the tokens [V'] that can be drafted. `scale` [3 D]:
    see Teacher.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    table, output = tensor_of(folder, INPUT).float(), tensor_of(folder, OUTPUT, INPUT)
    torch.manual_seed(seed)
    draft = Eagle3(shape_of(config, len(tokens)), table)
    theirs, size = f"model.layers.{config['num_hidden_layers'] - 1}.", draft.shape.hidden
    with torch.no_grad():
        for name, parameter in draft.midlayer.named_parameters():
            if name == "input_layernorm.weight":  # which reads the token's embedding
                weight = tensor_of(folder, f"model.layers.0.{name}")
            else:
                weight = tensor_of(folder, theirs + name.replace("hidden_norm", "input_layernorm"))
            # A matrix that reads two vectors keeps its random half for the embedding.
            parameter[..., -weight.shape[-1] :] = weight
        draft.fc.weight[:, -size:] += scale[-size:].diag()
        draft.norm.weight.copy_(tensor_of(folder, "model.norm.weight"))
        draft.lm_head.weight.copy_(output[torch.from_numpy(tokens)])
    return draft


def scale_of(shard: Shard, size: int) -> Tensor:
    """The root mean squares [size] of the first states of a shard, float32."""
    bits = torch.from_numpy(np.array(np.load(shard.features_path, mmap_mode="r")[::8, :size]))
    return bits.view(torch.bfloat16).float().pow(2).mean(0).sqrt().clamp_min(1e-6)


def frequent_tokens(shards: Sequence[Shard], count: int, vocab_size: int) -> NDArray[np.int64]:
    """The ids that answers hold most often, ascending."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for shard in shards:
        counts += shard.answer_counts(vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def lessons(
    draft: Eagle3, teacher: Teacher, batch: Sequence[Text], steps: int, *, answers: bool = False
) -> list[Lesson]:
    """Run a batch of texts through `steps` draft steps; losses keep their graph. Every token is a
    lesson, for it is the target's distribution that is learnt; `answers`: theirs alone.
    """
    output = teacher.output
    tokens, places, bits = (x.to(output.device) for x in _padded(batch, answers=answers))
    states, last = bits.view(torch.bfloat16).split([draft.shape.states, draft.shape.hidden], -1)
    n = tokens.shape[1] - 2
    after, positions = tokens[:, 1 : n + 1], torch.arange(1, n + 1, device=output.device)
    truth = last[:, 1 : n + 1]  # of the token that a place reads: the lesson is what comes next
    first = hidden = draft.fc(states[:, :n] / teacher.scale)
    earlier: list[KeyValue] = []
    by_step: list[Lesson] = []
    for step in range(steps):
        bias = _visible(n, step, output.device)
        predicted, earlier = draft_step(draft, hidden, after, positions, earlier, bias)
        judged = places[:, 2 : n + 2].clone()
        judged[:, :step] = False
        with torch.no_grad():
            lesson = (truth[judged] @ output.mT).float().softmax(-1)
        by_step.append(_judge(draft.logits(predicted[judged]), lesson))
        hidden = torch.cat([first[:, :1].to(predicted), predicted[:, :-1]], 1)
    return by_step


def draft_step(
    draft: Eagle3,
    hidden: Tensor,
    tokens: Tensor,
    positions: Tensor,
    earlier: Sequence[KeyValue],
    bias: Tensor,
) -> tuple[Tensor, list[KeyValue]]:
    """Step s of drafting from every place of whole texts at once, as training needs it.

    A query at place i sees what drafting from place i - s would: keys of step 0 up to there
    (`bias` [n, n] says which), and one key of each later step, its own included. `earlier`
    holds the keys and values of steps 0..s-1. `hidden` is [B, n, D], tokens [B, n].
    Gives what the layer predicts, [B, n, D], and `earlier` with this step added.
    """
    layer, (x, read) = draft.midlayer, draft.entered(hidden, draft.embed(tokens))
    q, k, v = layer.project(read, positions)
    steps = [*earlier, (k, v)]
    return layer.finish(x, _attend(draft.shape, q, steps, bias)), steps


def _attend(shape: Eagle3Shape, q: Tensor, steps: list[KeyValue], bias: Tensor) -> Tensor:
    """[B, n, heads, d] of queries alike, keys and values [B, n, kv_heads, d] of each step."""
    n, scale = q.shape[1], shape.scale
    # Query heads that share keys stand together: [B, n, kv_heads, group, d].
    q = q.unflatten(2, (shape.kv_heads, -1))
    first_k, first_v = steps[0]
    scores = torch.einsum("bihgd,bjhd->bhgij", q, first_k).float() * scale + bias
    later = [
        (_delayed(k, delay)[:, :, :, None], _delayed(v, delay)[:, :, :, None])
        for delay, (k, v) in zip(range(len(steps) - 2, -1, -1), steps[1:], strict=True)
    ]
    own = [((q * k).sum(-1).float() * scale).permute(0, 2, 3, 1)[..., None] for k, _ in later]
    weights = torch.softmax(torch.cat([scores, *own], -1), -1).to(first_v.dtype)
    attended = torch.einsum("bhgij,bjhd->bihgd", weights[..., :n], first_v)
    for index, (_, v) in enumerate(later):
        attended = attended + weights[..., n + index].permute(0, 3, 1, 2)[..., None] * v
    return attended.flatten(2, 3)


def _delayed(x: Tensor, delay: int) -> Tensor:
    """Put `delay` places of zeros in front of x [B, n, ...] and cut as many off behind."""
    if delay == 0:
        return x
    return torch.cat([torch.zeros_like(x[:, :delay]), x[:, :-delay]], 1)


def _judge(logits: Tensor, lesson: Tensor) -> Lesson:
    """Compare logits and the target's distribution, both [m, V']."""
    entropy = -(lesson * logits.log_softmax(-1)).sum(-1).mean()
    hit = (logits.detach().argmax(-1) == lesson.argmax(-1)).float().mean()
    return Lesson(entropy, float(hit), len(lesson))


def _padded(batch: Sequence[Text], *, answers: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 [B, n], which of them are text or, of `answers`, theirs, and states as bf16 bits
    [B, n, 4 D].
    """
    n = max(len(text.tokens) for text in batch)
    tokens = np.zeros((len(batch), n), dtype=np.int64)
    places = np.zeros((len(batch), n), dtype=bool)
    bits = np.zeros((len(batch), n, batch[0].features.shape[1]), dtype=np.uint16)
    for row, text in enumerate(batch):
        length = len(text.tokens)
        tokens[row, :length] = text.tokens
        places[row, :length] = text.answers if answers else True
        bits[row, :length] = text.features
    return torch.from_numpy(tokens), torch.from_numpy(places), torch.from_numpy(bits)


def _visible(n: int, step: int, device: torch.device) -> Tensor:
    """The bias [n, n] of draft step `step` over the keys of step 0."""
    return torch.full((n, n), -1e9, device=device).triu(1 - step)


def batches(
    shards: Sequence[Shard], recipe: Recipe, rng: np.random.Generator
) -> Iterator[list[Text]]:
    """Every text once: a few shards shuffled together, texts of like length side by side."""
    order = rng.permutation(len(shards))
    for at in range(0, len(order), 4):
        texts = [text for index in order[at : at + 4] for text in shards[index].texts()]
        texts = [text for text in texts if len(text.tokens) > 8 and text.answers[2:].any()]
        texts.sort(key=lambda text: len(text.tokens) + rng.integers(40))
        batched = groups(texts, lambda text: len(text.tokens), recipe.batch)
        rng.shuffle(batched)  # type: ignore[arg-type]
        yield from batched


def fit(
    draft: Eagle3, teacher: Teacher, shards: Sequence[Shard], recipe: Recipe, seconds: float
) -> Iterator[str]:
    """Train `draft` in place for so long; tells how it stands every minute and at the end."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    optimizer = torch.optim.AdamW(
        draft.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    began = reported = monotonic()
    done = seen = 0
    hits: list[float] = []
    while True:
        for batch in batches(shards, recipe, rng):
            passed = min(1, (monotonic() - began) / seconds)
            if passed == 1 or monotonic() - reported > 60:
                reported = monotonic()
                rates = " ".join(f"{hit:.3f}" for hit in hits)
                yield f"{passed:.0%}: {seen} tokens, right at each step {rates}"
            if passed == 1:
                return
            rate = recipe.rate * min(1, (done + 1) / 60) * (0.02 + 0.49 * (1 + cos(pi * passed)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(teacher.output.device.type, torch.bfloat16):
                steps = recipe.steps[int(passed * len(recipe.steps))]
                by_step = lessons(draft, teacher, batch, steps)
            torch.stack(
                [FADE**step * each.loss for step, each in enumerate(by_step)]
            ).sum().backward()
            nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            latest = [lesson.hit for lesson in by_step]
            hits = [0.98 * a + 0.02 * b for a, b in zip(hits, latest, strict=False)] or latest
            hits += latest[len(hits) :]
            done, seen = done + 1, seen + sum(len(text.tokens) for text in batch)


@torch.no_grad()
def evaluate(
    draft: Eagle3,
    teacher: Teacher,
    shards: Sequence[Shard],
    recipe: Recipe,
    steps: int,
    most: int | None = None,
) -> list[float]:
    """How often the draft's choice is the target's, by draft step, in the first `most` batches."""
    hits, counts = np.zeros(steps), 0
    for batch in islice(batches(shards, recipe, np.random.default_rng(0)), most):
        with torch.autocast(teacher.output.device.type, torch.bfloat16):
            by_step = lessons(draft, teacher, batch, steps, answers=True)
        hits += [lesson.hit * by_step[0].tokens for lesson in by_step]
        counts += by_step[0].tokens
    return (hits / max(counts, 1)).tolist()
