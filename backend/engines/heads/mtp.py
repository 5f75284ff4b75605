"""MTP: the layer by which a model predicts the token behind the next one, beside the model itself
(DeepSeek-V3, arXiv 2412.19437; Qwen3-Next and Qwen3.5). It is a decoder layer as the model's own.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn

from backend.engines.heads.draft_module import (
    DraftModule,
    causal,
    fill,
    read_weights,
    require_same,
)
from backend.engines.heads.published import MTP_PREFIXES, PublishedDraft
from backend.engines.torch.growing import GrowingCache
from backend.engines.torch.hidden_states import layers_of

#: What its parts outside the decoder layer are called here, by what their makers call them.
PARTS = {
    **dict.fromkeys(("fc", "eh_proj", "input_proj"), "fc"),
    **dict.fromkeys(("norm", "shared_head.norm", "final_layernorm"), "norm"),
    **dict.fromkeys(("pre_fc_norm_hidden", "hnorm", "hidden_layernorm"), "hidden_norm"),
    **dict.fromkeys(("pre_fc_norm_embedding", "enorm", "token_layernorm"), "token_norm"),
}

#: Parts that repeat the target's.
REPEATED = {"embed_tokens", "shared_head.head"}

#: What a layer has in common with its target, as configurations and sentences call it.
SIZES = {"model_type": "type", "hidden_size": "hidden size", "vocab_size": "vocabulary size"}

#: How checkpoints call an expert's weights, of which transformers makes one tensor of all experts.
EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class Mtp(DraftModule):
    """The layer. It reads the hidden states behind the target's last norm, and then those behind
    its own: DeepSeek's reads what it had before its own norm.
    """

    def __init__(
        self, layer: nn.Module, norm: type[nn.Module], config: Any, *, normed: bool
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.layer: Any = layer
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.token_norm, self.hidden_norm, self.norm = (norm(size, eps) for _ in range(3))
        self._normed = normed

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """See DraftModule."""
        n = tokens.shape[1]
        positions = torch.arange(start, start + n, device=hidden.device)[None]
        token = self.token_norm(self.embed_tokens(tokens))
        x = self.layer(
            self.fc(torch.cat([token, self.hidden_norm(hidden)], -1)),
            attention_mask=causal(n, cache.get_seq_length(), hidden),
            position_ids=positions,
            past_key_values=cache,
            position_embeddings=self.rotary(hidden, positions),
        )
        last = x[:, -1:]
        normed = self.norm(last)
        return self.lm_head(normed)[0].float(), normed if self._normed else last


def mtp_module(draft: PublishedDraft, model: Any) -> Mtp:
    """The layer, loaded beside the transformers model that it is of. Raises DerbyError if it cannot
    be, or is another model's.
    """
    target = model.config.get_text_config(decoder=True)
    for name, what in SIZES.items():
        require_same(draft, what, draft.layer.get(name, ours := getattr(target, name)), ours)
    config = type(target)(**draft.layer) if draft.layer else target
    for name in ("_attn_implementation", "_experts_implementation"):
        setattr(config, name, getattr(target, name, None))
    # The last layer with attention: others of the model may be recurrent.
    own: Any = next(one for one in reversed(layers_of(model)) if hasattr(one, "self_attn"))
    decoder = model.get_decoder()
    with torch.device("meta"):
        layer = type(own)(config, own.self_attn.layer_idx)
        made = Mtp(layer, type(decoder.norm), config, normed=draft.prefix in MTP_PREFIXES)
    made.layer.self_attn.layer_idx = 0  # of its own cache
    weights = read_weights(draft, lambda name: _called(name, draft.prefix))
    fill(made, _with_stacked_experts(weights), draft)
    embedding = model.get_input_embeddings()
    output = model.get_output_embeddings()
    made.placed(embedding.weight, embedding, output, decoder.rotary_emb)
    return made


def _called(name: str, prefix: str) -> str:
    """What a tensor of the checkpoint is called here; "": it is none of the layer's, or the
    target's own again.
    """
    if not name.startswith(prefix):
        return ""
    part, _, kind = name.removeprefix(prefix).removeprefix("layers.0.").rpartition(".")
    if part in REPEATED:
        return ""
    return f"{PARTS[part]}.{kind}" if part in PARTS else f"layer.{part}.{kind}"


def _with_stacked_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, those of experts in one tensor for each kind, as transformers has them."""
    experts: dict[tuple[str, str], dict[int, Tensor]] = {}
    others: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if found := EXPERT.fullmatch(name):
            experts.setdefault((found[1], found[3]), {})[int(found[2])] = weight
        else:
            others[name] = weight
    stacked = {key: torch.stack([each[i] for i in sorted(each)]) for key, each in experts.items()}
    for place in {place for place, _ in stacked}:
        gate_up = [stacked[place, kind] for kind in ("gate", "up")]
        others[f"{place}.gate_up_proj"] = torch.cat(gate_up, 1)
        others[f"{place}.down_proj"] = stacked[place, "down"]
    return others
