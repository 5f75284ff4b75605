"""llama.cpp's own server, from the package whose library the llama.cpp engine uses."""

from importlib import import_module
from pathlib import Path
from typing import Any

from backend.machine import threads

#: Tokens of context.
CONTEXT = 4096


def llama_server(file: Path, speculation: str = "none", **sizes: int) -> Any:
    """A server of a GGUF file at its `listening_address`, which ends once it is forgotten.
    `speculation` is what `llama-server --spec-type` takes, and `sizes` are its settings: size_n and
    size_m of `ngram-simple`, n_match of `ngram-mod`.
    """
    package: Any = import_module("xllamacpp")  # it states no types
    params = package.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.port, params.verbosity = CONTEXT, 1, 0, -1
    params.endpoint_metrics = True
    for pool in (params.cpuparams, params.cpuparams_batch):
        pool.n_threads = threads()
    name = speculation.replace("-", "_")
    kind = getattr(package.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name.upper()}")
    params.speculative.types = [kind]
    for size, value in sizes.items():
        setattr(getattr(params.speculative, name), size, value)
    return package.Server(params)
