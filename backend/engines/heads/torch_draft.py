"""A published draft that runs in torch: beside a target on torch, in its precision; for one on
another engine on the CPU, in fp32.
"""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engines.base import Engine
from backend.engines.draft import DraftNetwork
from backend.engines.heads.draft_module import DraftModule
from backend.engines.heads.eagle3 import eagle3_module
from backend.engines.heads.medusa import medusa_module
from backend.engines.heads.mtp import mtp_module
from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.engine import TorchEngine, outer_parts
from backend.engines.torch.growing import GrowingCache
from backend.errors import DerbyError
from backend.models.files import Say
from backend.types import HiddenStates, Logits

#: Rows that a round's first pass usually feeds.
USUAL = 3


class TorchDraft:
    """A loaded draft; it holds no text. `seconds`: what a pass takes in a round, on average."""

    def __init__(self, draft: PublishedDraft, target: Engine, model: Any) -> None:
        """`model` is the transformers model of the target, which may lack its layers. Raises
        DerbyError if the draft's files cannot be read, or are for another target.
        """
        self.name, self.title = draft.title, f"{draft.title} draft {draft.folder.name}"
        build = {"mtp": mtp_module, "medusa": medusa_module}.get(draft.kind, eagle3_module)
        self.module: DraftModule = build(draft, model)
        self.states = len(self.module.reads) * model.get_input_embeddings().embedding_dim
        self.watch(target)
        self.seconds = 0.0
        self.seconds = self._measured()

    def watch(self, target: Engine) -> None:
        """Have the target show what the draft reads."""
        target.show(self.module.reads)

    def open(self) -> "TorchDraftNetwork":
        """A network for a new text."""
        return TorchDraftNetwork(self)

    def _measured(self, repeats: int = 20) -> float:
        """Mean seconds of a pass as rounds make them: the first over a few rows, then single
        ones.
        """
        network, states = self.open(), np.zeros((USUAL, self.states), np.float32)
        times: list[tuple[float, float]] = []
        for _ in range(repeats):
            begun = perf_counter()
            network.read(0, [0] * USUAL, states, wanted=True)
            between = perf_counter()
            network.guess(USUAL, 0)
            times.append((between - begun, perf_counter() - between))
            network.rewind(0)
        return sum(median(part) for part in zip(*times[repeats // 2 :], strict=True)) / 2


class TorchDraftNetwork(DraftNetwork):
    """A text's cache in a TorchDraft: a row stands for a token and the target's hidden states of
    the token before it. What a pass adds behind them, to predict several tokens, is forgotten.
    """

    def __init__(self, draft: TorchDraft) -> None:
        self.name, self.title, self.seconds = draft.name, draft.title, draft.seconds
        self._module = draft.module
        self.layers, self.vocabulary = draft.module.reads, draft.module.vocabulary
        self.goes_on = draft.module.goes_on
        self._cache = GrowingCache()
        self._first = self._end = 0  # positions of the cache's first row, and behind its last one
        self._state = torch.zeros(0)  # in place of the target's hidden states of the last token

    @torch.inference_mode()
    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        if position != self._end:
            self.rewind(0)
            self._first = self._end = position
        module = self._module
        given = torch.from_numpy(np.ascontiguousarray(states))[None].to(module.device, module.dtype)
        logits = self._pass(module.fused(given), tokens)
        return logits if wanted else logits[:0]

    @torch.inference_mode()
    def guess(self, position: int, token: int) -> Logits:
        return self._pass(self._state, [token])

    def _pass(self, hidden: Tensor, tokens: Sequence[int]) -> Logits:
        ids = torch.tensor([tokens], device=hidden.device)
        logits, self._state = self._module(hidden, ids, self._end, self._cache)
        self._end += len(tokens)
        self._cut()
        return logits.cpu().numpy()

    def rewind(self, length: int) -> int:
        self._end = min(self._end, max(length, self._first))
        self._cut()
        return length

    def _cut(self) -> None:
        for layer in self._cache.rows.values():
            layer.length = self._end - self._first

    def close(self) -> None:
        self._cache = GrowingCache()


def open_published(draft: PublishedDraft, target: Engine, say: Say) -> TorchDraft:
    """The draft, loaded for its target. Raises DerbyError if it cannot be."""
    if isinstance(target, TorchEngine):
        return TorchDraft(draft, target, target.model)
    if draft.kind == "mtp" or not target.capabilities.layers:
        raise DerbyError(
            f"The {draft.title} draft {draft.folder.name} is made of parts of its target on torch, "
            f"where {target.spec} does not run: choose the torch engine."
        )
    return TorchDraft(draft, target, outer_parts(target.spec, say))
