"""The OpenVINO engine: what it says of itself, and one compiled model with its infer requests."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from backend.engines.engine import Engine, EngineDeclaration, no_trained_draft
from backend.engines.openvino.core import (
    BYTES,
    EXACT,
    EXACT_PRECISIONS,
    core,
    devices,
    require_device,
)
from backend.engines.openvino.export import (
    conversion_bytes,
    openvino_ir,
    ready_made,
    show_states,
)
from backend.engines.openvino.session import OpenVINOSession, states_of
from backend.engines.self_test import PRECISE, ROUNDED, self_test
from backend.errors import DerbyError
from backend.models.files import (
    IR,
    ModelFiles,
    Say,
    is_ready_made,
    model_files,
    model_folder,
    weights_in,
)
from backend.tokenizer import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Layers, ModelSpec


class OpenVINOEngine(Engine):
    """A compiled IR with the interface that export.py documents. Raises DerbyError for one that
    computes something else in wider passes.
    """

    # The plugin prepares kernels at a width's first sight (5-10 ms).
    slow_at_first = (PREFILL_CHUNK, *range(1, PREFILL_CHUNK))

    def __init__(
        self,
        spec: ModelSpec,
        model: Any,
        tokenizer: Tokenizer,
        files: ModelFiles,
        weight_bytes: int,
    ) -> None:
        self.spec, self.model, self.tokenizer = spec, model, tokenizer
        self.fingerprint, self.max_context = files.fingerprint, files.max_context
        self.weight_bytes, self.row_bytes = weight_bytes, files.row_bytes
        self._window = files.window
        exact = spec.precision in EXACT_PRECISIONS
        self.guesses = self_test(self.open, files.vocab_size, PRECISE if exact else ROUNDED)
        if self.guesses == "none":
            raise DerbyError(
                f"{spec} computes something else when it reads several tokens at once: choose "
                "another precision or engine."
            )

    def open(self, rows: int = 0, layers: Layers = ()) -> OpenVINOSession:
        """See Engine. The states of a request grow as they need."""
        shown = {name for port in self.model.outputs for name in port.names}
        if not {*map(states_of, layers)} <= shown:
            raise no_trained_draft(self.spec)
        request = self.model.create_infer_request()
        return OpenVINOSession(request, self.max_context, self._window, self.guesses)


def open_openvino(spec: ModelSpec, say: Say) -> OpenVINOEngine:
    """Load `spec`, converting it first if need be. Raises DerbyError for what cannot be had."""
    require_device(spec.device)
    files = model_files(spec.name, say)
    path = (files.folder if files.ready_made else openvino_ir(spec, say)) / IR[0]
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    settings |= EXACT if spec.precision in EXACT_PRECISIONS else {}
    graph = ready_made(path, spec, files) if files.ready_made else core().read_model(path)
    show_states(graph)
    with ThreadPoolExecutor(1) as beside:  # imports of transformers and compiling take seconds each
        loading = beside.submit(HfTokenizer, files.folder, files.eos_ids, files.vocab_size)
        model = core().compile_model(graph, spec.device, settings)
        tokenizer = loading.result()
    return OpenVINOEngine(spec, model, tokenizer, files, path.with_suffix(".bin").stat().st_size)


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    folder = model_folder(spec.name, say)
    if is_ready_made(folder):
        return (folder / IR[1]).stat().st_size
    # An unknown precision is refused when it is opened.
    return round(weights_in(folder) * BYTES.get(spec.precision, 0))


OPENVINO = EngineDeclaration(
    name="openvino",
    title="OpenVINO",
    precisions=tuple(dict.fromkeys((ModelSpec().precision, *BYTES))),
    devices=devices,
    device_help="CPU, GPU, NPU or AUTO",
    open=open_openvino,
    estimate_bytes=estimate_bytes,
    peak_bytes=conversion_bytes,
    exact=EXACT_PRECISIONS,
)
