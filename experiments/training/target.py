"""The target as training runs it: fast rather than exact, many conversations at once.

All conversations of a batch are equally long at every step, so nothing is padded or masked; those
that are over leave the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.models.files import Say, model_files
from backend.text import HfTokenizer
from backend.types import HiddenStates
from experiments.training.chats import template_of
from experiments.training.shards import groups

#: Tokens whose features are computed at once.
AT_ONCE = 32_768

#: Texts that are sampled at a time: on the processor so many rows of logits stay in its cache; on a
#: GPU kernels should be few.
TOGETHER = {"cpu": 8, "cuda": 4096}


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
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
        self._model = model.to(device).eval()
        self.forget()

    def forget(self) -> None:
        """Drop all texts and their cache: the next step begins new ones."""
        from transformers import DynamicCache

        self._cache, self._size = DynamicCache(), 0

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

    def features(self, texts: Sequence[NDArray[np.int64]]) -> list[HiddenStates]:
        """HiddenStates [n, D] of each text [n]. Reads texts of similar length together, padded
        behind, which changes nothing: no token attends to later ones.
        """
        found: dict[int, HiddenStates] = {}
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for places in groups(order, lambda place: len(texts[place]), AT_ONCE):
            some = [texts[place] for place in places]
            for place, states in zip(places, self._read(some), strict=True):
                found[place] = states[: len(texts[place])]
        return [found[place] for place in range(len(texts))]

    @torch.inference_mode()
    def _read(self, texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """[B, n, D] of B texts, padded behind."""
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        read = self._model.get_decoder()
        output = read(torch.from_numpy(ids).to(self._model.device), use_cache=False)
        return output.last_hidden_state.float().cpu().numpy()
