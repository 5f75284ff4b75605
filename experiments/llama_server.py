"""llama.cpp's own server, from the package whose library the llama.cpp engine uses."""

import subprocess
import sys
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from backend.machine import threads

#: Tokens of context.
CONTEXT = 4096


class LlamaServer:
    """A server of a GGUF file in a process of its own, for the threads of two in one process wait
    for one another: at `address`, until it is forgotten.

    `speculation` is what `llama-server --spec-type` takes, and `values` are its settings: size_n
    and size_m of `ngram-simple`; n_match, n_min and n_max of `ngram-mod`; n_max of `draft-simple`,
    and `path`, the draft's file.
    """

    def __init__(self, file: Path, speculation: str = "none", **values: int | Path) -> None:
        settings = [f"{name}={value}" for name, value in values.items()]
        command = [sys.executable, "-m", "experiments.llama_server", str(file), speculation]
        process = subprocess.Popen(
            [*command, *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        weakref.finalize(self, process.communicate)  # it ends with its input
        self.address = process.stdout.readline().strip() if process.stdout else ""


def _serve(file: str, speculation: str, *settings: str) -> None:
    """Serve until the input ends."""
    package: Any = import_module("xllamacpp")  # it states no types
    params = package.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel, params.port, params.verbosity = CONTEXT, 1, 0, -1
    params.endpoint_metrics = True
    draft = params.speculative.draft
    pools = params.cpuparams, params.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch
    for pool in pools:
        pool.n_threads = threads()
    name = speculation.replace("-", "_")
    kind = getattr(package.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name.upper()}")
    params.speculative.types = [kind]
    own = draft if name.startswith("draft") else getattr(params.speculative, name, None)
    for setting, _, value in (each.partition("=") for each in settings):
        if setting == "path":
            draft.mparams.path = value
        else:
            setattr(own, setting, int(value))
    server = package.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
