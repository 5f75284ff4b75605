"""Synthesised conversations on disk: files of tokens, and beside each its target's features.

The target runs fast rather than exact, many conversations at once. All of a batch are equally long
at every step, so nothing is padded or masked; those that are over leave the batch.

A shard is one batch of conversations that all start at once and grow by one token a step, drawn
from a seed of its own. Run again, synthesis goes on with the first shard that is missing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer

from backend.models.files import Say, model_files
from backend.tokenizer import HfTokenizer
from backend.types import HiddenStates, Layers
from experiments.chats import GREEDY, QUESTION, USUAL, Caps, Chat, template_of

#: Shard i is drawn from this plus i.
SEED = 20_240_000

#: Questions are sampled from the most probable tokens that make up this much.
NUCLEUS = 0.95

#: Draws until one falls into the nucleus; the most probable token is taken if none does.
TRIES = 20

#: Tokens whose features are computed at once.
AT_ONCE = 8192

#: Texts that are sampled at a time: on the processor so many rows of logits stay in its cache; on a
#: GPU kernels should be few.
TOGETHER = {"cpu": 8, "cuda": 4096}

#: A batch loses its finished conversations once they are one in so many: a new shape costs time.
SHRINK = 24


#: Gives the states [n, 4 D] of each text, int64 [n].
FeaturesOf = Callable[[Sequence[NDArray[np.int64]]], list[HiddenStates]]

T = TypeVar("T")


class Text(NamedTuple):
    """One conversation: tokens int64 [n], which of them are an answer's, bool [n], and the
    target's states at them as bf16 bits, uint16 [n, 4 D]: those that a draft reads, and behind them
    the one that the output projection reads.
    """

    tokens: NDArray[np.int64]
    answers: NDArray[np.bool_]
    features: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Shard:
    """`path` is the file of tokens: `tokens` uint16 or uint32 [N], `kind` uint8 [N], `offsets`
    int64 [texts + 1].
    """

    path: Path

    @property
    def features_path(self) -> Path:
        return self.path.with_suffix(".features.npy")

    def texts(self) -> Iterator[Text]:
        """Its conversations; the features stay on disk until they are read."""
        with np.load(self.path) as stored:
            tokens, kind, offsets = stored["tokens"], stored["kind"], stored["offsets"]
        features = np.load(self.features_path, mmap_mode="r")
        for a, b in pairwise(offsets):
            yield Text(tokens[a:b].astype(np.int64), kind[a:b] >= GREEDY, features[a:b])

    def add_features(self, features_of: FeaturesOf) -> None:
        """Write the target's features of its conversations, unless they are there."""
        if self.features_path.exists():
            return
        with np.load(self.path) as stored:
            tokens, offsets = stored["tokens"].astype(np.int64), stored["offsets"]
        texts = [tokens[a:b] for a, b in pairwise(offsets)]
        states = torch.from_numpy(np.concatenate(features_of(texts)))
        bits = states.bfloat16().view(torch.uint16).numpy()
        with whole(self.features_path) as file:
            np.save(file, bits)

    @property
    def answer_tokens(self) -> int:
        return int(self.answer_counts(1).sum())

    def answer_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs in answers."""
        with np.load(self.path) as stored:
            return np.bincount(stored["tokens"][stored["kind"] >= GREEDY], minlength=vocab_size)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears as `path` once it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        yield file
    partial.replace(path)


def shards_in(folder: Path) -> list[Shard]:
    """The complete shards of a folder, in order."""
    return [Shard(path) for path in sorted(folder.glob("shard-?????.npz"))]


def groups(texts: Iterable[T], length: Callable[[T], int], most: int) -> list[list[T]]:
    """Consecutive texts in groups of at most `most` tokens, counted as if all texts of a group were
    as long as its last one. A group has at least one text.
    """
    grouped: list[list[T]] = [[]]
    for text in texts:
        if (len(grouped[-1]) + 1) * length(text) > most and grouped[-1]:
            grouped.append([])
        grouped[-1].append(text)
    return grouped


class GrowingLayer(DynamicLayer):
    """Keys and values [B, kv_heads, T, d] of one layer, in buffers that grow by `STEP` rows: to
    copy a whole cache for every token takes longer than to compute the token. Keys lie as scores
    read them, [B, kv_heads, d, T].
    """

    STEP = 256

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self._keys = self._values = torch.zeros(0)
        self._length = 0

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append rows [B, kv_heads, n, d] of each; gives all so far."""
        if not self._length:
            self._keys, self._values = keys[:, :, :0].mT, values[:, :, :0]
        start, self._length = self._length, self._length + keys.shape[2]
        if self._length > self._values.shape[2]:
            more = (0, self._length + self.STEP - self._values.shape[2])
            self._keys = functional.pad(self._keys, more)
            self._values = functional.pad(self._values, (0, 0, *more))
        rows = slice(start, self._length)
        self._keys[..., rows], self._values[:, :, rows] = keys.mT, values
        return self._keys[..., : self._length].mT, self._values[:, :, : self._length]

    def get_seq_length(self) -> int:
        return self._length

    def batch_select_indices(self, indices: Tensor) -> None:
        self._keys, self._values = self._keys[indices], self._values[indices]


def grouped_attention(
    module: Any, q: Tensor, keys: Tensor, values: Tensor, _mask: Any, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention of q [B, heads, n, d] for one token behind the others, or a whole text. Heads that
    share keys stand together, so that a cache is read once.
    """
    b, heads, n, d = q.shape
    if n > 1:
        attended = functional.scaled_dot_product_attention(
            q, keys, values, is_causal=True, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2), None
    scores = (q.view(b, values.shape[1], -1, d) @ keys.mT).float() * scaling
    attended = torch.softmax(scores, -1).to(values.dtype) @ values
    return attended.reshape(b, 1, heads, d), None


AttentionInterface.register("grouped", grouped_attention)


class Target:
    """A transformers model in bf16, on CUDA if there is a device."""

    def __init__(self, name: str, say: Say, dtype: torch.dtype = torch.bfloat16) -> None:
        """Raises DerbyError if there is no such model, or none that a draft can be made of."""
        from transformers import AutoModelForCausalLM

        self.files = model_files(name, say)
        fast = HfTokenizer(self.files.folder, self.files.eos_ids, self.files.vocab_size).fast
        self.template = template_of(fast)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.together = TOGETHER[device]
        model: Any = AutoModelForCausalLM.from_pretrained(
            self.files.folder,
            dtype=dtype,
            attn_implementation="grouped",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        self._model = model.to(device).eval()
        self.forget()

    def forget(self) -> None:
        """Drop all texts and their cache: the next step begins new ones."""
        self._cache, self._size = Cache(layer_class_to_replicate=GrowingLayer), 0

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> Tensor:
        """Append tokens [B, n] to those texts of the last step that `rows` [B] names; at first to
        empty ones, and `rows` counts them. Gives float32 [B, V], valid until the next step.
        """
        device = self._model.device
        if self._size and len(rows) < self._size:
            self._cache.batch_select_indices(torch.from_numpy(rows).long().to(device))
        self._size = len(rows)
        ids = torch.from_numpy(tokens).to(device)
        output = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].float()

    @property
    def reads(self) -> Layers:
        """The layers whose inputs a draft reads. openvino-genai looks for no others: the outputs of
        layers 2, n / 2 and n - 3.
        """
        count = self._model.config.num_hidden_layers
        return 3, count // 2 + 1, count - 2

    @property
    def width(self) -> int:
        """D, of a state."""
        return self._model.config.hidden_size

    def features(self, texts: Sequence[NDArray[np.int64]]) -> list[HiddenStates]:
        """States [n, 4 D] of each text [n], see Text. Reads texts of similar length together,
        padded behind, which changes nothing: no token attends to later ones.
        """
        features: dict[int, HiddenStates] = {}
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for places in groups(order, lambda place: len(texts[place]), AT_ONCE):
            read = self._read([texts[place] for place in places])
            for place, states in zip(places, read, strict=True):
                features[place] = states[: len(texts[place])]
        return [features[place] for place in range(len(texts))]

    @torch.inference_mode()
    def _read(self, texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """[B, n, 4 D] of B texts, padded behind."""
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        read = self._model.get_decoder()
        tokens = torch.from_numpy(ids).to(self._model.device)
        output = read(tokens, use_cache=False, output_hidden_states=True)
        states = [*(output.hidden_states[layer] for layer in self.reads), output.last_hidden_state]
        return torch.cat(states, -1).float().cpu().numpy()


def synthesise(
    folder: Path, answer_tokens: int, target: Target, say: Say, caps: Caps = USUAL
) -> list[Shard]:
    """Add shards to `folder` until answers make up `answer_tokens`; gives all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(shard.answer_tokens for shard in shards_in(folder))
    for number in count():
        if total >= answer_tokens:
            break
        shard = Shard(folder / f"shard-{number:05d}.npz")
        if shard.path.exists():
            continue
        _write(shard, conversations(target, SEED + number, caps), target.files.vocab_size)
        total += shard.answer_tokens
        say(f"{shard.path.name}: answers have {total} of {answer_tokens} tokens")
    return shards_in(folder)


def _write(shard: Shard, chats: Sequence[Chat], vocab_size: int) -> None:
    narrow = vocab_size <= 1 << 16
    tokens = [token for chat in chats for token in chat.tokens]
    with whole(shard.path) as file:
        np.savez_compressed(
            file,
            tokens=np.array(tokens, dtype=np.uint16 if narrow else np.uint32),
            kind=np.array([kind for chat in chats for kind in chat.kinds], dtype=np.uint8),
            offsets=np.cumsum([0, *(len(chat.tokens) for chat in chats)], dtype=np.int64),
        )


def conversations(target: Target, seed: int, caps: Caps) -> list[Chat]:
    """One batch of conversations, led to their ends."""
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
        open_rows = [row for row, chat in enumerate(running) if not chat.done]
        if not open_rows:
            target.forget()
            return everyone
        if len(running) - len(open_rows) < max(1, len(running) // SHRINK):
            open_rows = list(range(len(running)))
        running = [running[row] for row in open_rows]
        rows = np.array(open_rows, dtype=np.int32)
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
        sampled = [chats[row] for row in some]
        for chat, token in zip(sampled, draw(logits[some], sampled, noise), strict=True):
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
    for ids, rows in barred.items():
        logits[torch.tensor(rows)[:, None], torch.tensor(ids)] = -torch.inf
    heat = torch.tensor([chat.temperature for chat in chats], device=logits.device)
    p = torch.softmax(logits.div_(heat[:, None]), 1)
    below = p.cumsum(1)
    tokens = p.argmax(1)
    todo = torch.arange(len(chats), device=logits.device)
    for _ in range(TRIES):  # drawing again is exact, and cheaper than sorting for the nucleus
        level = torch.rand(len(todo), 1, generator=noise).to(p.device) * below[todo, -1:]
        token = torch.searchsorted(below[todo], level, right=True).clamp_(max=p.shape[1] - 1)
        rest = p[todo]
        chance = rest.gather(1, token)
        likelier = (rest * (rest > chance)).sum(1)
        good = (chance[:, 0] > 0) & (~asking[todo] | (likelier < NUCLEUS))
        tokens[todo[good]] = token[good, 0]
        todo = todo[~good]
        if not len(todo):
            break
    return tokens
