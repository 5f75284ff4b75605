"""A text over transformers' own cache: of a model whose state cannot be branched or cut back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from backend.engines.session import Session
from backend.engines.torch.session import Target
from backend.types import LAST_LAYER, Arrays, HiddenStates, Layers, Logits


class PlainSession(Session):
    """Computes a text's first tokens in one pass, as `generate` does, and each later one in a pass
    of its own. A text that was cut is computed again from its beginning.
    """

    def __init__(self, target: Target, max_context: int) -> None:
        super().__init__(max_context, "none")
        self._target = target
        self._config = target.model.config.get_text_config(decoder=True)
        self._cache: Any = None
        self._computed = 0  # tokens in the cache

    @property
    def bytes(self) -> int:
        return 0

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        self._tree(tokens, parents, rows)
        start, logits = self.length, np.zeros((len(rows), self._config.vocab_size), np.float32)
        computed, self._computed = (
            self._computed,
            0,
        )  # should the pass fail half-way
        if computed == start > 0:
            for place, token in enumerate(tokens):
                wanted = [at for at, row in enumerate(rows) if row == place]
                logits[wanted] = self._pass(start + place, [token], [0] * len(wanted))
            self._computed = start + len(tokens)
        elif rows:  # else the next pass computes these, too: the first one is the only wide one
            self._cache = DynamicCache(config=self._config)
            logits = self._pass(0, [*self.tokens, *tokens], [start + row for row in rows])
            self._computed = start + len(tokens)
        self._pending(tokens, parents)
        return logits

    def _pass(self, start: int, tokens: list[int], rows: list[int]) -> Logits:
        """float32 [len(rows), V], in host memory."""
        target = self._target
        placed = torch.arange(start, start + len(tokens), device=target.device)[None]
        logits = target.model(
            input_ids=torch.tensor([tokens], device=target.device),
            **({"position_ids": placed} if target.positions else {}),
            **{target.cache: self._cache},
            use_cache=True,
            logits_to_keep=rows,
        ).logits[0]
        return logits.float().cpu().numpy()

    def hidden_states(self, layers: Layers = LAST_LAYER) -> HiddenStates:
        raise RuntimeError("no hidden states")

    def save(self, length: int) -> Arrays:
        raise RuntimeError("has no rows")

    def load(self, tokens: Sequence[int], arrays: Arrays) -> None:
        raise RuntimeError("has no rows")

    def _keep(self, rows: Sequence[int]) -> None: ...

    def _cut(self, length: int) -> None:
        self.tokens.clear()

    def close(self) -> None:
        self._cache = None
