"""EAGLE-3 (arXiv 2503.01840): a draft of one or a few decoder layers that reads the hidden states
of several of the target's layers; and P-EAGLE (arXiv 2602.01469), which drafts in one pass.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backend.engines.heads.dflash import DFlash
from backend.engines.heads.draft_module import (
    DraftModule,
    causal,
    fill,
    known_vocabulary,
    projection,
    read_weights,
    require_same,
)
from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.growing import GrowingCache
from backend.errors import DerbyError

#: What the authors' files call the first layer, and what it is called here.
RENAMED = {"midlayer.": "layers.0."}

#: Weights that only training needs, or that repeat the map of the vocabulary.
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.")


class Eagle3(DraftModule):
    """The network, its parts named as in the published files. Embeddings and output projection
    may be the target's.

    `unknown` [1, 1, D]: what stands in the first layer for hidden states that nobody knows.
    """

    unknown: Tensor

    def __init__(self, draft: PublishedDraft) -> None:
        """Raises DerbyError for a family of layers that is not known here."""
        super().__init__()
        layer, self.config = _family(draft)
        size, eps, reads = self.config.hidden_size, self.config.rms_norm_eps, draft.count
        self.layers = nn.ModuleList(
            layer(self.config, i) for i in range(self.config.num_hidden_layers)
        )
        first: Any = self.layers[0]
        first.hidden_norm = _norm(size, eps)
        for name in ("q_proj", "k_proj", "v_proj"):  # they read the token's embedding, too
            usual = getattr(first.self_attn, name)
            wide = nn.Linear(2 * size, usual.out_features, bias=usual.bias is not None)
            setattr(first.self_attn, name, wide)
        self.fc = nn.Linear(reads * size, size, bias=False)
        self.norm = _norm(size, eps)
        self.input_norm = _norm(reads * size, eps) if draft.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(_norm(size, eps) for _ in range(reads * draft.fc_norm))
        self.block, self.mask = draft.block, draft.mask
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, reads * size))
        self._normed = draft.norm_before_residual, draft.norm_output

    def fused(self, states: Tensor) -> Tensor:
        """What the target's hidden states [1, n, reads * D] are to the first layer: [1, n, D]."""
        states = self.input_norm(states)
        if len(self.fc_norm):
            parts = states.chunk(len(self.fc_norm), -1)
            pairs = zip(self.fc_norm, parts, strict=True)
            states = torch.cat([norm(part) for norm, part in pairs], -1)
        return self.fc(states)

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """See DraftModule. Of the tokens behind the next one nothing is known but their places."""
        unknown = self.unknown.expand(1, self.block - 1, -1)
        hidden = torch.cat([hidden, unknown], 1)
        tokens = nn.functional.pad(tokens, (0, self.block - 1), value=self.mask)
        n = tokens.shape[1]
        positions = torch.arange(start, start + n, device=hidden.device)[None]
        before_residual, normed_output = self._normed
        turned = self.rotary(hidden, positions)
        first: Any = self.layers[0]
        seen = first.hidden_norm(hidden)
        x = torch.cat([first.input_layernorm(self.embed_tokens(tokens)), seen], -1)
        given = {"position_embeddings": turned, "past_key_values": cache}
        masks = self._masks(n, cache.get_seq_length(), hidden)
        attended, _ = first.self_attn(hidden_states=x, attention_mask=masks[0], **given)
        x = (seen if before_residual else hidden) + attended
        x = x + first.mlp(first.post_attention_layernorm(x))
        for layer, mask in zip(self.layers[1:], masks[1:], strict=True):
            x = layer(x, attention_mask=mask, position_ids=positions, **given)
        last = x[:, -self.block :]
        normed = self.norm(last)
        predicted = (normed if normed_output else last)[:, -1:]
        return self.lm_head(normed)[0].float(), self.unknown if self.block > 1 else predicted

    def _masks(self, n: int, held: int, like: Tensor) -> list[Tensor]:
        """What each layer adds to the scores of n rows behind `held`."""
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * len(self.layers)
        window = getattr(self.config, "sliding_window", None) or 0
        sliding = (kind == "sliding_attention" for kind in kinds)
        return [causal(n, held, like, window if slides else 0) for slides in sliding]


def _family(draft: PublishedDraft) -> tuple[Callable[[Any, int], nn.Module], Any]:
    """What makes a decoder layer, and its configuration."""
    from transformers import LlamaConfig, Qwen3Config
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    families: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaDecoderLayer, LlamaConfig),
        "qwen3": (Qwen3DecoderLayer, Qwen3Config),
    }
    if draft.family not in families:
        raise DerbyError(
            f"The draft {draft.folder.name} has layers of type {draft.family!r}: EAGLE-3 drafts "
            f"here have those of {' or '.join(families)}."
        )
    layer, configuration = families[draft.family]
    config = configuration(**draft.layer)
    config._attn_implementation = "sdpa"  # noqa: SLF001 (transformers' own way to choose)
    return layer, config


def _rotary(config: Any) -> nn.Module:
    """Both families turn their heads alike."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config)


def _norm(size: int, eps: float) -> nn.Module:
    return nn.RMSNorm(size, eps)


def eagle3_module(draft: PublishedDraft, model: Any) -> DraftModule:
    """The draft, loaded beside its target, a transformers model: EAGLE-3's, P-EAGLE's or DFlash's.
    Embeddings and output projection that it lacks are the target's. Raises DerbyError if it cannot
    be, or is for another target.
    """
    config = model.config.get_text_config(decoder=True)
    reads = draft.layers(config.num_hidden_layers)
    weights = read_weights(draft, _called)
    vocabulary = _vocabulary(weights, draft, config)
    embedding: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    like = embedding.weight
    if (own := weights.pop("embed_tokens.weight", None)) is not None:
        if len(own) < len(like):
            require_same(draft, "vocabulary size", len(own), len(like))
        embedding = nn.Embedding.from_pretrained(own).to(like)
    if (own := weights.pop("lm_head.weight", None)) is not None:
        output = projection(own.to(like))
    elif vocabulary is not None:
        output = projection(output.weight[torch.from_numpy(vocabulary).to(like.device)])
    if draft.block > 1 and draft.mask >= len(like):
        raise DerbyError(
            f"The draft {draft.folder.name} reads token {draft.mask} in place of tokens to come, "
            f"and this target has {len(like)}: choose a draft that was trained for it."
        )
    states = draft.count * config.hidden_size
    if draft.block == 1:  # nothing is drafted unseen
        weights["mask_hidden"] = torch.zeros(1, 1, states)
    made_for = weights["fc.weight"].shape[1] if "fc.weight" in weights else states
    if made_for != states:
        raise DerbyError(
            f"The draft {draft.folder.name} reads {made_for} numbers of its target's hidden "
            f"states, and this target shows {states}: choose a draft that was trained for it."
        )
    with torch.device("meta"):
        made = DFlash(draft) if draft.kind == "dflash" else Eagle3(draft)
    fill(made, weights, draft)
    made.placed(like, embedding, output, _rotary(made.config).to(like.device))
    made.reads, made.vocabulary = reads, vocabulary
    if isinstance(made, Eagle3):
        with torch.inference_mode():
            made.unknown = made.fused(made.mask_hidden)
    return made


def _called(name: str) -> str:
    """What a tensor of the files is called here; "": it is not needed."""
    for old, new in RENAMED.items():
        name = name.replace(old, new, 1)
    return "" if name.startswith(UNUSED) else name


def _vocabulary(
    weights: dict[str, Tensor], draft: PublishedDraft, config: Any
) -> NDArray[np.int64] | None:
    """The target's ids of the draft's logits, taken out of the weights; None: they are the same.
    Raises DerbyError if the target does not have them.
    """
    offsets = weights.pop("d2t", None)
    if offsets is None:
        return None
    # Published as the distance of each id to the target's.
    ids = offsets + torch.arange(len(offsets))
    return known_vocabulary(draft, ids, config.vocab_size)
