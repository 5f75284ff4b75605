"""llama.cpp's server from its wheel, for where its own program is not installed:
`python -m backend.libraries.llama_server FLAGS`, with the flags of `llama-server`. Prints its
address once it answers, and ends with whoever started it.
"""

import sys
from argparse import ArgumentParser
from importlib import import_module
from operator import attrgetter
from typing import Any

from backend.processes import die_with_parent

#: What each flag sets, in the wheel's words.
FLAGS = {
    "--model": "model.path",
    "--port": "port",
    "--parallel": "n_parallel",
    "--ctx-size": "n_ctx",
    "--threads": "cpuparams.n_threads",
    "--n-gpu-layers": "n_gpu_layers",
    "--model-draft": "speculative.draft.mparams.path",
    "--spec-draft-n-max": "speculative.draft.n_max",
    "--spec-ngram-simple-size-m": "speculative.ngram_simple.size_m",
    "--spec-ngram-simple-size-n": "speculative.ngram_simple.size_n",
    "--spec-ngram-mod-n-max": "speculative.ngram_mod.n_max",
    "--spec-ngram-mod-n-min": "speculative.ngram_mod.n_min",
}


def wheel() -> Any:
    """xllamacpp, of which no types are known."""
    return import_module("xllamacpp")


def parameters(flags: list[str]) -> Any:
    """The wheel's CommonParams with these flags set. Leaves the program for an unknown one."""
    xllamacpp = wheel()
    params = xllamacpp.CommonParams()
    params.hostnames, params.verbosity = ["127.0.0.1"], 1  # errors alone
    parser = ArgumentParser()
    parser.add_argument("--spec-type", default="none")
    for flag, field in FLAGS.items():
        before = attrgetter(field)(params)
        parser.add_argument(flag, dest=field, type=type(before), default=before)
    values = vars(parser.parse_args(flags))
    names = values.pop("spec_type").upper().replace("-", "_").split(",")
    kinds = xllamacpp.common_speculative_type
    params.speculative.types = [kinds[f"COMMON_SPECULATIVE_TYPE_{name}"] for name in names]
    for field, value in values.items():
        owner, _, name = field.rpartition(".")
        setattr(attrgetter(owner)(params) if owner else params, name, value)
    return params


def main(flags: list[str]) -> None:
    """Serve until the standard input ends. Raises RuntimeError for a model that does not load."""
    die_with_parent()
    server = wheel().Server(parameters(flags))
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
