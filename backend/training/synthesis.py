"""Synthesises conversations with the target: one shard of them at a time, each from its own seed.

A shard is one batch of conversations that all start at once and grow by one token a step. Run
again, it goes on with the first shard that is missing.
"""

from collections.abc import Sequence
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from backend.errors import DerbyError
from backend.models.files import Say
from backend.training.chats import USUAL, Caps, Chat
from backend.training.shards import GREEDY, QUESTION, Shard, shards_in
from backend.training.targets import Target
from backend.training.whole_files import alone_in, whole

#: Shard i is drawn from this plus i.
SEED = 20_240_000

#: The file in a folder of shards that says whose they are, by fingerprint.
TARGET = "target"

#: Questions are sampled from the most probable tokens that make up this much.
NUCLEUS = 0.95

#: Draws until one falls into the nucleus; the most probable token is taken if none does.
TRIES = 20

#: Draws made at a time, by device: a GPU waits whenever the host looks at what was drawn.
DRAWS = {"cuda": 3}

#: A batch loses its finished conversations once they are one in so many: a new shape costs time.
SHRINK = 24


def synthesise(
    folder: Path, answer_tokens: int, target: Target, say: Say, caps: Caps = USUAL
) -> list[Shard]:
    """Add shards to `folder` until answers make up `answer_tokens`; gives all of them.

    `say` hears of each. Raises DerbyError if another run is at work there.
    """
    if caps.text > target.files.max_context:
        raise DerbyError(
            f"This model reads {target.files.max_context} tokens and conversations have up to "
            f"{caps.text}: choose a model with a longer context."
        )
    with alone_in(folder):
        _require_own(folder, target)
        total = sum(_answered(shard) for shard in shards_in(folder))
        for number in count():
            if total >= answer_tokens:
                break
            shard = shard_at(folder, number)
            if shard.path.exists():
                continue
            began = monotonic()
            tokens = write_shard(shard, number, target, caps)
            total += _answered(shard)
            say(
                f"{shard.path.name}: {tokens} tokens, {tokens / (monotonic() - began):.0f}/s; "
                f"answers have {total} of {answer_tokens}"
            )
        return shards_in(folder)


def shard_at(folder: Path, number: int) -> Shard:
    return Shard(folder / f"shard-{number:05d}.npz")


def _require_own(folder: Path, target: Target) -> None:
    """Note whose conversations lie in the folder. Raises DerbyError if they are another model's."""
    note, own = folder / TARGET, target.files.fingerprint
    if note.is_file() and note.read_text() != own:
        raise DerbyError(
            f"The folder {folder.name} holds conversations of another model: choose another folder."
        )
    note.write_text(own)


def _answered(shard: Shard) -> int:
    with np.load(shard.path) as stored:
        return int((stored["kind"] >= GREEDY).sum())


def write_shard(shard: Shard, number: int, target: Target, caps: Caps, until: float = inf) -> int:
    """Write the shard of this number, its conversations cut off where `monotonic()` is `until`;
    gives how many tokens it has.
    """
    chats = conversations(target, SEED + number, caps, until)
    narrow = target.files.vocab_size <= 1 << 16
    tokens = [token for chat in chats for token in chat.tokens]
    with whole(shard.path) as file:
        np.savez_compressed(
            file,
            tokens=np.array(tokens, dtype=np.uint16 if narrow else np.uint32),
            kind=np.array([kind for chat in chats for kind in chat.kinds], dtype=np.uint8),
            offsets=np.cumsum([0, *(len(chat.tokens) for chat in chats)], dtype=np.int64),
        )
    return len(tokens)


def conversations(target: Target, seed: int, caps: Caps, until: float = inf) -> list[Chat]:
    """One batch of conversations, led to their ends, or cut off where `monotonic()` is `until`."""
    rng = np.random.default_rng(seed)
    noise = torch.Generator().manual_seed(seed)
    everyone = [Chat(target.template, rng, caps) for _ in range(caps.batch)]
    running = everyone
    shared = min(len(chat.queue) for chat in everyone)
    for chat in everyone:
        chat.force(shared)
    tokens = np.array([chat.tokens for chat in everyone], dtype=np.int64)
    rows = np.arange(len(everyone), dtype=np.int32)
    target.forget()
    while True:
        _grow(running, target.step(tokens, rows), noise, target)
        left = [row for row, chat in enumerate(running) if not chat.done]
        if not left or monotonic() > until:
            target.forget()
            return everyone
        if len(running) - len(left) < max(1, len(running) // SHRINK):
            left = list(range(len(running)))
        running = [running[row] for row in left]
        rows = np.array(left, dtype=np.int32)
        tokens = np.array([chat.tokens[-1:] for chat in running], dtype=np.int64)


def _grow(chats: Sequence[Chat], logits: Tensor, noise: torch.Generator, target: Target) -> None:
    """Add a token to each chat that is not over: the next forced one, or one sampled from its
    row of logits [B, V].
    """
    free = [row for row, chat in enumerate(chats) if not chat.done and not chat.queue]
    for chat in chats:
        if not chat.done and chat.queue:
            chat.force(1)
    for start in range(0, len(free), target.together):
        some = free[start : start + target.together]
        asked = [chats[row] for row in some]
        for chat, token in zip(asked, draw(logits[some], asked, noise), strict=True):
            chat.take(token)


def draw(logits: Tensor, chats: Sequence[Chat], noise: torch.Generator) -> list[int]:
    """The next token of each chat; logits [B, V] are overwritten."""
    drawn = logits.argmax(1)
    pick = [row for row, chat in enumerate(chats) if chat.temperature]
    if pick:
        drawn[pick] = _sampled(logits[pick], [chats[row] for row in pick], noise)
    return drawn.tolist()


def _sampled(logits: Tensor, chats: Sequence[Chat], noise: torch.Generator) -> Tensor:
    """int64 [B]: questions from their nucleus, answers from all tokens."""
    questions = [row for row, chat in enumerate(chats) if chat.phase == QUESTION]
    asking = torch.zeros(len(chats), dtype=torch.bool, device=logits.device)
    asking[questions] = True
    barred: dict[tuple[int, ...], list[int]] = {}
    for row in questions:
        barred.setdefault(chats[row].barred, []).append(row)
    for tokens, rows in barred.items():
        logits[torch.tensor(rows)[:, None], torch.tensor(tokens)] = -torch.inf
    heat = torch.tensor([chat.temperature for chat in chats], device=logits.device)
    p = torch.softmax(logits.div_(heat[:, None]), 1)
    below = p.cumsum(1)
    found = p.argmax(1)
    todo = torch.arange(len(chats), device=logits.device)
    draws = DRAWS.get(p.device.type, 1)
    for _ in range(TRIES):  # drawing again is exact, and cheaper than sorting for the nucleus
        level = torch.rand(len(todo), draws, generator=noise).to(p.device) * below[todo, -1:]
        token = torch.searchsorted(below[todo], level, right=True).clamp_(max=p.shape[1] - 1)
        mine = p[todo]
        chance = mine.gather(1, token)
        likelier = torch.stack([(mine * (mine > c[:, None])).sum(1) for c in chance.unbind(1)], 1)
        good = (chance > 0) & (~asking[todo, None] | (likelier < NUCLEUS))
        done = good.any(1)
        found[todo[done]] = token.gather(1, good.int().argmax(1, keepdim=True))[done, 0]
        todo = todo[~done]
        if not len(todo):
            break
    return found
