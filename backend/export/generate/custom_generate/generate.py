"""Decoding strategies for transformers' generate(), which runs this file from a folder or the Hub:
prompt lookup, an EAGLE-3 draft, both of them, and lookahead.

    model.generate(**inputs, custom_generate=FOLDER, strategy="hybrid", draft=FOLDER, k=4)

Each writes what plain decoding writes: a guess stays while the model's own choice equals it. Drawn
tokens are argmax(scores + g), which is a draw from softmax(scores): the Gumbel noise g depends on
the token's place and on the seed of `torch.manual_seed` alone. Scores, and what ends a text, are
generate()'s own. One prompt at a time is continued; what comes back is ids.
"""

import random
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, pad, rms_norm, scaled_dot_product_attention, silu
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils.hub import cached_file

#: Chooses a token from logits [V] and notes it at its place in the text; returns its id.
Choose = Callable[[Tensor, int], int]


class Proposal(NamedTuple):
    """A tree of tokens below the text's last one. `parents`: 0 is that one, i + 1 is token i. Those
    behind the first `drafted` are never accepted; logits of the last `feedback` go back.
    """

    tokens: list[int]
    parents: list[int]
    drafted: int
    feedback: int = 0


def chain(tokens: list[int]) -> Proposal:
    return Proposal(tokens, list(range(len(tokens))), len(tokens))


class Drafter:
    """Proposes nothing, which is plain decoding. It observes the inputs of the model's `layers`."""

    layers: tuple[int, ...] = ()

    def propose(self, text: list[int], room: int) -> Proposal:
        """What may follow the text, at most `room` tokens deep."""
        return chain([])

    def observe(self, states: list[Tensor], feedback: Tensor) -> None:
        """After each pass: its layers' inputs [n, D] at the n tokens that it added to the cache."""


def generate(
    model: Any,
    strategy: str = "hybrid",
    draft: str = "",
    k: int = 4,
    ngram: int = 3,
    window: int = 5,
    level: int = 3,
    guesses: int = 5,
    streamer: Any = None,
    **arguments: Any,
) -> Tensor:
    """Write by "kv", "lookup", "eagle3", "hybrid" (lookup, else eagle3) or "lookahead".

    `draft`: folder or Hub name of an EAGLE-3 checkpoint. `k`: tokens guessed in a round. `ngram`:
    tokens of the longest ending that is looked up. `window`, `level`, `guesses`: lookahead's sizes.
    """
    strategies: dict[str, Callable[[Choose], Drafter]] = {
        "kv": lambda _: Drafter(),
        "lookup": lambda _: Lookup(k, ngram),
        "eagle3": lambda choose: Eagle3(draft, model, k, choose, Drafter()),
        "hybrid": lambda choose: Eagle3(draft, model, k, choose, Lookup(k, ngram)),
        "lookahead": lambda _: Lookahead(window, level, guesses),
    }
    if strategy not in strategies:
        raise ValueError(f"There is no strategy {strategy!r}: choose {', '.join(strategies)}.")
    if strategy == "lookahead" and getattr(model.config, "sliding_window", None):
        raise ValueError("Lookahead needs a model without sliding windows.")
    # It makes of the arguments what it usually does, but hands on no streamer.
    loop = partial(decode, make=strategies[strategy], streamer=streamer)
    return type(model).generate(model, custom_generate=loop, streamer=streamer, **arguments)


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    make: Callable[[Choose], Drafter],
    streamer: Any,
    **inputs: Any,
) -> Tensor:
    """Propose, forward, verify, commit, until the text ends: ids [1, n]."""
    if len(input_ids) > 1 or not inputs["attention_mask"].all():
        raise ValueError("One prompt without padding is continued at a time.")
    text, most, seed = input_ids[0].tolist(), generation_config.max_length, torch.initial_seed()
    ids = pad(input_ids, (0, most - len(text)))

    def choose(logits: Tensor, place: int) -> int:
        scores = logits_processor(ids[:, :place], logits[None].float())[0]
        if generation_config.do_sample:
            scores = scores.cpu() + noise(seed, place, len(scores))
        ids[0, place] = token = int(scores.argmax())
        return token

    cache, drafter, ended = DynamicCache(), make(choose), False
    while not ended:
        cached = cache.get_seq_length()
        proposal = drafter.propose(text, most - len(text) - 1) if cached else chain([])
        root, drafted = len(text) - 1 - cached, proposal.drafted
        rows = [*text[cached:], *proposal.tokens]
        parents = [*range(-1, root), *(root + parent for parent in proposal.parents)]
        behind = [*range(root, root + 1 + drafted)]
        behind += range(len(rows) - proposal.feedback, len(rows))
        output = model(
            input_ids=ids.new_tensor([rows]),
            past_key_values=cache,
            logits_to_keep=behind,
            output_hidden_states=bool(drafter.layers),
            **places(parents, cached, model),
        )
        logits = output.logits[0]
        if len(logits) > len(behind):  # of a model that knows no logits_to_keep
            logits = logits[behind]

        pairs = zip(proposal.parents[:drafted], proposal.tokens, strict=False)
        children, path = {pair: i for i, pair in enumerate(pairs, 1)}, list[int]()
        node: int | None = 0
        while node is not None and not ended:
            path.append(node)
            text.append(choose(logits[node], len(text)))
            ended = bool(stopping_criteria(ids[:, : len(text)], None).all())
            node = children.get((node, text[-1]))

        kept = [*range(root), *(root + node for node in path)]
        keep(cache, cached, kept)
        states = [output.hidden_states[layer][0, kept] for layer in drafter.layers]
        drafter.observe(states, logits[1 + drafted :])
        if streamer is not None:
            streamer.put(torch.tensor(text[-len(path) :]))
    if streamer is not None:
        streamer.end()
    return ids[:, : len(text)]


@lru_cache(maxsize=64)
def noise(seed: int, place: int, size: int) -> Tensor:
    """Gumbel noise, float32 [size], of 32 random bits each: always finite."""
    bits = np.random.Philox(key=np.array([seed, place], dtype=np.uint64))
    drawn = bits.random_raw((size + 1) // 2).view(np.uint32)[:size].astype(np.float32)
    uniform = np.minimum((drawn + 0.5) * 2**-32, 1 - 2**-24)
    return torch.from_numpy(-np.log(-np.log1p(-uniform)))


def places(parents: list[int], cached: int, model: Any) -> dict[str, Tensor]:
    """What shows the model that rows are a tree: their mask and positions. A chain needs none."""
    if parents == [*range(-1, len(parents) - 1)]:
        return {}
    seen, depths = torch.eye(len(parents), dtype=torch.bool), [0] * len(parents)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
            depths[row] = depths[parent] + 1
    hidden = ~pad(seen, (cached, 0), value=True)[None, None]
    mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(model.dtype).min)
    positions = torch.tensor([depths], device=model.device) + cached
    return {"attention_mask": mask.to(model.device, model.dtype), "position_ids": positions}


def keep(cache: Any, cached: int, rows: list[int]) -> None:
    """Leave these of the rows behind the first `cached` in the cache, one after another."""
    if rows != [*range(len(rows))]:
        for layer in cache.layers:
            for kept in (layer.keys, layer.values):
                kept[:, :, cached : cached + len(rows)] = kept[:, :, [cached + row for row in rows]]
    cache.crop(cached + len(rows))


class Lookup(Drafter):
    """What followed the latest earlier occurrence of the text's ending: of `ngram` tokens, or else
    of fewer. A text that repeats itself is continued so.
    """

    def __init__(self, k: int, ngram: int) -> None:
        self.k, self.ngram = k, ngram

    def propose(self, text: list[int], room: int) -> Proposal:
        tokens = np.array(text)
        for n in range(min(self.ngram, len(text) - 1), 0, -1):
            same = (sliding_window_view(tokens[:-1], n) == tokens[-n:]).all(-1)
            if same.any():
                behind = text[int(np.flatnonzero(same)[-1]) + n :]
                return chain([behind[i % len(behind)] for i in range(min(self.k, room))])
        return chain([])


#: Keys and values, [kv heads, n, head dim] each.
Rows = tuple[Tensor, Tensor]

PARTS = (
    *("fc", "norm", "lm_head", "input_layernorm", "hidden_norm", "post_attention_layernorm"),
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)


@lru_cache(maxsize=4)
def checkpoint(name: str, device: Any, dtype: Any) -> tuple[Any, dict[str, Tensor]]:
    """A draft's configuration, and its PARTS with the `ids` of the tokens that it knows."""
    config = LlamaConfig.from_pretrained(name)
    weights = load_file(str(cached_file(name, "model.safetensors")), device=str(device))
    ids = torch.arange(len(weights["lm_head.weight"]), device=device) + weights.pop("d2t", 0)
    weights.pop("t2d", None)
    short = {n.removeprefix("midlayer.").removesuffix(".weight"): w for n, w in weights.items()}
    if short.keys() != {*PARTS}:
        raise ValueError(f"{name!r} is no EAGLE-3 draft of one Llama layer.")
    return config, {"ids": ids, **{part: w.to(dtype) for part, w in short.items()}}


class Eagle3(Drafter):
    """What `lookup` proposes, or else a draft of one layer that reads three of the model's (arXiv
    2503.01840). A row is a token and the model's states at the token before it; behind a guess,
    what the draft itself gave there.
    """

    def __init__(self, name: str, model: Any, k: int, choose: Choose, lookup: Drafter) -> None:
        self.k, self.choose, self.lookup = k, choose, lookup
        self.config, self.weights = config, w = checkpoint(name, model.device, model.dtype)
        target, self.embed = model.config.get_text_config(), model.get_input_embeddings()
        usual = (2, target.num_hidden_layers // 2, target.num_hidden_layers - 3)
        self.layers = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", usual))
        self.vocabulary, self.size = target.vocab_size, config.head_dim
        self.turns = LlamaRotaryEmbedding(config).inv_freq.to(model.device)
        none = w["fc"].new_zeros(config.num_key_value_heads, 0, self.size)
        self.rows, self.states = (none, none), list[Tensor]()  # [n, 3 D] that have no rows yet

    def observe(self, states: list[Tensor], feedback: Tensor) -> None:
        self.states.append(torch.cat(states, -1))

    def propose(self, text: list[int], room: int) -> Proposal:
        copied = self.lookup.propose(text, room)
        if copied.tokens or not room:
            return copied
        w, x, rows = self.weights, linear(torch.cat(self.states), self.weights["fc"]), self.rows
        tokens, guesses = text[-len(x) :], list[int]()
        while len(guesses) < min(self.k, room):
            x, rows = self.layer(x, tokens, rows)
            if not guesses:
                self.rows, self.states = rows, []
            logits = linear(self.norm(x, "norm"), w["lm_head"])[0]
            scores = logits.new_full((self.vocabulary,), -torch.inf)
            scores[w["ids"]] = logits
            tokens = [self.choose(scores, len(text) + len(guesses))]
            guesses += tokens
        return chain(guesses)

    def layer(self, x: Tensor, tokens: list[int], rows: Rows) -> tuple[Tensor, Rows]:
        """What it gives for the last row of x [n, D], [1, D], and all rows: of the others
        nothing but keys and values is ever needed.
        """
        w, start, normed = self.weights, rows[0].shape[1], self.norm(x, "hidden_norm")
        embedded = self.embed(torch.tensor(tokens, device=x.device))
        read = torch.cat([self.norm(embedded, "input_layernorm"), normed], -1)
        q = self.heads(linear(read[-1:], w["self_attn.q_proj"]), start + len(x) - 1)
        k = self.heads(linear(read, w["self_attn.k_proj"]), start)
        v = linear(read, w["self_attn.v_proj"]).unflatten(-1, (-1, self.size)).transpose(0, 1)
        k, v = torch.cat([rows[0], k], 1), torch.cat([rows[1], v], 1)
        attended = scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)
        x = (normed if getattr(self.config, "norm_before_residual", False) else x)[-1:]
        x = x + linear(attended.view(1, -1), w["self_attn.o_proj"])
        h = self.norm(x, "post_attention_layernorm")
        gated = silu(linear(h, w["mlp.gate_proj"])) * linear(h, w["mlp.up_proj"])
        return x + linear(gated, w["mlp.down_proj"]), (k, v)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.weights[name], self.config.rms_norm_eps)

    def heads(self, x: Tensor, start: int) -> Tensor:
        """[heads, n, size] of x [n, heads * size], turned by the places of its rows."""
        angles = torch.arange(start, start + len(x), device=x.device)[:, None] * self.turns
        a, b = x.unflatten(-1, (-1, self.size)).transpose(0, 1).float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Lookahead(Drafter):
    """Jacobi iteration as an n-gram factory (arXiv 2402.02057). Below the last token hang up to G
    known n-grams, and a window of W columns in N - 1 levels: level 0 is a chain that begins with
    the last token, each token of another level hangs from the one above it. Read downwards, with
    the token that comes behind it, a column is another n-gram; and then all levels move up.
    """

    def __init__(self, window: int, level: int, guesses: int) -> None:
        self.window, self.level, self.guesses = window, level, guesses
        self.levels: list[list[int]] = []
        self.pool: dict[int, dict[tuple[int, ...], None]] = {}  # by first tokens, the oldest first
        self.indexed, self.last, self.random = 0, 0, random.Random(0)

    def propose(self, text: list[int], room: int) -> Proposal:
        if not self.levels:
            widths = [self.window - 1, *[self.window] * (self.level - 2)]
            self.levels = [self.random.choices(text, k=width) for width in widths]
        for end in range(max(self.indexed, self.level - 1), len(text)):
            self.add(text[end - self.level + 1 : end + 1])
        self.indexed, self.last = len(text), text[-1]

        tokens, parents, nodes = list[int](), list[int](), dict[tuple[int, int], int]()
        for guess in reversed(self.pool.get(self.last, {})):
            node = 0
            for token in guess[:room]:
                if (node, token) not in nodes:
                    tokens.append(token)
                    parents.append(node)
                    nodes[node, token] = len(tokens)
                node = nodes[node, token]
        drafted, above = len(tokens), list[int]()
        for depth, row in enumerate(self.levels):
            below = [*range(len(tokens) + 1, len(tokens) + 1 + len(row))]
            parents += above if depth else [0, *below[:-1]]
            above = below if depth else [0, *below]
            tokens += row
        return Proposal(tokens, parents, drafted, len(self.levels[-1]))

    def add(self, ngram: list[int]) -> None:
        known = self.pool.setdefault(ngram[0], {})
        known.pop(tuple(ngram[1:]), None)  # what is seen again is the youngest
        known[tuple(ngram[1:])] = None
        if len(known) > self.guesses:
            del known[next(iter(known))]

    def observe(self, states: list[Tensor], feedback: Tensor) -> None:
        if self.levels:
            new = feedback.argmax(-1).tolist()
            first = [self.last, *self.levels[0]][-len(new) :]
            for ngram in zip(first, *self.levels[1:], new, strict=True):
                self.add(list(ngram))
            top, *others = [*self.levels[1:], new]
            self.levels = [top[1 - self.window :], *others]
