"""Medusa (arXiv 2401.10774): heads beside the target's own output projection. Each reads the same
hidden state, and predicts a token one place further on.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from backend.engines.heads.draft_module import (
    DraftModule,
    fill,
    known_vocabulary,
    read_weights,
    require_same,
)
from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.growing import GrowingCache

#: How vLLM and the method's authors name a layer of a head's blocks: head, layer, weight or bias.
LAYER = re.compile(r"(?:blocks\.)?(\d+)\.(?:layers\.(\d+)|(\d+)\.linear)\.(weight|bias)")

#: And its output projection. Of a projection that all heads share there is one alone.
PROJECTION = re.compile(r"(?:lm_heads\.(\d+)|(\d+)\.\d+)\.weight")

#: The target's ids of the logits, if these are fewer.
MAP = "token_map"


class Residual(nn.Linear):
    """A residual block: x + SiLU(W x + b)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (as the base class calls it)
        return input + silu(super().forward(input))


class Medusa(DraftModule):
    """The heads: residual blocks, then a projection to logits [V']."""

    goes_on = False

    def __init__(self, heads: int, layers: int, sizes: tuple[int, int], *, bias: bool) -> None:
        """`sizes`: of a hidden state, and of the logits."""
        super().__init__()
        size, rows = sizes
        blocks = ([Residual(size, size, bias) for _ in range(layers)] for _ in range(heads))
        self.blocks = nn.ModuleList(nn.Sequential(*block) for block in blocks)
        self.projections = nn.ModuleList(nn.Linear(size, rows, bias=False) for _ in range(heads))

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """See DraftModule. The last hidden state alone counts, and the cache stays empty."""
        last = hidden[:, -1:]
        heads = zip(self.blocks, self.projections, strict=True)
        return torch.cat([project(block(last[0])) for block, project in heads]).float(), last


def medusa_module(draft: PublishedDraft, model: Any) -> Medusa:
    """The heads, loaded beside their target, a transformers model. A projection that they lack is
    the target's. Raises DerbyError if they cannot be read, or are for another target.
    """
    weights = read_weights(draft, _called)
    output: Any = model.get_output_embeddings()
    like: Tensor = output.weight
    first = weights.get("blocks.0.0.weight", like)
    require_same(draft, "hidden size", first.shape[1], like.shape[1])
    ids, rows, vocabulary = weights.pop(MAP, None), len(like), None
    if ids is not None:
        vocabulary, rows = known_vocabulary(draft, ids.sort().values, rows), len(ids)
    places = [tuple(map(int, name.split(".")[1:3])) for name in weights if "blocks." in name]
    heads, layers = (1 + max(part) for part in zip((0, 0), *places, strict=True))
    shared = weights.get("projections.0.weight", like)
    for name in (f"projections.{i}.weight" for i in range(heads)):
        own = weights.get(name, shared)
        if ids is not None:  # the rows of other tokens may have been left out already
            own = (own[ids] if len(own) > rows else own)[ids.argsort()]
        require_same(draft, "vocabulary size", len(own), rows)
        weights[name] = own
    with torch.device("meta"):
        made = Medusa(heads, layers, (like.shape[1], rows), bias="blocks.0.0.bias" in weights)
    fill(made, weights, draft)
    made.placed(like, model.get_input_embeddings(), output, nn.Identity())
    made.vocabulary = vocabulary
    return made


def _called(name: str) -> str:
    """What a tensor of the files is called here."""
    name = re.sub(r"^(medusa_)?heads?\.", "", name)
    if found := LAYER.fullmatch(name):
        head, ours, theirs, kind = found.groups()
        return f"blocks.{head}.{ours or theirs}.{kind}"
    if found := PROJECTION.fullmatch(name):
        return f"projections.{found[1] or found[2]}.weight"
    return "projections.0.weight" if name == "lm_head.weight" else name
