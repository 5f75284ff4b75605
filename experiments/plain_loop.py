"""A plain greedy loop that never asks the device for anything: one graph a token, which feeds its
own choice back. What any loop over the same kernels can be compared with.
"""

from collections.abc import Sequence
from time import perf_counter

import torch

from backend.engines.base import Session
from backend.engines.cache import Cache
from backend.engines.torch.graphs import Run, current, wait
from backend.engines.torch.static import StaticCache, StaticModel, StaticStore
from backend.types import PREFILL_CHUNK, Capabilities, chain_parents


class PlainLoop:
    """Answers one prompt after another over a cache of its own."""

    def __init__(self, shared: StaticModel, rows: int) -> None:
        """`rows`: the longest prompt and answer together."""
        self._shared = shared
        self._rows = rows + PREFILL_CHUNK
        self._cache: StaticCache = shared.lend(self._rows)
        self._tokens = torch.zeros(self._rows, dtype=torch.int64, device=shared.calling.device)
        self._step: Run = self._captured()

    @torch.inference_mode()
    def _captured(self) -> Run:
        with current(self._shared.calling.device):
            self._shared.tensors(1).clear()
            return self._shared.capture(self._one)

    def _one(self) -> None:
        """One token: a pass over the last one, and the next pass's inputs from what it gives."""
        tensors = self._shared.tensors(1)
        self._cache.compute(tensors, logits=True)
        (start, tokens, positions, _), (logits, _) = tensors.inputs, tensors.outputs
        chosen = logits.argmax(1)
        start.add_(1)
        positions.add_(1)
        tokens.copy_(chosen)
        self._tokens.index_copy_(0, start, chosen)

    @torch.inference_mode()
    def run(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """`count` tokens after a prompt, whether or not the text ends among them, and the seconds
        that those after the first took.
        """
        device, last = self._shared.calling.device, len(prompt) - 1
        store = StaticStore(self._shared, self._cache)
        session = Session(Cache(store, Capabilities(max_context=self._rows)))
        for at in range(0, last, PREFILL_CHUNK):
            chunk = prompt[at : min(at + PREFILL_CHUNK, last)]
            session.forward(chunk, chain_parents(len(chunk)), ())
            session.keep(range(len(chunk)))
        start, tokens, positions, seen = self._shared.tensors(1).inputs
        with current(device):
            start.fill_(last)
            tokens.fill_(prompt[last])
            positions.fill_(last)
            seen.fill_(1)
            self._step()
            wait(device)
            began = perf_counter()
            for _ in range(count - 1):
                self._step()
            wait(device)
            seconds = perf_counter() - began
        return self._tokens[len(prompt) : len(prompt) + count].tolist(), seconds
