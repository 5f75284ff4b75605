"""A race in a hundred lines: what Decode Derby does, without any of its code.

Three columns write one text with a causal language model of transformers: `stateless` computes the
whole text for every token, `kv` keeps keys and values, `lookup` also guesses: what followed the
last earlier occurrence of the text's ending is checked in one pass. Token t is chosen by
argmax(logits / T + g(seed, t)) with the same Gumbel noise g in every column, so all write one text.

    .venv/bin/python tests/naive_race.py ~/.cache/decode-derby/built-in "Why is the sky blue?" 48
"""

import sys
from time import perf_counter
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Choose = Any  # (logits [V], position of the token) -> its id


def chooser(temperature: float, seed: int) -> Choose:
    """Greedy at temperature 0, else a draw whose noise depends on seed and position alone."""

    def choose(logits: torch.Tensor, position: int) -> int:
        scores = logits.numpy().astype(np.float32)
        if temperature:
            bits = np.random.Philox(key=np.array([seed, position], dtype=np.uint64))
            drawn = bits.random_raw((scores.size + 1) // 2).view(np.uint32)[: scores.size]
            uniform = np.minimum((drawn.astype(np.float32) + 0.5) * 2**-32, 1 - 2**-24)
            scores = scores / np.float32(temperature) - np.log(-np.log1p(-uniform))
        return int(scores.argmax())

    return choose


@torch.inference_mode()
def forward(model: Any, tokens: list[int], cache: Any, wanted: int) -> torch.Tensor:
    """Run a pass over tokens behind the cache; logits [wanted, V] behind the last ones."""
    ids = torch.tensor([tokens])
    output = model(ids, past_key_values=cache, use_cache=cache is not None, logits_to_keep=wanted)
    return output.logits[0].float()


def stateless(model: Any, prompt: list[int], count: int, choose: Choose) -> list[int]:
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(choose(forward(model, text, None, 1)[0], len(text)))
    return text[len(prompt) :]


def kv(model: Any, prompt: list[int], count: int, choose: Choose) -> list[int]:
    """Compute only what is new: speculation without guesses."""
    return speculative(model, prompt, count, choose, lambda text, most: [])


def lookup(model: Any, prompt: list[int], count: int, choose: Choose) -> list[int]:
    return speculative(model, prompt, count, choose, guess_by_lookup)


def guess_by_lookup(text: list[int], most: int) -> list[int]:
    """What followed the latest earlier occurrence of the last three, two or one tokens."""
    for n in (3, 2, 1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + min(most, 8)]
    return []


def speculative(model: Any, prompt: list[int], count: int, choose: Choose, draft: Any) -> list[int]:
    """Propose, forward, verify, commit. A guess stays while the model's own choice equals it; the
    first choice that differs, or the one behind the last guess, comes for nothing.
    """
    cache, text = DynamicCache(), list(prompt)
    while len(text) < len(prompt) + count:
        room = len(prompt) + count - len(text) - 1
        guesses = draft(text, room) if len(text) > len(prompt) else []
        pending = text[cache.get_seq_length() :]
        rows = forward(model, pending + guesses, cache, 1 + len(guesses))
        for row, guess in zip(rows, [*guesses, None], strict=True):
            text.append(choose(row, len(text)))
            if text[-1] != guess:
                break
        cache.crop(len(text) - 1)  # rows of rejected guesses go; the last token has none yet
    return text[len(prompt) :]


def main(folder: str, question: str, limit: str = "48") -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": question}]
    prompt = list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    for column in (stateless, kv, lookup):
        start, tokens = perf_counter(), column(model, prompt, int(limit), chooser(0.0, 0))
        seconds = perf_counter() - start
        sys.stdout.write(f"{column.__name__:10} {seconds:5.1f} s  {tokenizer.decode(tokens)!r}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
