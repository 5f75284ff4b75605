"""The llama.cpp engine: a GGUF file loaded by llama.cpp, and a context (a Store) for each cache."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

from backend.engines.base import Engine
from backend.engines.cache import Session
from backend.engines.llamacpp.abilities import AS_IT_IS, CAPABILITIES, CPU, GPU
from backend.engines.llamacpp.context import ContextStore
from backend.engines.llamacpp.library import (
    F16,
    FLASH_ATTENTION,
    LoadedModel,
    devices,
    library,
)
from backend.engines.llamacpp.state import Layout
from backend.engines.llamacpp.store import LlamaCppStore
from backend.engines.llamacpp.tokenizer import GgufTokenizer
from backend.errors import DerbyError
from backend.machine import threads
from backend.models.files import digest_of_samples, gguf_file
from backend.types import PREFILL_CHUNK, Capabilities, ModelSpec

#: Layers that run on a GPU, by device: none, or all that there are.
LAYERS = {CPU: 0, GPU: -1}

#: Rows of the widest pass.
WIDEST = 512

#: Cells that no context exceeds.
UNLIMITED = 1 << 24


def open_llamacpp(spec: ModelSpec, say: Callable[[str], None]) -> "LlamaCppEngine":
    """Load the GGUF file that `spec` names. Raises DerbyError for what cannot be had."""
    if spec.precision != AS_IT_IS:
        raise DerbyError(
            f"llama.cpp computes a file's own weights, {AS_IT_IS}, not {spec.precision!r:.60}: "
            f"choose {AS_IT_IS}."
        )
    if spec.device not in (offered := devices()):
        raise DerbyError(
            f"This llama.cpp has no device {spec.device!r:.60}; it has {', '.join(offered)}."
        )
    path = gguf_file(spec.name, say)
    return LlamaCppEngine(spec, str(path), digest_of_samples(path))


class LlamaCppEngine(Engine):
    """A loaded GGUF file. Raises DerbyError for one that llama.cpp does not load, or that is no
    causal language model.
    """

    # The first pass of a context allocates what the others use.
    slow_at_first = (PREFILL_CHUNK, 1)

    def __init__(self, spec: ModelSpec, path: str, fingerprint: str) -> None:
        self.spec, self.fingerprint = spec, fingerprint
        self.library = library()
        self._model = self._loaded(path)
        self._require_causal()
        self.tokenizer = GgufTokenizer(self.library, self._model)
        self.width = self.tokenizer.vocab_size
        self.weight_bytes: int = self.library.llama_model_size(self._model)
        longest: int = self.library.llama_model_n_ctx_train(self._model)
        original = self._original_context()
        self.most_cells = original or UNLIMITED
        self.copies = self.library.llama_model_n_swa(self._model) == 0
        self.capabilities = self._abilities(min(longest, original or longest))

    def _loaded(self, path: str) -> LoadedModel:
        params = self.library.llama_model_default_params()
        params.n_gpu_layers = LAYERS[self.spec.device]
        params.use_extra_bufts = True
        self.library.said.clear()
        model: int | None = self.library.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise DerbyError(
                f"llama.cpp cannot load {self.spec.name!r:.100} ({self.library.first_error:.200}): "
                "fetch the file again, or choose another."
            )
        return LoadedModel(self.library, model)

    def _require_causal(self) -> None:
        """Raise DerbyError for a model that does not go on with a text."""
        ask = self.library
        if ask.llama_model_has_encoder(self._model) or ask.llama_model_is_diffusion(self._model):
            raise DerbyError(f"{self.spec.name!r:.100} is not a causal language model: choose one.")

    def _abilities(self, max_context: int) -> Capabilities:
        ask = self.library
        if ask.llama_model_is_recurrent(self._model) or ask.llama_model_is_hybrid(self._model):
            raise DerbyError(
                f"{self.spec.name!r:.100} keeps recurrent state, which llama.cpp cannot cut back "
                "to an earlier token: choose the torch engine, or a model with attention alone."
            )
        return replace(CAPABILITIES, max_context=max_context)

    def _original_context(self) -> int:
        """Tokens up to which a context has the short factors of its rotary positions; 0: it has
        the same ones at any length. llama.cpp chooses by the size of the context.
        """
        stated = partial(self.library.stated, self._model)
        architecture = stated("general.architecture")
        kind = stated(f"{architecture}.rope.scaling.type")
        original = stated(f"{architecture}.rope.scaling.original_context_length")
        return int(original) if original.isdecimal() and kind in ("", "longrope") else 0

    def context(self, cells: int, sequences: int) -> int:
        """A new context for so many cells. Raises DerbyError if there is no room for it."""
        params = self.library.llama_context_default_params()
        params.n_ctx, params.n_seq_max = cells, sequences
        params.n_batch, params.n_ubatch = WIDEST, PREFILL_CHUNK
        params.n_threads = params.n_threads_batch = threads()
        params.flash_attn_type, params.kv_unified = FLASH_ATTENTION, True
        params.type_k, params.type_v = F16, F16
        made: int | None = self.library.llama_init_from_model(self._model, params)
        if not made:
            raise DerbyError(
                f"llama.cpp has no room for a text of {cells:,} tokens "
                f"({self.library.first_error:.200}): choose a smaller model or a shorter text."
            )
        return made

    def store(self) -> ContextStore:
        return LlamaCppStore(self)

    def layout(self) -> Layout:
        """How its caches are written. Raises DerbyError for caches that cannot be copied."""
        if not self.copies:
            raise DerbyError(
                f"{self.spec.name!r:.100} has layers with a sliding window, and llama.cpp cannot "
                f"save such caches: they are not kept."
            )
        if isinstance(self._layout, ValueError):
            raise DerbyError(
                f"llama.cpp writes the cache of {self.spec.name!r:.100} in a form that is not read "
                f"here ({self._layout}): its caches are not kept."
            )
        return self._layout

    @cached_property
    def _layout(self) -> Layout | ValueError:
        store = LlamaCppStore(self)
        try:
            Session(store, self.capabilities).forward([0], [-1], ())
            return Layout(store.written(0))
        except ValueError as error:
            return error
        finally:
            store.close()
