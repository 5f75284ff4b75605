"""What the networks of published drafts have in common: in torch, beside their target."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.growing import GrowingCache
from backend.errors import DerbyError
from backend.types import LAST_LAYER, Layers


class DraftModule(nn.Module):
    """A draft's network: a row is a token and the target's hidden states of the token before it.

    `reads`: the layers of the target that these are of. `vocabulary` int64 [V'], ascending: the
    target's ids of the logits; None: they are the same. `goes_on`: see DraftNetwork.
    """

    reads: Layers = LAST_LAYER
    vocabulary: NDArray[np.int64] | None = None
    goes_on: bool = True

    def fused(self, states: Tensor) -> Tensor:
        """What the target's hidden states [1, n, reads * D] are to the first layer: [1, n, D]."""
        return states

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """Run n rows, the first at position `start`, behind those in the cache: logits [b, V'] of
        the next b tokens, and what stands for the hidden states of the last of `tokens` in a guess,
        [1, 1, D]. The cache takes the rows, and more behind them if it predicts several tokens.

        `hidden` [1, n, D]: of the token before each of `tokens` [1, n].
        """
        raise NotImplementedError

    def placed(
        self, like: Tensor, embedding: nn.Module, output: nn.Module, rotary: nn.Module
    ) -> None:
        """Be on the device and in the precision of `like`, ready to draft with these parts, which
        are the target's or already there: rotary frequencies stay float32.
        """
        self.to(like)
        self.device, self.dtype = like.device, like.dtype
        self.embed_tokens, self.lm_head, self.rotary = embedding, output, rotary
        self.eval().requires_grad_(requires_grad=False)


def causal(n: int, held: int, like: Tensor, window: int = 0) -> Tensor:
    """What is added to the scores of n rows behind `held`, [1, 1, n, held + n], in the precision of
    `like`: each sees itself and all before it, or the last `window` of these.
    """
    rows = torch.arange(held, held + n, device=like.device)[:, None]
    columns = torch.arange(held + n, device=like.device)[None]
    unseen = columns > rows
    if window:
        unseen |= columns <= rows - window
    bias = torch.zeros(n, held + n, dtype=like.dtype, device=like.device)
    return bias.masked_fill_(unseen, torch.finfo(like.dtype).min)[None, None]


def read_weights(draft: PublishedDraft, called: Callable[[str], str]) -> dict[str, Tensor]:
    """The weights of the draft's files by what they are `called` here; "": they are not read.
    Raises DerbyError if they cannot be.
    """
    files = sorted(draft.folder.glob("*.safetensors"))
    if not files:
        raise DerbyError(
            f"The draft {draft.folder.name} has no safetensors file: convert its weights first, "
            "for pickled ones are never loaded."
        )
    try:
        with ExitStack() as opened:
            parts = [opened.enter_context(safe_open(path, "pt")) for path in files]
            return {
                name: part.get_tensor(key)
                for part in parts
                for key in part.keys()  # noqa: SIM118 (it is no mapping)
                if (name := called(key))
            }
    except (OSError, SafetensorError) as error:
        raise DerbyError(
            f"The draft {draft.folder.name} cannot be read ({error}): restore its files."
        ) from error


def fill(module: nn.Module, weights: dict[str, Tensor], draft: PublishedDraft) -> None:
    """Give a module that was made on the device "meta" these weights. Raises DerbyError if some are
    missing, too many, or of another shape.
    """
    try:
        found = module.load_state_dict(weights, strict=False, assign=True)
        wrong = [*found.missing_keys, *found.unexpected_keys]
    except RuntimeError as error:
        wrong = [str(error).splitlines()[-1].strip()]
    if wrong:
        raise DerbyError(
            f"The weights of the draft {draft.folder.name} are not those that its config.json "
            f"describes ({', '.join(wrong[:3])}): restore its files."
        )


def projection(weight: Tensor) -> nn.Linear:
    """A linear layer of that weight, [out, in], without a copy."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def require_same(draft: PublishedDraft, what: str, theirs: Any, ours: Any) -> None:
    """Raise DerbyError if the draft was made for a target with another `what`."""
    if theirs != ours:
        raise DerbyError(
            f"The draft {draft.folder.name} was made for a target of {what} {theirs}, and this "
            f"target's is {ours}: choose a draft that was trained for it."
        )


def known_vocabulary(draft: PublishedDraft, ids: Tensor, size: int) -> NDArray[np.int64]:
    """The target's ids of the draft's logits, ascending. Raises DerbyError if the target, of a
    vocabulary of this size, does not have them.
    """
    vocabulary = ids.numpy().astype(np.int64)
    if vocabulary[-1] >= size or (np.diff(vocabulary) <= 0).any():
        raise DerbyError(
            f"The draft {draft.folder.name} writes tokens up to {vocabulary.max()}, and this "
            f"target has {size}: choose a draft that was trained for it."
        )
    return vocabulary
