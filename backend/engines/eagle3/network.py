"""An EAGLE-3 draft as a torch module, which training fits and OpenVINO computes, too.

A row stands for a token and the target's hidden states at the token before it. `fc` fuses the
states of three layers into one; one layer attends over the token's embedding beside it, and
`lm_head` makes logits of what that gives. In the next row of a guess the layer's own output takes
the place of the fused states (arXiv 2503.01840, section 3).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Rows of a draft's cache beside those that it sees. A round's guesses lie there, behind the text:
#: more of them than this would displace rows that the text still needs.
SPARE = 32


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """`hidden` is D of the draft, `states` of the target's hidden states that it reads beside one
    another; `vocabulary` are its logits. `norm_before_residual`: what the layer adds to is
    the normalised input. While it drafts it sees the last `window` tokens, so that a call's cost
    does not grow with the text.
    """

    hidden: int
    states: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    eps: float
    theta: float
    norm_before_residual: bool = False
    frequencies: tuple[float, ...] = ()  # of rotary positions, if they are scaled; (): by `theta`
    window: int = 1024

    @property
    def slots(self) -> int:
        """Rows of a cache."""
        return self.window + SPARE

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5

    @property
    def turns(self) -> tuple[float, ...]:
        """By how much a position turns each pair of a head's numbers."""
        half = self.head_dim // 2
        return self.frequencies or tuple(self.theta ** (-i / half) for i in range(half))


class Norm(nn.Module):
    """Root mean square normalisation of the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * self.weight


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary embedding of x [..., n, heads, d] at positions [n], halves paired as Llama does."""
    half = x.shape[-1] // 2
    angles = (positions[:, None].float() * frequencies)[:, None]  # [n, 1, d / 2]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    """A decoder layer as Llama's that reads two vectors a row; its weights are named as in
    published files.
    """

    turns: Tensor

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self._shape = shape
        hidden, wide = shape.hidden, shape.heads * shape.head_dim
        narrow = shape.kv_heads * shape.head_dim
        read = 2 * hidden
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": _linear(read, wide),
                "k_proj": _linear(read, narrow),
                "v_proj": _linear(read, narrow),
                "o_proj": _linear(wide, hidden),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": _linear(hidden, shape.intermediate),
                "up_proj": _linear(hidden, shape.intermediate),
                "down_proj": _linear(shape.intermediate, hidden),
            }
        )
        self.input_layernorm = Norm(hidden, shape.eps)
        self.hidden_norm = Norm(hidden, shape.eps)
        self.post_attention_layernorm = Norm(hidden, shape.eps)
        turns = torch.tensor(shape.turns, device="cpu")  # whose module may be on "meta"
        self.register_buffer("turns", turns, persistent=False)

    def project(self, read: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., n, heads, d], keys and values [..., n, kv_heads, d] of what is read."""
        shape, attention = self._shape, self.self_attn
        q = attention["q_proj"](read).unflatten(-1, (shape.heads, shape.head_dim))
        k = attention["k_proj"](read).unflatten(-1, (shape.kv_heads, shape.head_dim))
        v = attention["v_proj"](read).unflatten(-1, (shape.kv_heads, shape.head_dim))
        q, k = (rotated(each, positions, self.turns).to(v) for each in (q, k))
        return q, k, v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What the layer gives for x [..., n, D] whose heads attended to [..., n, heads, d]."""
        x = x + self.self_attn["o_proj"](attended.flatten(-2)).float()
        h = self.post_attention_layernorm(x)
        gated = functional.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h)
        return x + self.mlp["down_proj"](gated).float()


class Eagle3(nn.Module):
    """`embedding` [V, D] is the target's, or the draft's own."""

    embedding: Tensor

    def __init__(self, shape: Eagle3Shape, embedding: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.fc = _linear(shape.states, shape.hidden)
        self.midlayer = Layer(shape)
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = _linear(shape.hidden, shape.vocabulary)
        # A buffer goes along to another device; it is the target's, so no file holds it.
        self.register_buffer("embedding", embedding, persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """float32 [..., D] of tokens [...]."""
        return functional.embedding(tokens, self.embedding).float()

    def entered(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer adds to, [..., n, D], and what it reads, [..., n, 2 D], of fused
        states or its own output `hidden` [..., n, D] and tokens' embeddings [..., n, D].
        """
        normed = self.midlayer.hidden_norm(hidden)
        read = torch.cat([self.midlayer.input_layernorm(embedded), normed], -1)
        return (normed if self.shape.norm_before_residual else hidden.float()), read

    def logits(self, x: Tensor) -> Tensor:
        """float32 [..., V'] of what the layer gave, [..., D]."""
        return self.lm_head(self.norm(x)).float()

    def forward(
        self,
        embedded: Tensor,
        states: Tensor,
        own: Tensor,
        positions: Tensor,
        bias: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run n rows over a ring of R: logits and state behind the last row, new keys and values.

        `states` [n, S]: the target's at the token before each of those `embedded` [n, D], which
        stand at `positions` [n]; `own` [n, D]: the draft's: of the two, one is zero. `bias`
        [n, R + n] is added to the scores. `keys`, `values` [kv_heads, R, d]: the ring. Gives
        [1, V'], [1, D] and [2, kv_heads, n, d].
        """
        shape, layer, n = self.shape, self.midlayer, embedded.shape[0]
        x, read = self.entered(self.fc(states) + own, embedded)
        q, k, v = layer.project(read, positions)
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        # Query heads that share keys stand together, so that the ring is read as it lies, and never
        # copied: what the new rows add comes beside it.
        q = q.unflatten(1, (shape.kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)
        scores = torch.cat([q @ keys.transpose(1, 2), q @ k.transpose(1, 2)], 2) * shape.scale
        every_head = bias.repeat(shape.heads // shape.kv_heads, 1)
        chances = torch.softmax(scores + every_head, -1)  # [kv_heads, group * n, R + n]
        ring, fresh = chances.split([keys.shape[1], n], 2)
        attended = (ring @ values + fresh @ v).unflatten(1, (-1, n))
        x = layer.finish(x, attended.permute(2, 0, 1, 3).flatten(1, 2))
        return self.logits(x[-1:]), x[-1:], torch.stack([k, v])
