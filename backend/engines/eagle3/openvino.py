"""An EAGLE-3 draft on OpenVINO: a graph for each of a few widths, with int8 weights.

A call is over in about a millisecond, so what surrounds the products counts: shapes are fixed,
sibling matrices are one product, the ring and all inputs are bound to the requests once, and the
embeddings of the few tokens are read on the host.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.eagle3.checkpoint import Checkpoint
from backend.engines.eagle3.network import Eagle3Shape
from backend.engines.eagle3.ring import Floats, bias_of, call_seconds
from backend.engines.openvino.core import core
from backend.types import PREFILL_CHUNK, HiddenStates, Logits

#: Rows of the compiled passes: a round reads what the last one committed, a prompt whole chunks.
WIDTHS = (1, 4, 8, PREFILL_CHUNK)

#: With the plugin's default, bf16, a step takes half as long again.
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}

#: How many inputs of a graph a pass fills; behind them comes the ring.
FILLED = 5


def int8_rows(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Codes [O, I] and scales [O, 1] of a matrix [O, I]; what was read of such codes gives them
    back.
    """
    scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float32)
    return np.round(matrix / np.maximum(scale, 1e-12)).astype(np.int8), scale


def draft_graph(  # noqa: C901, PLR0915 (a network from its first to its last product)
    shape: Eagle3Shape, weights: Mapping[str, Floats], n: int
) -> Any:
    """The computation of backend.engines.eagle3.torch.run_rows as an openvino.Model, of the weights
    of Eagle3 by name.

    Inputs: embeddings [n, D], the target's states [n, S], the draft's own [n, D], positions
    [n, 1, 1], bias [n, slots + 1 + n], then keys and values of each layer in turn,
    [kv_heads, slots + 1, d]. Outputs: logits [1, V'] and state [1, D] behind the last row, and the
    rows' keys and values, [2 * layers, kv_heads, n, d].
    """
    import openvino as ov
    from openvino import opset13 as ops

    hidden, d, slots = shape.hidden, shape.head_dim, shape.slots + 1
    heads, kv, group = shape.heads, shape.kv_heads, shape.heads // shape.kv_heads

    def axes(*numbers: int) -> Any:
        return ops.constant(np.array(numbers, dtype=np.int64))

    def number(value: float) -> Any:
        return ops.constant(np.float32(value))

    def shaped(x: Any, *sizes: int) -> Any:
        return ops.reshape(x, axes(*sizes), special_zero=False)

    def parts(x: Any, axis: int, *sizes: int) -> Any:
        return ops.variadic_split(x, ops.constant(axis), axes(*sizes)).outputs()

    def times(a: Any, b: Any, *, transposed: bool = False) -> Any:
        return ops.matmul(a, b, transpose_a=False, transpose_b=transposed)

    def product(x: Any, *names: str) -> Any:
        """By all of these [O, I] at once, in the form that the plugin multiplies from int8."""
        codes, scales = int8_rows(np.concatenate([weights[f"{name}.weight"] for name in names]))
        if names[0].endswith("q_proj"):  # so that the scores come scaled
            scales[: heads * d] *= shape.scale
        real = ops.convert(ops.constant(codes), "f32")
        return times(x, ops.multiply(real, ops.constant(scales)), transposed=True)

    def norm(x: Any, name: str) -> Any:
        mean = ops.reduce_mean(ops.power(x, number(2)), axes(-1), keep_dims=True)
        root = ops.sqrt(ops.add(mean, number(shape.eps)))
        unit = ops.multiply(x, ops.divide(number(1), root))
        return ops.multiply(unit, ops.constant(weights[f"{name}.weight"]))

    ring = 2 * shape.layers * [[kv, slots, d]]
    sizes = [[n, hidden], [n, shape.states], [n, hidden], [n, 1, 1], [n, slots + n], *ring]
    inputs = [ops.parameter(size, np.float32) for size in sizes]
    embedded, states, own, positions, bias, *cache = inputs
    angles = ops.multiply(positions, ops.constant(np.array(shape.turns, np.float32)))
    cos, sin = ops.cos(angles), ops.sin(angles)
    every_head = bias if n == 1 else ops.concat([bias] * group, 0)
    x = ops.add(product(states, "fc"), own)  # of the two, one is zero
    new: list[Any] = []
    for index in range(shape.layers):
        name = f"layers.{index}"
        if index:
            read = norm(x, f"{name}.input_layernorm")
        else:
            normed = norm(x, f"{name}.hidden_norm")
            read = ops.concat([norm(embedded, f"{name}.input_layernorm"), normed], 1)
            x = normed if shape.norm_before_residual else x
        projected = product(read, *(f"{name}.self_attn.{kind}_proj" for kind in "qkv"))
        turning, v = parts(shaped(projected, n, heads + 2 * kv, d), 1, heads + kv, kv)
        a, b = parts(turning, 2, d // 2, d // 2)
        real = ops.subtract(ops.multiply(a, cos), ops.multiply(b, sin))
        imaginary = ops.add(ops.multiply(b, cos), ops.multiply(a, sin))
        q, k = parts(ops.concat([real, imaginary], 2), 1, heads, kv)
        k, v = (ops.transpose(each, axes(1, 0, 2)) for each in (k, v))
        new += [shaped(each, 1, kv, n, d) for each in (k, v)]
        keys, values = cache[2 * index : 2 * index + 2]
        # Query heads that share keys stand together, so that the ring is read as it lies, and never
        # copied: what the new rows add comes beside it.
        q = shaped(ops.transpose(shaped(q, n, kv, group, d), axes(1, 2, 0, 3)), kv, group * n, d)
        scores = ops.concat([times(q, each, transposed=True) for each in (keys, k)], 2)
        chances = parts(ops.softmax(ops.add(scores, every_head), -1), 2, slots, n)
        attended = ops.add(times(chances[0], values), times(chances[1], v))
        together = ops.transpose(shaped(attended, kv, group, n, d), axes(2, 0, 1, 3))
        x = ops.add(x, product(shaped(together, n, heads * d), f"{name}.self_attn.o_proj"))
        wide = product(
            norm(x, f"{name}.post_attention_layernorm"),
            f"{name}.mlp.gate_proj",
            f"{name}.mlp.up_proj",
        )
        gate, up = parts(wide, 1, shape.intermediate, shape.intermediate)
        x = ops.add(x, product(ops.multiply(ops.swish(gate), up), f"{name}.mlp.down_proj"))
    last = x if n == 1 else parts(x, 0, n - 1, 1)[1]
    outputs = [product(norm(last, "norm"), "lm_head"), last, ops.concat(new, 0)]
    build: Any = ov.Model  # its stubs reject every call
    return build([ops.result(each) for each in outputs], inputs, "eagle3")


class OpenVINODraft:
    """The compiled graphs, which serve all columns."""

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, str] = SETTINGS) -> None:
        network = checkpoint.network
        self.shape = network.shape
        self.layers, self.vocabulary = checkpoint.layers, checkpoint.vocabulary
        self.embedding = network.embedding
        weights = {name: weight.numpy() for name, weight in network.state_dict().items()}
        self.compiled = {
            width: core().compile_model(draft_graph(self.shape, weights, width), "CPU", settings)
            for width in WIDTHS
        }
        self.seconds = 0.0
        self.seconds = call_seconds(self, WIDTHS)

    def open(self) -> "OpenVINORing":
        return OpenVINORing(self)


class OpenVINORing:
    """A ring [2 * layers, kv_heads, slots + 1, d] in host memory that requests of its own read."""

    def __init__(self, draft: OpenVINODraft) -> None:
        shape = draft.shape
        size = (2 * shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self._rows = np.zeros(size, dtype=np.float32)
        self._embedding = draft.embedding
        self._passes = {
            width: BoundRequest(model, self._rows) for width, model in draft.compiled.items()
        }

    def run(
        self,
        read: HiddenStates,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
        *,
        own: bool,
    ) -> tuple[Logits, HiddenStates]:
        n, slots = len(tokens), self._rows.shape[2] - 1
        width = next(width for width in WIDTHS if width >= n)
        embedded, states, given, places, bias = (bound := self._passes[width]).inputs
        embedded[-n:] = self._embedding[list(tokens)].float()
        (given if own else states)[-n:] = read
        (states if own else given)[-n:] = 0
        places[-n:, 0, 0] = positions
        bias[:] = bias_of(visible, width)
        logits, state, rows = bound.infer()
        self._rows[:, :, positions % slots] = rows[:, :, -n:]
        return logits.copy(), state.copy()

    def close(self) -> None:
        self._passes = {}


class BoundRequest:
    """An infer request whose inputs and outputs are arrays bound once: `inputs`, see draft_graph;
    what padding leaves in their first rows is finite, and nobody sees it.
    """

    def __init__(self, compiled: Any, ring: Floats) -> None:
        import openvino as ov

        self._request = compiled.create_infer_request()
        self.inputs = [np.zeros(port.shape, np.float32) for port in compiled.inputs[:FILLED]]
        for index, array in enumerate([*self.inputs, *ring]):
            self._request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        self._outputs = [np.zeros(port.shape, np.float32) for port in compiled.outputs]
        for index, array in enumerate(self._outputs):
            self._request.set_output_tensor(index, ov.Tensor(array, shared_memory=True))

    def infer(self) -> list[Floats]:
        """Run the pass; the outputs, until the next one."""
        self._request.infer(share_outputs=True)
        return self._outputs
