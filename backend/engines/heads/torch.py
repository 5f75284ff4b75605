"""The trained head as a torch module, which training fits and OpenVINO computes, too; and on a
device: passes of fixed widths over rings that stay there, captured as graphs on CUDA.

A few of the target's own layers, which read the target's last hidden states, after EAGLE (arXiv
2401.15077): from the embedding of a token and the target's last hidden state at the token before it
(its feature) they predict the token's own feature, and the target's output embedding makes logits
of that. Drafting feeds the predicted feature back in.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from backend.engines.eagle3.network import Norm, rotated
from backend.engines.heads.head import (
    Floats,
    HeadFile,
    HeadShape,
    bias_of,
    call_seconds,
    embeddings,
)
from backend.engines.torch.captured import (
    Capture,
    PassTensors,
    Run,
    capture_for,
    current,
    host_rows,
    wait,
)
from backend.models.files import Say, model_files
from backend.types import HiddenStates, Logits, ModelSpec

KeyValue = tuple[Tensor, Tensor]


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


#: Rows that passes are padded to: no drafter feeds more at once.
WIDTHS = (1, 2, 4, 8, 16, 32, 64)

#: Idle rings that wait, with their graphs, for the next texts.
IDLE = 8


def open_device_head(file: HeadFile, target: ModelSpec, place: str, say: Say) -> "DeviceHead":
    """The head of `target`, float32, on the device that torch calls `place`."""
    embedding, output = embeddings(model_files(target.name, say).folder)
    tables = torch.from_numpy(embedding), torch.from_numpy(output[file.tokens])
    head, device = TorchHead(file.shape, *tables), torch.device(place)
    head.load_state_dict({name: torch.from_numpy(value) for name, value in file.weights.items()})
    return DeviceHead(head.to(device).eval(), file.tokens, capture_for(device))


class DeviceHead:
    """A TorchHead whose rings lie beside it; they share its weights and the buffers of each width,
    for passes never run at once.
    """

    def __init__(self, module: TorchHead, vocabulary: NDArray[np.int64], capture: Capture) -> None:
        self.shape = module.shape
        self.vocabulary = vocabulary
        self.module = module
        self.capture = capture
        self.device = module.output.device
        self._tensors: dict[int, PassTensors] = {}
        self.idle: list[DeviceRing] = []
        self.seconds = 0.0
        self.seconds = call_seconds(self, WIDTHS)

    @torch.inference_mode()
    def open(self) -> "DeviceRing":
        """An empty ring whose passes are captured, nobody else's until it is closed."""
        with current(self.device):
            ring = self.idle.pop() if self.idle else DeviceRing(self)
            ring.rows.zero_()
        ring.lent = True
        return ring

    def tensors(self, rows: int) -> PassTensors:
        """Those of the next width, at most the widest."""
        width = next(width for width in WIDTHS if width >= rows)
        if width not in self._tensors:
            hidden, columns = self.shape.hidden, self.shape.slots + 1 + width
            shapes = [(width,), (width,), (width,), (width, hidden), (width, columns)]
            # Logits [V'] and hidden state [D] beside one another.
            result = torch.zeros(1, len(self.module.output) + hidden, device=self.device)
            self._tensors[width] = PassTensors(width, shapes, (result,), torch.float32)
        return self._tensors[width]


class DeviceRing:
    """A ring, keys and values [2, layers, kv_heads, slots + 1, d], and the passes captured over it;
    `lent` to a text, or idle.
    """

    def __init__(self, head: DeviceHead) -> None:
        shape, self._head, self.lent = head.shape, head, False
        size = (2, shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self.rows = torch.zeros(size, device=head.device)
        # The largest first: the others fit into its memory.
        self._runs: dict[int, Run] = {
            width: head.capture(partial(self._compute, head.tensors(width)))
            for width in reversed(WIDTHS)
        }

    def _compute(self, tensors: PassTensors) -> None:
        tokens, positions, slots, features, bias = tensors.inputs
        logits, state, *new = self._head.module(
            features, tokens.long(), positions.long(), *self.rows, bias
        )
        self.rows.index_copy_(3, slots.long(), torch.stack(new))
        torch.cat([logits, state], 1, out=tensors.outputs[0])

    @torch.inference_mode()
    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        head, n, slots = self._head, len(tokens), self._head.shape.slots
        tensors = head.tensors(n)
        more = tensors.width - n
        # Whole numbers, which float32 holds exactly up to 2**24: tokens, positions and slots.
        integers = np.zeros((3, tensors.width), np.float32)
        integers[2, :more] = slots  # the one that nobody sees
        integers[:, more:] = tokens, positions, positions % slots
        states = np.pad(features, ((more, 0), (0, 0)))
        with current(head.device):
            tensors.fill(integers, states, bias_of(visible, tensors.width))
            self._runs[tensors.width]()
            (result,) = tensors.outputs
            host = host_rows(1, result.shape[1], head.device)
            host.copy_(result, non_blocking=True)
            wait(head.device)
        logits, state = np.split(host.numpy(), [len(head.module.output)], axis=1)
        return logits, state

    def close(self) -> None:
        if self.lent and len(self._head.idle) < IDLE:
            self._head.idle.append(self)
        self.lent = False
