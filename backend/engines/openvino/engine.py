"""The OpenVINO engine: one compiled model, and an infer request (a Store) for each cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from backend.engines.base import Engine
from backend.engines.openvino.abilities import CAPABILITIES, EXACT, EXACT_PRECISIONS
from backend.engines.openvino.core import core, require_device
from backend.engines.openvino.export import IR, openvino_ir, ready_made
from backend.engines.openvino.store import OpenVINOStore
from backend.models.files import model_files
from backend.text import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Capabilities, ModelSpec


def open_openvino(spec: ModelSpec, say: Callable[[str], None]) -> "OpenVINOEngine":
    """Load `spec`, converting it first if need be. Raises DerbyError for what cannot be had."""
    require_device(spec.device)
    files = model_files(spec.name, say)
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    if files.capped:
        say(files.capped)
    path = (files.folder if files.ready_made else openvino_ir(spec, say)) / IR
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    if spec.precision in EXACT_PRECISIONS:
        settings |= EXACT

    graph: Any = ready_made(path, spec, files) if files.ready_made else path
    model = core().compile_model(graph, spec.device, settings)
    capabilities = replace(CAPABILITIES, max_context=files.max_context)
    size = path.with_suffix(".bin").stat().st_size
    engine = OpenVINOEngine(
        spec, files.fingerprint, size, tokenizer, capabilities, model, files.window
    )
    engine.row_bytes = files.row_bytes
    return engine


@dataclass(eq=False)
class OpenVINOEngine(Engine):
    """A compiled IR with the interface that export.py documents. `window` is the number of
    positions that sliding layers see; 0: there are none.
    """

    # The plugin prepares kernels at a width's first sight (5-10 ms).
    slow_at_first = (PREFILL_CHUNK, *range(1, PREFILL_CHUNK))

    spec: ModelSpec
    fingerprint: str
    weight_bytes: int
    tokenizer: Tokenizer
    capabilities: Capabilities
    model: Any
    window: int

    def store(self) -> OpenVINOStore:
        return OpenVINOStore(self.model.create_infer_request(), self.window)
