"""The OpenVINO engine: one compiled model, one infer request (and so one KV cache) per session.

Rejected rows stay in the cache as holes that later masks hide, because taking rows out means
copying every state. Now and then the holes cost more than such a copy: then it is made.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backend.engines.batch import COMPACTION_BASE, COMPACTION_PER_ROW, Batch
from backend.engines.openvino.abilities import CAPABILITIES, EXACT_PRECISIONS
from backend.engines.openvino.batch import HIDDEN, OpenVINOBatch
from backend.engines.openvino.core import available_devices, core
from backend.engines.openvino.export import IR, openvino_ir, ready_made
from backend.engines.tree import depths, require_path, visibility
from backend.errors import DerbyError
from backend.models.files import model_files
from backend.text import HfTokenizer, Tokenizer
from backend.types import (
    PREFILL_CHUNK,
    Arrays,
    Capabilities,
    HiddenStates,
    Logits,
    ModelSpec,
    chain_parents,
)

#: Logits of a row must not depend on how many rows ran with it. At the defaults (bf16 inference,
#: quantised cache, activations quantised on the fly) they do, and texts would differ.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def open_openvino(spec: ModelSpec, say: Callable[[str], None]) -> "OpenVINOEngine":
    """Load `spec`, converting it first if need be. Raises DerbyError for what cannot be had."""
    if spec.device not in available_devices():
        devices = ", ".join(available_devices())
        raise DerbyError(f"There is no OpenVINO device {spec.device!r} here; there are {devices}.")
    files = model_files(spec.name, say, long=spec.long)
    if files.factors:
        say(files.factors)
    path = (files.folder if files.ready_made else openvino_ir(spec, say)) / IR
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    if spec.precision in EXACT_PRECISIONS:
        settings |= EXACT
    graph = ready_made(path, spec, files) if files.ready_made else path
    model = core().compile_model(graph, spec.device, settings)
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    capabilities = replace(
        CAPABILITIES,
        max_context=files.max_context,
        batch=True,
    )
    return OpenVINOEngine(
        spec,
        model,
        tokenizer,
        capabilities,
        files.fingerprint,
        path.with_suffix(".bin").stat().st_size,
        files.window,
    )


class OpenVINOEngine:
    """A compiled IR with the interface that openvino_export documents."""

    def __init__(
        self,
        spec: ModelSpec,
        model: Any,
        tokenizer: Tokenizer,
        capabilities: Capabilities,
        fingerprint: str = "",
        weight_bytes: int = 0,
        window: int = 0,
    ) -> None:
        """`window` is the number of positions that sliding layers see; 0: there are none."""
        self.spec = spec
        self.fingerprint = fingerprint
        self.weight_bytes = weight_bytes
        self.tokenizer = tokenizer
        self.capabilities = capabilities
        self._model = model
        self._window = window

    def open(self) -> "OpenVINOSession":
        return OpenVINOSession(self._model.create_infer_request(), self.capabilities, self._window)

    def open_batch(self, requests: int) -> Batch:
        request = self._model.create_infer_request()
        return Batch(OpenVINOBatch(request, requests, self._window), requests)

    def synchronize(self) -> None:
        """Nothing to wait for: infer() returns when the device is done."""

    def warm_up(self) -> Iterator[None]:
        """The plugin prepares kernels at a width's first sight (5-10 ms): show it every width."""
        session = self.open()
        widest = min(PREFILL_CHUNK, self.capabilities.max_context)
        for width in (widest, *range(1, widest)):
            session.forward([0] * width, chain_parents(width), (0,))
            session.truncate(0)
            yield
        session.close()


class OpenVINOSession:
    """One infer request. `_bias` holds, for each cached row, 0 if visible and HIDDEN if a hole."""

    def __init__(self, request: Any, capabilities: Capabilities, window: int) -> None:
        inputs = {port.any_name for port in request.model_inputs}
        self._request: Any = request
        self._capabilities = capabilities
        self._window = window
        # Where only some layers slide, those have a bias of their own.
        self._sliding = "sliding_bias" if "sliding_bias" in inputs else "attention_bias"
        self._bias = np.zeros(min(1024, capabilities.max_context), dtype=np.float32)
        self._beam = np.zeros(1, dtype=np.int32)
        self._cached = 0  # rows in the cache, holes included
        self._pending: Sequence[int] = ()
        self._debt = 0  # reads of holes since the last compaction
        self.length = 0
        request.reset_state()

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        if self._pending or not tokens:
            raise RuntimeError("forward before keep, or without tokens")
        self._compact_if_worthwhile()
        positions = self.length + depths(parents)
        n, cached = len(positions), self._cached
        bias = np.empty((n, cached + n), dtype=np.float32)
        bias[:, :cached] = self._bias[:cached]
        bias[:, cached:] = np.where(visibility(parents), np.float32(0), HIDDEN)
        biases = {"attention_bias": bias[None, None]}
        if self._window:
            biases[self._sliding] = self._near(bias, positions)[None, None]
        self._request.infer(
            {
                "input_ids": np.array([tokens], dtype=np.int64),
                "position_ids": positions[None],
                "beam_idx": self._beam,
                "rows": np.array(rows, dtype=np.int64),
                **biases,
            },
            share_inputs=True,
            share_outputs=True,
        )
        self._pending = tuple(parents)
        # The output tensor is overwritten by the next pass.
        return self._request.get_output_tensor(0).data[0].copy()

    def _near(self, bias: Any, positions: Any) -> Any:
        """`bias` float32 [n, cached + n] with all hidden that is out of the window as well."""
        if positions.max() < self._window:
            return bias
        keys = np.zeros(self._cached, dtype=np.int64)  # a hole is hidden wherever it is
        keys[self._visible()] = np.arange(self.length)
        distance = positions[:, None] - np.concatenate([keys, positions])
        return np.where(distance < self._window, bias, HIDDEN)

    def hidden_states(self) -> HiddenStates:
        return self._request.get_output_tensor(1).data[0].copy()

    def keep(self, rows: Sequence[int]) -> None:
        require_path(rows, self._pending)
        self._settle(rows)

    def _settle(self, rows: Sequence[int]) -> None:
        """Turn the pending rows into context (`rows`) and holes (the others)."""
        end = self._cached + len(self._pending)
        if end > len(self._bias):
            self._bias = np.concatenate([self._bias, np.zeros(end, dtype=np.float32)])
        self._bias[self._cached : end] = HIDDEN
        self._bias[self._cached + np.asarray(rows, dtype=np.int64)] = 0
        self._cached = end
        self.length += len(rows)
        self._pending = ()

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise RuntimeError(f"truncate to {length} of {self.length} tokens")
        if length == 0:
            self._request.reset_state()
            self._cached = self.length = self._debt = 0
            self._pending = ()
            return
        self._settle(())
        self._bias[self._visible()[length:]] = HIDDEN
        self.length = length

    def _visible(self) -> Any:
        """Indices of the cached rows that are context, int64 [length]."""
        return np.flatnonzero(self._bias[: self._cached] == 0)

    def _compact_if_worthwhile(self) -> None:
        """Rent or buy: once the holes' reads have cost as much as a copy, copy."""
        self._debt += self._cached - self.length
        if self._debt > COMPACTION_BASE + COMPACTION_PER_ROW * self.length:
            self.compact()

    def compact(self) -> None:
        """Copy the cache without its holes. Changes no logits."""
        import openvino

        visible = self._visible()
        if not visible.size:
            self.truncate(0)  # the plugin takes no state of no rows
            return
        for state in self._request.query_state():
            state.state = openvino.Tensor(np.ascontiguousarray(state.state.data[:, :, visible]))
        self._bias[: len(visible)] = 0
        self._cached, self._debt = len(visible), 0

    def export(self, length: int) -> Arrays:
        if self._pending or not 0 <= length <= self.length:
            raise RuntimeError(f"export of {length} of {self.length} tokens")
        visible = self._visible()[:length]
        dense = not visible.size or visible[-1] == length - 1
        return {
            state.name: state.state.data[:, :, :length].copy()
            if dense
            else np.ascontiguousarray(state.state.data[:, :, visible])
            for state in (self._request.query_state() if length else ())
        }

    def load(self, length: int, arrays: Arrays) -> None:
        import openvino

        states = {state.name: state for state in self._request.query_state()}
        if self._cached or self._pending or (length and set(states) != set(arrays)):
            raise RuntimeError("load into a session that is not empty, or of another model")
        if length == 0:
            return
        # One buffer for all: fresh memory for each would cost more than copying does.
        buffers: dict[Any, Any] = {}
        for name, state in states.items():
            array = arrays[name]
            kind = (array.dtype, array.shape)
            if kind not in buffers:
                buffers[kind] = openvino.Tensor(np.empty(array.shape, array.dtype))
            buffers[kind].data[:] = array
            state.state = buffers[kind]
        if length > len(self._bias):
            self._bias = np.zeros(length, dtype=np.float32)
        self._bias[:length] = 0
        self._cached = self.length = length

    def close(self) -> None:
        """Drop the request and with it the cache."""
        self._request = None
