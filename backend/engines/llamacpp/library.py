"""llama.cpp's C library: the few functions and structures of llama.h that the engine needs.

It is the one within the wheel of xllamacpp, whose Python module is never imported. Structures are
laid out as in llama.h of that build; what its defaults are is compared before anything is called
with them, so that another layout is refused and not written to.
"""

import ctypes as c
import os
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from backend.engines.llamacpp.abilities import CPU, GPU, PACKAGE, VERSION
from backend.errors import DerbyError

#: How often a thread of OpenMP looks for work before it sleeps. The default (300,000) burns a core
#: for 4 to 11 ms after each pass, which is other columns' time; so many burn 0.5 ms, and are enough
#: within a pass, where threads must spin from one product to the next.
SPINS = ("GOMP_SPINCOUNT", "20000")

#: ggml's numbers of formats: float32 and float16.
F32, F16 = 0, 1

#: llama.h: LLAMA_FLASH_ATTN_TYPE_ENABLED, GGML_LOG_LEVEL_ERROR, LLAMA_TOKEN_ATTR_CONTROL.
FLASH_ATTENTION, ERROR, CONTROL = 1, 4, 1 << 3

_POINTER, _INT, _COUNT = c.c_void_p, c.c_int32, c.c_uint32


class ModelParams(c.Structure):
    """struct llama_model_params."""

    _fields_: ClassVar = [
        ("devices", _POINTER),
        ("tensor_buft_overrides", _POINTER),
        ("n_gpu_layers", _INT),
        ("split_mode", _INT),
        ("load_mode", _INT),
        ("lazy_mode", _INT),
        ("main_gpu", _INT),
        ("tensor_split", _POINTER),
        ("progress_callback", _POINTER),
        ("progress_callback_user_data", _POINTER),
        ("kv_overrides", _POINTER),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    ]


class ContextParams(c.Structure):
    """struct llama_context_params; `pointers` are the callbacks and their data, behind type_v."""

    _fields_: ClassVar = [
        ("n_ctx", _COUNT),
        ("n_batch", _COUNT),
        ("n_ubatch", _COUNT),
        ("n_seq_max", _COUNT),
        ("n_rs_seq", _COUNT),
        ("n_outputs_max", _COUNT),
        ("n_outputs_max_per_seq", _COUNT),
        ("n_threads", _INT),
        ("n_threads_batch", _INT),
        ("ctx_type", _INT),
        ("rope_scaling_type", _INT),
        ("pooling_type", _INT),
        ("attention_type", _INT),
        ("flash_attn_type", _INT),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", _COUNT),
        ("defrag_thold", c.c_float),
        ("cb_eval", _POINTER),
        ("cb_eval_user_data", _POINTER),
        ("type_k", _INT),
        ("type_v", _INT),
        ("pointers", _POINTER * 3),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", _POINTER),
        ("n_samplers", c.c_size_t),
        ("ctx_other", _POINTER),
    ]


class Batch(c.Structure):
    """struct llama_batch."""

    _fields_: ClassVar = [
        ("n_tokens", _INT),
        ("token", _POINTER),
        ("embd", _POINTER),
        ("pos", _POINTER),
        ("n_seq_id", _POINTER),
        ("seq_id", _POINTER),
        ("logits", _POINTER),
    ]


#: What the defaults are where they are not 0.
MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "use_extra_bufts": True,
}
CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": F16,
    "type_v": F16,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}

#: Results and parameters of the functions, by name.
_TEXT, _LENGTH = c.c_char_p, c.c_int32
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_supports_gpu_offload": (c.c_bool, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (_POINTER, (_TEXT, ModelParams)),
    "llama_model_free": (None, (_POINTER,)),
    "llama_model_get_vocab": (_POINTER, (_POINTER,)),
    "llama_model_size": (c.c_uint64, (_POINTER,)),
    "llama_model_n_ctx_train": (_INT, (_POINTER,)),
    "llama_model_n_swa": (_INT, (_POINTER,)),
    "llama_model_has_encoder": (c.c_bool, (_POINTER,)),
    "llama_model_is_recurrent": (c.c_bool, (_POINTER,)),
    "llama_model_is_hybrid": (c.c_bool, (_POINTER,)),
    "llama_model_is_diffusion": (c.c_bool, (_POINTER,)),
    "llama_model_chat_template": (_TEXT, (_POINTER, _TEXT)),
    "llama_model_meta_val_str": (_INT, (_POINTER, _TEXT, _TEXT, c.c_size_t)),
    "llama_init_from_model": (_POINTER, (_POINTER, ContextParams)),
    "llama_free": (None, (_POINTER,)),
    "llama_n_ctx": (_COUNT, (_POINTER,)),
    "llama_n_ubatch": (_COUNT, (_POINTER,)),
    "llama_n_seq_max": (_COUNT, (_POINTER,)),
    "llama_get_memory": (_POINTER, (_POINTER,)),
    "llama_memory_clear": (None, (_POINTER, c.c_bool)),
    "llama_memory_seq_rm": (c.c_bool, (_POINTER, _INT, _INT, _INT)),
    "llama_memory_seq_cp": (None, (_POINTER, _INT, _INT, _INT, _INT)),
    "llama_memory_seq_pos_max": (_INT, (_POINTER, _INT)),
    "llama_decode": (_INT, (_POINTER, Batch)),
    "llama_get_logits": (c.POINTER(c.c_float), (_POINTER,)),
    "llama_state_seq_get_size": (c.c_size_t, (_POINTER, _INT)),
    "llama_state_seq_get_data": (c.c_size_t, (_POINTER, _POINTER, c.c_size_t, _INT)),
    "llama_state_seq_set_data": (c.c_size_t, (_POINTER, _POINTER, c.c_size_t, _INT)),
    "llama_vocab_n_tokens": (_INT, (_POINTER,)),
    "llama_vocab_bos": (_INT, (_POINTER,)),
    "llama_vocab_eos": (_INT, (_POINTER,)),
    "llama_vocab_is_eog": (c.c_bool, (_POINTER, _INT)),
    "llama_vocab_get_attr": (_INT, (_POINTER, _INT)),
    "llama_vocab_get_text": (_TEXT, (_POINTER, _INT)),
    "llama_tokenize": (
        _INT,
        (_POINTER, _TEXT, _LENGTH, _POINTER, _LENGTH, c.c_bool, c.c_bool),
    ),
    "llama_token_to_piece": (_INT, (_POINTER, _INT, _POINTER, _LENGTH, _INT, c.c_bool)),
}

_LOG = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


class LoadedModel:
    """A struct llama_model, freed with this object; functions take it as it is."""

    def __init__(self, library: "Library", pointer: int) -> None:
        self._as_parameter_ = c.c_void_p(pointer)
        weakref.finalize(self, library.llama_model_free, pointer)


class Library:
    """The functions by their names. `said` are the last errors that the library has logged."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AttributeError for a file that is not this library."""
        self.said: deque[str] = deque(maxlen=16)
        with _few_spins():
            found = c.CDLL(str(path))
        for name, (result, parameters) in FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, parameters
        self._found = found
        self._log = _LOG(self._note)  # kept, because the library calls it

    def begin(self) -> None:
        """Start it; from then on it logs here, so this must live as long as the process."""
        self._found.llama_log_set(self._log, None)
        self._found.llama_backend_init()

    def _note(self, level: int, text: bytes, _data: Any) -> None:
        if level == ERROR and text:
            self.said.append(text.decode(errors="replace").strip())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def stated(self, model: LoadedModel, field: str) -> str:
        """A field of the model's file as text, up to 255 bytes; "" if it has none."""
        buffer = c.create_string_buffer(256)
        found = self.llama_model_meta_val_str(model, field.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if found >= 0 else ""

    @property
    def first_error(self) -> str:
        """What the library said first since `said` was cleared, without its function's name."""
        return self.said[0].partition(": ")[2] or self.said[0] if self.said else "no reason given"


@lru_cache(maxsize=1)
def library() -> Library:
    """The process's one library. Raises DerbyError for one that is not the build that is known."""
    spec, present = find_spec(PACKAGE), version(PACKAGE)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    files = [file for folder in folders for file in folder.glob(f"{PACKAGE}*.so")]
    if present != VERSION or len(files) != 1:
        raise _unknown(present, "its version" if present != VERSION else "its files")
    try:
        made = Library(files[0])
    except (OSError, AttributeError) as error:
        raise _unknown(present, f"{error!s:.200}") from error
    defaults = made.llama_model_default_params(), made.llama_context_default_params()
    for found, known in zip(defaults, (MODEL_DEFAULTS, CONTEXT_DEFAULTS), strict=True):
        for name, value in _values(found).items():
            if (value or 0) != known.get(name, 0):
                raise _unknown(present, f"{name} is {value}")
    made.begin()
    return made


def devices() -> tuple[str, ...]:
    """What models run on: a GPU where the library was built for one and finds it. The CPU alone
    where the library cannot be used, as opening a model tells.
    """
    try:
        offloads = library().llama_supports_gpu_offload()
    except DerbyError:
        return (CPU,)
    return (CPU, GPU) if offloads else (CPU,)


def _values(structure: c.Structure) -> dict[str, Any]:
    """The fields; a group of pointers is 0 where all are null."""
    fields = {name: getattr(structure, name) for name, *_ in structure._fields_}
    return {
        name: any(value) if isinstance(value, Sequence | c.Array) else value
        for name, value in fields.items()
    }


def _unknown(present: str, difference: str) -> DerbyError:
    return DerbyError(
        f"The llama.cpp within {PACKAGE} {present} cannot be used ({difference}): install "
        f"{PACKAGE} {VERSION} by make llamacpp."
    )


@contextmanager
def _few_spins() -> Any:
    """Have what is loaded meanwhile read SPINS of the environment, unless that says otherwise."""
    name, value = SPINS
    stated = name in os.environ
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if not stated:
            del os.environ[name]
