"""Fits a head to its target: the target's own distribution is the lesson at every token.

The head starts as a few of the target's layers. Each text is run at once, teacher and features
given; then, as in drafting, the head's own predictions take the features' place, `steps` times, so
that it learns to go on from its own guesses (training-time test, EAGLE-3, arXiv 2503.01840).
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
from torch.nn import functional

from backend.engines.heads.head import HeadShape, embeddings, tensor
from backend.engines.heads.torch import KeyValue, TorchHead, as_layer
from experiments.shards import Shard, Text, groups

#: What the target calls a layer's weights, by what they are called here.
LAYER_TENSORS = {
    **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
}

#: Later draft steps count for less: they are reached less often.
FADE = 0.7

#: Weight of the distance between predicted and true features beside the tokens' cross-entropy.
FEATURES = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """`sources`: the target's layers that the head starts from; `reads`: which of the head's read
    features. `vocabulary`: how many of the answers' most frequent tokens can be drafted. `batch`:
    tokens a batch. `steps`: draft steps trained, by share of the training time passed.
    """

    sources: tuple[int, ...] = (0, 1, 29)
    reads: tuple[int, ...] = (0, 2)
    vocabulary: int = 12288
    batch: int = 1400
    rate: float = 6e-4
    steps: tuple[int, ...] = (1, 1, 1, 2, 2, 3)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of one draft step: its loss, how often the head's choice was the target's, and of how many
    tokens.
    """

    loss: Tensor
    hit: float
    tokens: int


def shape_of(config: dict[str, Any], layers: int, reads: tuple[int, ...]) -> HeadShape:
    """The head that suits a Llama-shaped target with this config.json."""
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return HeadShape(
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        eps=config["rms_norm_eps"],
        theta=config.get("rope_theta") or rope["rope_theta"],
        layers=layers,
        reads=reads,
    )


def new_head(folder: Path, tokens: NDArray[np.int64], recipe: Recipe) -> TorchHead:
    """A head cut out of the target in `folder`, reading nothing yet."""
    config = json.loads((folder / "config.json").read_text())
    table, output = embeddings(folder)
    shape = shape_of(config, len(recipe.sources), recipe.reads)
    head = TorchHead(shape, torch.from_numpy(table), torch.from_numpy(output[tokens]))
    with torch.no_grad():
        for module, source in zip(head.layers, recipe.sources, strict=True):
            layer = as_layer(module)
            for ours, theirs in LAYER_TENSORS.items():
                weight = torch.from_numpy(tensor(folder, f"model.layers.{source}.{theirs}.weight"))
                layer.get_submodule(ours).get_parameter("weight").copy_(weight)
        head.norm.weight.copy_(torch.from_numpy(tensor(folder, "model.norm.weight")))
        for read in head.reads.values():
            read.get_parameter("weight").zero_()
    return head


def frequent_tokens(shards: Sequence[Shard], count: int, vocab_size: int) -> NDArray[np.int64]:
    """The ids that answers hold most often, ascending."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for shard in shards:
        counts += shard.answer_counts(vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def lessons(head: TorchHead, batch: Sequence[Text], steps: int) -> list[Lesson]:
    """Run a batch of texts through `steps` draft steps; losses keep their graph."""
    device = head.embedding.device
    tokens, answers, bits = (x.to(device) for x in _padded(batch))
    features = bits.view(torch.bfloat16).float()
    n = tokens.shape[1] - 2
    after, positions = tokens[:, 1 : n + 1], torch.arange(1, n + 1, device=device)
    truth = features[:, 1 : n + 1]  # what a place's prediction stands for
    first = seen = features[:, :n]
    earlier: list[list[KeyValue]] = [[] for _ in head.layers]
    by_step: list[Lesson] = []
    for step in range(steps):
        bias = _visible(positions - 1, step, head.shape.window)
        predicted, earlier = draft_step(head, seen, after, positions, earlier, bias)
        judged = answers[:, 2 : n + 2].clone()
        judged[:, :step] = False
        by_step.append(_judge(head, predicted[judged], truth[judged]))
        seen = torch.cat([first[:, :1], predicted[:, :-1].float()], 1)
    return by_step


def draft_step(
    head: TorchHead,
    features: Tensor,
    tokens: Tensor,
    positions: Tensor,
    earlier: Sequence[list[KeyValue]],
    bias: Tensor,
) -> tuple[Tensor, list[list[KeyValue]]]:
    """Step s of drafting from every place of whole texts at once, as training needs it.

    A query at place i sees what drafting from place i - s would: keys of step 0 up to there
    (`bias` [n, n] says which), and one key of each later step, its own included. `earlier`
    holds each layer's keys and values of steps 0..s-1. Features are [B, n, D], tokens [B, n].
    Gives the predicted features [B, n, D] and `earlier` with this step added.
    """
    x, seen = functional.embedding(tokens, head.embedding), head.feature_norm(features)
    after: list[list[KeyValue]] = []
    for index, (module, before) in enumerate(zip(head.layers, earlier, strict=True)):
        layer, x = as_layer(module), head.entered(index, x, seen)
        q, k, v = layer.project(x, positions)
        steps = [*before, (k, v)]
        x = layer.finish(x, _attend(head.shape, q, steps, bias))
        after.append(steps)
    return head.norm(x), after


def _attend(shape: HeadShape, q: Tensor, steps: list[KeyValue], bias: Tensor) -> Tensor:
    n, scale = q.shape[1], shape.scale

    def expand(kv: Tensor) -> Tensor:
        """Keys or values [..., kv_heads, d], repeated for the query heads that share them."""
        return kv.repeat_interleave(shape.heads // shape.kv_heads, -2)

    first_k, first_v = steps[0]
    scores = torch.einsum("bihd,bjhd->bhij", q, expand(first_k)).float() * scale + bias
    later = [
        (_delayed(expand(k), delay), _delayed(expand(v), delay))
        for delay, (k, v) in zip(range(len(steps) - 2, -1, -1), steps[1:], strict=True)
    ]
    own = [((q * k).sum(-1).float() * scale).transpose(1, 2)[..., None] for k, _ in later]
    weights = torch.softmax(torch.cat([scores, *own], -1), -1).to(first_v.dtype)
    attended = torch.einsum("bhij,bjhd->bihd", weights[..., :n], expand(first_v))
    for index, (_, v) in enumerate(later):
        attended = attended + weights[..., n + index].transpose(1, 2)[..., None] * v
    return attended


def _delayed(x: Tensor, delay: int) -> Tensor:
    """Put `delay` places of zeros in front of x [B, n, ...] and cut as many off behind."""
    if delay == 0:
        return x
    return torch.cat([torch.zeros_like(x[:, :delay]), x[:, :-delay]], 1)


def _judge(head: TorchHead, predicted: Tensor, truth: Tensor) -> Lesson:
    """Compare features [m, D]: by the tokens they mean, and by themselves."""
    with torch.no_grad():
        target_logits = head.logits(truth.bfloat16())
    logits = head.logits(predicted.bfloat16())
    entropy = -(target_logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    distance = functional.smooth_l1_loss(predicted.float(), truth)
    hit = (logits.detach().argmax(-1) == target_logits.argmax(-1)).float().mean()
    return Lesson(entropy + FEATURES * distance, float(hit), len(truth))


def _padded(batch: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 [B, n], which of them answers wrote, and features as bf16 bits [B, n, F]."""
    n = max(len(text.tokens) for text in batch)
    tokens = np.zeros((len(batch), n), dtype=np.int64)
    answers = np.zeros((len(batch), n), dtype=bool)
    bits = np.zeros((len(batch), n, batch[0].features.shape[1]), dtype=np.uint16)
    for row, text in enumerate(batch):
        length = len(text.tokens)
        tokens[row, :length], answers[row, :length] = text.tokens, text.answers
        bits[row, :length] = text.features
    return torch.from_numpy(tokens), torch.from_numpy(answers), torch.from_numpy(bits)


def _visible(places: Tensor, step: int, window: int) -> Tensor:
    """The bias [n, n] of draft step `step` at `places` [n] over the keys of step 0."""
    i, j = places[:, None], places[None]
    return torch.where((j <= i - step) & (j > i - window), 0.0, -1e9)


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


def fit(head: TorchHead, shards: Sequence[Shard], recipe: Recipe, seconds: float) -> Iterator[str]:
    """Train `head` in place for so long; tells how it stands every minute and at the end."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01
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
            steps = recipe.steps[int(passed * len(recipe.steps))]
            latest = _learn(head, optimizer, rate, batch, steps)
            hits = [0.98 * a + 0.02 * b for a, b in zip(hits, latest, strict=False)] or latest
            hits += latest[len(hits) :]
            done, seen = done + 1, seen + sum(len(text.tokens) for text in batch)


def _learn(
    head: TorchHead, optimizer: Any, rate: float, batch: Sequence[Text], steps: int
) -> list[float]:
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast(head.embedding.device.type, torch.bfloat16):
        by_step = lessons(head, batch, steps)
    losses = [FADE**step * lesson.loss for step, lesson in enumerate(by_step)]
    torch.stack(losses).sum().backward()
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return [lesson.hit for lesson in by_step]


@torch.no_grad()
def evaluate(
    head: TorchHead,
    shards: Sequence[Shard],
    recipe: Recipe,
    steps: int,
    most: int | None = None,
) -> list[float]:
    """How often the head's choice is the target's, by draft step, in the first `most` batches."""
    hits, counts = np.zeros(steps), 0
    for batch in islice(batches(shards, recipe, np.random.default_rng(0)), most):
        with torch.autocast(head.embedding.device.type, torch.bfloat16):
            by_step = lessons(head, batch, steps)
        hits += [lesson.hit * by_step[0].tokens for lesson in by_step]
        counts += by_step[0].tokens
    return (hits / max(counts, 1)).tolist()
