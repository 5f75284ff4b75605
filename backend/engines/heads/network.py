"""The trained head as a torch module: what training fits, a device runs and OpenVINO computes, too.

A few of the target's own layers, which read the target's last hidden states, after EAGLE (arXiv
2401.15077): from the embedding of a token and the target's last hidden state at the token before it
(its feature) they predict the token's own feature, and the target's output embedding makes logits
of that. Drafting feeds the predicted feature back in.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.engines.heads.file import HeadFile, HeadShape, embeddings
from backend.models.files import Say, model_files
from backend.types import ModelSpec

KeyValue = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """Root mean square normalisation of the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * self.weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [..., n, heads, d] at positions [n], halves paired as Llama does."""
    half = x.shape[-1] // 2
    places = torch.arange(half, dtype=torch.float32, device=positions.device)
    frequencies = theta ** (-places / half)
    angles = (positions[:, None].float() * frequencies)[:, None]  # [n, 1, d / 2]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    """One decoder layer as Llama's, its weights named as they are there."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self._shape = shape
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.q_proj = linear(shape.hidden, wide)
        self.k_proj = linear(shape.hidden, narrow)
        self.v_proj = linear(shape.hidden, narrow)
        self.o_proj = linear(wide, shape.hidden)
        self.gate_proj = linear(shape.hidden, shape.intermediate)
        self.up_proj = linear(shape.hidden, shape.intermediate)
        self.down_proj = linear(shape.intermediate, shape.hidden)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., n, heads, d], keys and values [..., n, kv_heads, d] of x [..., n, D]."""
        shape, h = self._shape, self.input_layernorm(x)
        q = self.q_proj(h).unflatten(-1, (shape.heads, shape.head_dim))
        k = self.k_proj(h).unflatten(-1, (shape.kv_heads, shape.head_dim))
        v = self.v_proj(h).unflatten(-1, (shape.kv_heads, shape.head_dim))
        turn = shape.theta
        return rotated(q, positions, turn).to(v), rotated(k, positions, turn).to(v), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What the layer gives for x [..., n, D] whose heads attended to [..., n, heads, d]."""
        x = x + self.o_proj(attended.flatten(-2)).float()
        h = self.post_attention_layernorm(x)
        gated = functional.silu(self.gate_proj(h)) * self.up_proj(h)
        return x + self.down_proj(gated).float()


class TorchHead(nn.Module):
    """`embedding` [V, D] is the target's; `output` [V', D] holds its output embeddings of those
    tokens that can be drafted.
    """

    embedding: Tensor
    output: Tensor

    def __init__(self, shape: HeadShape, embedding: Tensor, output: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.feature_norm = Norm(shape.hidden, shape.eps)
        self.reads = nn.ModuleDict(
            {str(i): nn.Linear(shape.hidden, shape.hidden, bias=False) for i in shape.reads}
        )
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)
        # Buffers go along to another device; they are the target's, so no file holds them.
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("output", output, persistent=False)

    def entered(self, index: int, x: Tensor, features: Tensor) -> Tensor:
        """What layer `index` is given: x, and the feature if it reads it."""
        return x + self.reads[str(index)](features).float() if str(index) in self.reads else x

    def logits(self, features: Tensor) -> Tensor:
        """float32 [..., V'] of the target's last hidden states [..., D], or predicted ones."""
        return functional.linear(features.to(self.output.dtype), self.output).float()

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run n rows behind a cache of P: logits and feature of the last row, new keys and values.

        `features` [n, D]: the target's (or the head's own) feature at a token; `tokens` [n]: the
        token after it, which stands at `positions` [n]. `keys`, `values`
        [layers, kv_heads, P, d]; `bias` [n, P + n] is added to the scores. Gives [1, V'], [1, D]
        and twice [layers, kv_heads, n, d].
        """
        x, seen = functional.embedding(tokens, self.embedding), self.feature_norm(features)
        new: list[KeyValue] = []
        for index, module in enumerate(self.layers):
            layer, x = as_layer(module), self.entered(index, x, seen)
            q, k, v = layer.project(x, positions)
            new.append((k.transpose(0, 1), v.transpose(0, 1)))
            all_k = torch.cat([keys[index], new[-1][0]], 1)  # [kv_heads, P + n, d]
            all_v = torch.cat([values[index], new[-1][1]], 1)
            # Query heads that share keys stand together, so that the cache is read as it lies.
            grouped = q.unflatten(1, (self.shape.kv_heads, -1)).permute(1, 2, 0, 3)
            scores = grouped.flatten(1, 2) @ all_k.transpose(1, 2) * self.shape.scale
            scores = scores + bias.repeat(grouped.shape[1], 1)  # [kv_heads, group * n, P + n]
            attended = torch.softmax(scores, -1) @ all_v
            attended = attended.unflatten(1, (grouped.shape[1], -1)).permute(2, 0, 1, 3)
            x = layer.finish(x, attended.flatten(1, 2))
        feature = self.norm(x[-1:])
        return (
            self.logits(feature),
            feature,
            torch.stack([k for k, _ in new]),
            torch.stack([v for _, v in new]),
        )


def as_layer(module: nn.Module) -> Layer:
    """Say to type checkers what a ModuleList holds."""
    assert isinstance(module, Layer)  # noqa: S101
    return module


def torch_head(file: HeadFile, target: ModelSpec, say: Say) -> TorchHead:
    """The head, float32 on the CPU, with the embeddings of the target that `target` names."""
    embedding, output = embeddings(model_files(target.name, say).folder)
    tables = torch.from_numpy(embedding), torch.from_numpy(output[file.tokens])
    head = TorchHead(file.shape, *tables)
    head.load_state_dict({name: torch.from_numpy(value) for name, value in file.weights.items()})
    return head
