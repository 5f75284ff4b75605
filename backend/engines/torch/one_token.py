"""Passes over transformers' own cache: of a model whose state cannot be branched or cut back."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from backend.engines.cache import Pass, Store
from backend.engines.torch.calling import Calling
from backend.engines.torch.hidden_states import HiddenStatesTap
from backend.types import Arrays, Logits


class OneTokenStore(Store):
    """Computes a text's first tokens in one pass, as `generate` does, and each later one in a pass
    of its own. A text that was cut is computed again from its beginning.
    """

    def __init__(self, model: Any, calling: Calling, tap: HiddenStatesTap) -> None:
        self._model, self._calling, self._tap = model, calling, tap
        self._config = model.config.get_text_config(decoder=True)
        self._text: list[int] = []
        self._computed = 0  # tokens in the cache: all that a next pass follows, or none

    @torch.inference_mode()
    def run(self, work: Pass) -> Logits:
        if not work.plain:
            raise RuntimeError("takes no tree")
        tokens, rows = work.tokens.tolist(), work.rows.tolist()
        begun = self._computed if self._computed == work.held else 0
        self._text[work.held :] = tokens
        self._computed = 0  # a pass that fails may leave some layers further on than others
        logits = np.zeros((len(rows), self._config.vocab_size), np.float32)
        if begun:
            for place, token in enumerate(tokens):
                wanted = [at for at, row in enumerate(rows) if row == place]
                logits[wanted] = self._pass(begun + place, [token], [0] * len(wanted))
        elif rows:
            self._cache = DynamicCache(config=self._config)
            logits = self._pass(0, self._text, [work.held + row for row in rows])
        else:  # the next pass computes these, too: the first one is the only wide one
            return logits
        self._computed = len(self._text)
        return logits

    def _pass(self, start: int, tokens: list[int], rows: list[int]) -> Logits:
        """float32 [len(rows), V], in host memory."""
        device = self._calling.device
        placed = {"position_ids": torch.arange(start, start + len(tokens), device=device)[None]}
        logits = self._model(
            input_ids=torch.tensor([tokens], device=device),
            **(placed if self._calling.positions else {}),
            **{self._calling.cache: self._cache},
            use_cache=True,
            logits_to_keep=rows,
        ).logits[0]
        self._tap.take()  # nobody reads them here
        return logits.float().cpu().numpy()

    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        raise RuntimeError("has no holes")

    def read(self, places: NDArray[np.int64]) -> Arrays:
        raise RuntimeError("has no cache")

    def write(self, arrays: Arrays) -> None:
        raise RuntimeError("another model's arrays")

    def close(self) -> None:
        self._text, self._computed = [], 0
        self._cache = DynamicCache()
