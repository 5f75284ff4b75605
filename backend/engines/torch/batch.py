"""Passes of several sequences over a transformers model and one growing cache."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.batch import BatchPass
from backend.engines.torch.growing import GrowingCache, additive
from backend.engines.torch.hidden_states import HiddenStatesTap
from backend.engines.torch.session import Calling
from backend.types import Arrays, HiddenStates, Logits


class TorchBatch:
    def __init__(self, model: Any, calling: Calling, tap: HiddenStatesTap) -> None:
        self._model = model
        self._calling = calling
        self._tap = tap
        self._cache = GrowingCache()

    @torch.inference_mode()
    def run(self, batch: BatchPass) -> tuple[Logits, HiddenStates]:
        device = self._calling.device
        logits = self._model(
            input_ids=torch.from_numpy(batch.tokens).to(device),
            position_ids=torch.from_numpy(batch.positions).to(device),
            attention_mask=self._mask(batch),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=batch.rows.tolist(),
        ).logits
        return logits.float().cpu().numpy(), self._tap.take().float().cpu().numpy()

    def _mask(self, batch: BatchPass) -> Any:
        """What to pass as attention_mask: additive [b, 1, n, P + n], by layer type if need be."""
        calling, window = self._calling, self._calling.window
        full = additive(batch.visible, calling)[:, None]
        if window is None:
            return full
        sliding = additive(batch.within(window), calling)[:, None]
        if not calling.by_layer_type:
            return sliding
        return {"full_attention": full, "sliding_attention": sliding}

    @torch.inference_mode()
    def gather(self, index: NDArray[np.int64]) -> None:
        places = torch.from_numpy(index).to(self._calling.device)
        self._cache.gather(places)

    @torch.inference_mode()
    def load(self, arrays: Arrays, requests: int) -> None:
        repeated = {name: np.repeat(rows, requests, axis=0) for name, rows in arrays.items()}
        self._cache.load(repeated, self._calling.device, self._calling.dtype)

    def close(self) -> None:
        self._cache = GrowingCache()
