"""An EAGLE-3 draft as a torch module, which training fits and OpenVINO computes, too.

A row stands for a token and the target's hidden states at the token before it. `fc` fuses the
states of three layers into one; the first layer attends over the token's embedding beside it, and
`lm_head` makes logits of what it gives. In the next row of a guess the layer's own output takes the
place of the fused states (arXiv 2503.01840, section 3).
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
    another; `vocabulary` are its logits. `norm_before_residual`: what the first layer adds to is
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
    layers: int = 1
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
    """A decoder layer as Llama's, its weights named as in published files; the first one reads two
    vectors a row.
    """

    turns: Tensor

    def __init__(self, shape: Eagle3Shape, *, first: bool) -> None:
        super().__init__()
        self._shape = shape
        hidden, wide = shape.hidden, shape.heads * shape.head_dim
        narrow = shape.kv_heads * shape.head_dim
        read = 2 * hidden if first else hidden
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
        if first:
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
        self.layers = nn.ModuleList(Layer(shape, first=i == 0) for i in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = _linear(shape.hidden, shape.vocabulary)
        # A buffer goes along to another device; it is the target's, so no file holds it.
        self.register_buffer("embedding", embedding, persistent=False)

    def layer(self, index: int) -> Layer:
        layer = self.layers[index]
        assert isinstance(layer, Layer)  # noqa: S101 (says to type checkers what the list holds)
        return layer

    def entered(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the first layer adds to, [..., n, D], and what it reads, [..., n, 2 D], of fused
        states or its own output `hidden` [..., n, D] and `tokens` [..., n].
        """
        first, embedded = self.layer(0), functional.embedding(tokens, self.embedding)
        normed = first.hidden_norm(hidden)
        read = torch.cat([first.input_layernorm(embedded), normed], -1)
        return (normed if self.shape.norm_before_residual else hidden.float()), read

    def logits(self, x: Tensor) -> Tensor:
        """float32 [..., V'] of what the last layer gave, [..., D]."""
        return self.lm_head(self.norm(x)).float()
