"""DFlash (arXiv 2602.06036): a draft whose cache holds what it makes of the target's hidden states
alone. One pass denoises a block: the last token, and a mask in place of each token behind it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from backend.engines.heads.draft_module import DraftModule
from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.growing import GrowingCache


class DFlash(DraftModule):
    """The network, its parts named as in the published files. Embeddings and output projection
    may be the target's.
    """

    def __init__(self, draft: PublishedDraft) -> None:
        from transformers import Qwen3Config
        from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

        super().__init__()
        self.config: Any = Qwen3Config(**draft.layer)
        self.config._attn_implementation = "sdpa"  # noqa: SLF001 (transformers' own way to choose)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(self.config, i) for i in range(self.config.num_hidden_layers)
        )
        self.fc = nn.Linear(draft.count * size, size, bias=False)
        self.hidden_norm, self.norm = nn.RMSNorm(size, eps), nn.RMSNorm(size, eps)
        self.block, self.mask = draft.block, draft.mask
        self._first = 0 if draft.from_anchor else 1
        self._sees_ahead = draft.sees_ahead

    def fused(self, states: Tensor) -> Tensor:
        """See DraftModule."""
        return self.hidden_norm(self.fc(states))

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """See DraftModule. A row of the cache is at the place of the token whose state it is."""
        n = hidden.shape[1]
        block = pad(tokens[:, -1:], (0, self.block - 1), value=self.mask)
        positions = torch.arange(start - 1, start - 1 + n + self.block, device=hidden.device)[None]
        cos, sin = (each[:, None] for each in self.rotary(hidden, positions))
        x, held = self.embed_tokens(block), cache.get_seq_length()
        for index, layer in enumerate(self.layers):
            part: Any = layer
            given = part.input_layernorm(x)
            attention = part.self_attn
            rows = torch.cat([hidden, given], 1)
            q = attention.q_norm(self._heads(attention.q_proj(given)))
            k = attention.k_norm(self._heads(attention.k_proj(rows)))
            k, v = cache.update(_turned(k, cos, sin), self._heads(attention.v_proj(rows)), index)
            q = _turned(q, cos[:, :, n:], sin[:, :, n:])
            seen = self._seen(index, held + n, hidden)
            out = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
            x = x + attention.o_proj(out.transpose(1, 2).flatten(2))
            x = x + part.mlp(part.post_attention_layernorm(x))
        logits = self.lm_head(self.norm(x[:, self._first :]))
        return logits[0].float(), hidden[:, -1:]

    def _heads(self, x: Tensor) -> Tensor:
        """[1, heads, n, d] of [1, n, heads * d]."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def _seen(self, index: int, known: int, like: Tensor) -> Tensor | None:
        """Which rows each row of the block sees, [block, known + block]; None: all."""
        if self.config.layer_types[index] != "sliding_attention":
            return None
        columns = torch.arange(known + self.block, device=like.device)
        seen = (columns >= known - self.config.sliding_window).repeat(self.block, 1)
        ahead = columns > known + torch.arange(self.block, device=like.device)[:, None]
        return seen if self._sees_ahead else seen & ~ahead


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [1, heads, n, d] turned to their places."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
