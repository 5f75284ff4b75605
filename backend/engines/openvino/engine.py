"""The OpenVINO engine: one compiled model, and an infer request (a Store) for each cache."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.engines.base import Engine
from backend.engines.openvino.abilities import EXACT, EXACT_PRECISIONS, abilities
from backend.engines.openvino.core import available_devices, core
from backend.engines.openvino.export import IR, openvino_ir, ready_made
from backend.engines.openvino.layers import show_layers
from backend.engines.openvino.recurrent import store_of
from backend.engines.openvino.store import OpenVINOStore
from backend.errors import DerbyError
from backend.models.files import model_files
from backend.text import HfTokenizer, Tokenizer
from backend.types import LAST_LAYER, PREFILL_CHUNK, Capabilities, Layers, ModelSpec


def open_openvino(spec: ModelSpec, say: Callable[[str], None]) -> "OpenVINOEngine":
    """Load `spec`, converting it first if need be. Raises DerbyError for what cannot be had."""
    if spec.device not in available_devices():
        devices = ", ".join(available_devices())
        raise DerbyError(f"There is no OpenVINO device {spec.device!r} here; there are {devices}.")
    files = model_files(spec.name, say, long=spec.long)
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    if files.factors:
        say(files.factors)
    path = (files.folder if files.ready_made else openvino_ir(spec, say)) / IR
    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    if spec.precision in EXACT_PRECISIONS:
        settings |= EXACT

    def compiled(layers: Layers) -> Any:
        graph: Any = ready_made(path, spec, files) if files.ready_made else path
        if layers:
            graph = graph if files.ready_made else core().read_model(path)
            show_layers(graph, layers)
        return core().compile_model(graph, spec.device, settings)

    model = compiled(())
    capabilities = abilities(model, files.max_context)
    size = path.with_suffix(".bin").stat().st_size
    return OpenVINOEngine(
        spec, files.fingerprint, size, tokenizer, capabilities, model, files.window, compiled
    )


@dataclass(eq=False)
class OpenVINOEngine(Engine):
    """A compiled IR with the interface that export.py documents. `window` is the number of
    positions that sliding layers see; 0: there are none. `compiled` compiles it anew, so that it
    shows these layers, and raises ValueError if it cannot.
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
    compiled: Callable[[Layers], Any]
    _shown: frozenset[int] = frozenset()

    def show(self, layers: Layers) -> None:
        """See Engine. Later sessions go on showing them, whatever `hide` says: passes take as long
        and give the same logits.
        """
        if (shown := self._shown.union(layers) - set(LAST_LAYER)) == self._shown:
            return
        try:
            self.model = self.compiled(tuple(sorted(shown)))
        except ValueError as error:
            raise DerbyError(
                f"{self.spec} does not show the hidden states of its layers, which this draft "
                f"reads, for {error}: choose the torch engine."
            ) from error
        self._shown = shown
        deque(self.warm_up(), 0)

    def store(self, sequences: int) -> OpenVINOStore:
        return store_of(self.model, self.capabilities, sequences, self.window)
