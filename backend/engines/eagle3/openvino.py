"""An EAGLE-3 draft on OpenVINO: a graph for each of a few widths, with int8 weights.

A call is over in about a millisecond, so what surrounds the products counts: shapes are fixed,
sibling matrices are one product, the ring and all inputs are bound to the requests once, and the
embeddings of the few tokens are read on the host.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.eagle3.checkpoint import Checkpoint
from backend.engines.eagle3.network import Eagle3, Eagle3Shape
from backend.engines.eagle3.ring import Eagle3Network, Floats, call_seconds
from backend.engines.openvino.core import core
from backend.engines.openvino.weights import matrices_of, merge_products
from backend.types import PREFILL_CHUNK, HiddenStates, Logits

#: Rows of the compiled passes: a round reads what the last one committed, a prompt whole chunks.
WIDTHS = (1, 4, 8, PREFILL_CHUNK)

#: With the plugin's default, bf16, a step takes half as long again.
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}


def int8_rows(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Codes [O, I] and scales [O, 1] of a matrix [O, I]; what was read of such codes gives them
    back.
    """
    scale = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float32)
    return np.round(matrix / np.maximum(scale, 1e-12)).astype(np.int8), scale


def draft_graph(network: Eagle3) -> Any:
    """An openvino.Model of the network over any number of rows; inputs and outputs: see
    Eagle3.forward. Its matrices are int8 codes, in the form that the plugin multiplies from.
    """
    import openvino as ov
    from openvino import opset13 as ops

    example = [torch.zeros(size) for size in input_sizes(network.shape, WIDTHS[1])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, that it is an old one
        model: Any = merge_products(ov.convert_model(network, example_input=example))
    for matrix in matrices_of(model):
        codes, scales = int8_rows(matrix.data)
        weight = ops.multiply(ops.convert(ops.constant(codes), "f32"), ops.constant(scales))
        for reader in matrix.output(0).get_target_inputs():
            reader.replace_source_output(weight.output(0))
    return model


def input_sizes(shape: Eagle3Shape, n: int) -> list[tuple[int, ...]]:
    """Those of a pass over n rows."""
    ring = 2 * [(shape.kv_heads, shape.slots + 1, shape.head_dim)]
    rows = [(n, shape.hidden), (n, shape.states), (n, shape.hidden), (n,)]
    return [*rows, (n, shape.slots + 1 + n), *ring]


class OpenVINODraft:
    """The compiled graphs, which serve all columns."""

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, str] = SETTINGS) -> None:
        self.checkpoint, shape = checkpoint, checkpoint.network.shape
        self.compiled, graph = dict[int, Any](), draft_graph(checkpoint.network)
        for width in WIDTHS:
            graph.reshape(dict(enumerate(input_sizes(shape, width))))
            self.compiled[width] = core().compile_model(graph, "CPU", settings)
        self.seconds = 0.0
        self.seconds = call_seconds(self.open(), WIDTHS)

    def open(self) -> "OpenVINONetwork":
        """It, for a new text."""
        return OpenVINONetwork(self)


class OpenVINONetwork(Eagle3Network):
    """Its ring [2, kv_heads, slots + 1, d] lies in host memory, read by requests of its own."""

    def __init__(self, draft: OpenVINODraft) -> None:
        super().__init__(draft.checkpoint, draft.seconds)
        shape, self._embed = self.shape, draft.checkpoint.network.embed
        self._ring = np.zeros((2, shape.kv_heads, shape.slots + 1, shape.head_dim), np.float32)
        self._passes = {width: self._bound(model) for width, model in draft.compiled.items()}

    def _bound(self, compiled: Any) -> tuple[Any, list[Floats]]:
        """A request, and its inputs without the ring: what padding leaves in their first rows is
        finite, and nobody sees it.
        """
        import openvino as ov

        request = compiled.create_infer_request()
        inputs = [np.zeros(port.shape, np.float32) for port in compiled.inputs[:-2]]
        for index, array in enumerate([*inputs, *self._ring]):
            request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        return request, inputs

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates | None, *, wanted: bool
    ) -> Logits:
        n = len(tokens)
        request, inputs = self._passes[next(width for width in WIDTHS if width >= n)]
        embedded, read, own, places, bias = inputs
        embedded[-n:] = self._embed(torch.tensor(tokens))
        read[-n:] = 0 if states is None else states
        own[-n:] = self.state if states is None else 0
        positions = places[-n:] = self.place(position, n, bias)
        logits, state, rows = request.infer(share_outputs=True).values()
        self._ring[:, :, positions % self.shape.slots] = rows[:, :, -n:]
        self.state = state.copy()
        return logits.copy()

    def close(self) -> None:
        self._passes = {}
