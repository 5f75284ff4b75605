"""The trained head on OpenVINO: a graph for each of a few widths, with int8 weights.

A call is over in well under a millisecond, so what surrounds the products counts: shapes are fixed,
sibling matrices are one product, the ring and all inputs are bound to the requests once, and the
embeddings of the few tokens are read on the host.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.heads.head import (
    Floats,
    Head,
    HeadFile,
    HeadShape,
    Weights,
    bias_of,
    call_seconds,
    embeddings,
    int8_rows,
)
from backend.engines.openvino.core import core
from backend.models.files import Say, model_files
from backend.types import PREFILL_CHUNK, HiddenStates, Logits, ModelSpec

#: Where a head runs whose target is on no CUDA device.
OPENVINO = "openvino"

#: Codes [O, I] and scales [O, 1] by the names of the weights.
Matrices = dict[str, tuple[NDArray[np.int8], Floats]]

#: Rows of the compiled passes: a round reads what the last one committed, a prompt whole chunks.
WIDTHS = (1, 4, 8, PREFILL_CHUNK)

#: With the plugin's default, bf16, a step takes half as long again.
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}


def place_for(target: ModelSpec) -> str:
    """The CUDA device that drafts for this target, as torch names it, or OPENVINO."""
    name = target.device.lower()
    if target.engine == "torch" and name != "cpu":
        import torch

        if torch.cuda.is_available():
            return name if ":" in name else "cuda:0"
    return OPENVINO


def open_head(file: HeadFile, target: ModelSpec, place: str, say: Say) -> Head:
    """The head of `target`, loaded. Raises DerbyError if the target's files cannot be had."""
    if place == OPENVINO:
        return OpenVINOHead(file, *embeddings(model_files(target.name, say).folder))
    from backend.engines.heads.torch import open_device_head

    return open_device_head(file, target, place, say)


def int8_matrices(file: HeadFile, output: Floats) -> Matrices:
    """The head's, and the target's `output` embeddings [V', D] of the tokens that can be drafted.
    The scale of the scores goes with the queries: the plugin would put it to all cached keys.
    """
    weights = {**file.weights, "output": output}
    matrices = {name: int8_rows(value) for name, value in weights.items() if value.ndim == 2}
    for name, (codes, scales) in matrices.items():
        if name.endswith("q_proj.weight"):
            matrices[name] = codes, scales * np.float32(file.shape.scale)
    return matrices


def head_graph(shape: HeadShape, norms: Weights, matrices: Matrices, n: int) -> Any:  # noqa: PLR0915
    """The computation of TorchHead.forward over n rows as an openvino.Model.

    Inputs: embeddings and features [n, D], positions [n, 1, 1], bias [n, slots + 1 + n], then keys
    and values of each layer in turn, [kv_heads, slots + 1, d]. Outputs: logits [1, V'] and feature
    [1, D] of the last row, and the rows' keys and values, [2 * layers, kv_heads, n, d].
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

    def product(x: Any, *names: str) -> Any:
        """By all of these [O, I] at once, in the form that the plugin multiplies from int8."""
        codes, scales = zip(*(matrices[name] for name in names), strict=True)
        real = ops.convert(ops.constant(np.concatenate(codes)), "f32")
        scaled = ops.multiply(real, ops.constant(np.concatenate(scales)))
        return ops.matmul(x, scaled, transpose_a=False, transpose_b=True)

    def norm(x: Any, name: str) -> Any:
        mean = ops.reduce_mean(ops.power(x, number(2)), axes(-1), keep_dims=True)
        root = ops.sqrt(ops.add(mean, number(shape.eps)))
        unit = ops.multiply(x, ops.divide(number(1), root))
        return ops.multiply(unit, ops.constant(norms[f"{name}.weight"]))

    cache_size = [kv, slots, d]
    sizes = [[n, hidden], [n, hidden], [n, 1, 1], [n, slots + n]] + 2 * shape.layers * [cache_size]
    inputs = [ops.parameter(size, np.float32) for size in sizes]
    x, features, positions, bias, *cache = inputs
    frequencies = np.float32(shape.theta) ** (-np.arange(d // 2, dtype=np.float32) / (d // 2))
    angles = ops.multiply(positions, ops.constant(frequencies.astype(np.float32)))
    cos, sin, seen = ops.cos(angles), ops.sin(angles), norm(features, "feature_norm")
    every_head = bias if n == 1 else ops.concat([bias] * group, 0)
    new: list[Any] = []
    for index in range(shape.layers):

        def own(name: str, index: int = index) -> str:
            return f"layers.{index}.{name}.weight"

        if index in shape.reads:
            x = ops.add(x, product(seen, f"reads.{index}.weight"))
        read = norm(x, f"layers.{index}.input_layernorm")
        projected = product(read, own("q_proj"), own("k_proj"), own("v_proj"))
        turning, v = parts(shaped(projected, n, heads + 2 * kv, d), 1, heads + kv, kv)
        a, b = parts(turning, 2, d // 2, d // 2)
        real = ops.subtract(ops.multiply(a, cos), ops.multiply(b, sin))
        imaginary = ops.add(ops.multiply(b, cos), ops.multiply(a, sin))
        q, k = parts(ops.concat([real, imaginary], 2), 1, heads, kv)
        rows = [ops.transpose(each, axes(1, 0, 2)) for each in (k, v)]
        new += [shaped(each, 1, kv, n, d) for each in rows]
        keys, values = (
            ops.concat([cached, latest], 1)
            for cached, latest in zip(cache[2 * index : 2 * index + 2], rows, strict=True)
        )
        # Query heads that share keys stand together, so that the cache is read as it lies.
        q = ops.transpose(shaped(q, n, kv, group, d), axes(1, 2, 0, 3))
        scores = ops.matmul(shaped(q, kv, group * n, d), keys, transpose_a=False, transpose_b=True)
        chances = ops.softmax(ops.add(scores, every_head), -1)
        attended = ops.matmul(chances, values, transpose_a=False, transpose_b=False)
        together = ops.transpose(shaped(attended, kv, group, n, d), axes(2, 0, 1, 3))
        x = ops.add(x, product(shaped(together, n, heads * d), own("o_proj")))
        read = norm(x, f"layers.{index}.post_attention_layernorm")
        wide = product(read, own("gate_proj"), own("up_proj"))
        gate, up = parts(wide, 1, shape.intermediate, shape.intermediate)
        x = ops.add(x, product(ops.multiply(ops.swish(gate), up), own("down_proj")))
    last = norm(x if n == 1 else parts(x, 0, n - 1, 1)[1], "norm")
    build: Any = ov.Model  # its stubs reject every call
    return build([product(last, "output"), last, ops.concat(new, 0)], inputs)


class OpenVINOHead:
    """The compiled graphs, which serve all columns. `embedding` [V, D] and `output` [V, D] are the
    target's.
    """

    def __init__(
        self,
        file: HeadFile,
        embedding: Floats,
        output: Floats,
        settings: Mapping[str, str] = SETTINGS,
    ) -> None:
        self.shape: HeadShape = file.shape
        self.vocabulary = file.tokens
        self.embedding = embedding
        matrices = int8_matrices(file, output[file.tokens])
        self.compiled: dict[int, Any] = {}
        for width in WIDTHS:
            graph = head_graph(file.shape, file.weights, matrices, width)
            self.compiled[width] = core().compile_model(graph, "CPU", settings)
        self.seconds = 0.0
        self.seconds = call_seconds(self, WIDTHS)

    def open(self) -> "OpenVINORing":
        return OpenVINORing(self)


class OpenVINORing:
    """A ring [2 * layers, kv_heads, slots + 1, d] in host memory that requests of its own read."""

    def __init__(self, head: OpenVINOHead) -> None:
        shape = head.shape
        size = (2 * shape.layers, shape.kv_heads, shape.slots + 1, shape.head_dim)
        self._rows = np.zeros(size, dtype=np.float32)
        self._embedding = head.embedding
        self._passes = {
            width: BoundRequest(model, self._rows) for width, model in head.compiled.items()
        }

    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        n, slots = len(tokens), self._rows.shape[2] - 1
        width = next(width for width in WIDTHS if width >= n)
        embedded, seen, places, bias = (bound := self._passes[width]).inputs
        embedded[-n:] = self._embedding[tokens]
        seen[-n:] = features
        places[-n:, 0, 0] = positions
        bias[:] = bias_of(visible, width)
        logits, state, rows = bound.infer()
        self._rows[:, :, positions % slots] = rows[:, :, -n:]
        return logits.copy(), state.copy()

    def close(self) -> None:
        self._passes = {}


class BoundRequest:
    """An infer request whose inputs and outputs are arrays bound once: `inputs` [0..3], see
    head_graph; what padding leaves in their first rows is finite, and nobody sees it.
    """

    def __init__(self, compiled: Any, ring: Floats) -> None:
        import openvino as ov

        self._request = compiled.create_infer_request()
        self.inputs = [np.zeros(port.shape, np.float32) for port in compiled.inputs[:4]]
        for index, array in enumerate([*self.inputs, *ring]):
            self._request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        self._outputs = [np.zeros(port.shape, np.float32) for port in compiled.outputs]
        for index, array in enumerate(self._outputs):
            self._request.set_output_tensor(index, ov.Tensor(array, shared_memory=True))

    def infer(self) -> list[Floats]:
        """Run the pass; the outputs, until the next one."""
        self._request.infer(share_outputs=True)
        return self._outputs
