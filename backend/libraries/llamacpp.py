"""llama.cpp's own server on a GGUF file: plain, with its n-gram lookup, a draft, or MTP layers.

`python -m backend.libraries.llamacpp FLAGS` is that server from its wheel, with the flags of
`llama-server`. It prints its address once it answers, and ends with whoever started it.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Any

from backend.engines.engine import EngineDeclaration, Say
from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import (
    GrammarSource,
    composed,
    definition_of,
    regex_literal,
)
from backend.libraries.draft import checkpoint_of, gguf_draft
from backend.libraries.library import (
    NO_DRAFT,
    TRAINED,
    Emit,
    Library,
    Serving,
    Settings,
    require_package,
)
from backend.libraries.server import explained, server_request, stream_answer
from backend.machine import threads
from backend.models.files import gguf_file, without_folders
from backend.processes import die_with_parent
from backend.types import ModelSpec, Request

PACKAGE = "xllamacpp"

#: The precision of a GGUF file: its own weights.
GGUF = "gguf"

#: What a draft of a file of its own is called.
DRAFT = "draft-simple"

#: The kinds of drafts that were trained for their target, of which only layers of the target's own
#: file (MTP) need no file; and the kind of the built-in model's.
TRAINED_KINDS = ("draft-eagle3", "draft-mtp", "draft-dflash")
EAGLE3 = TRAINED_KINDS[0]

#: The flags that set how many tokens are drafted, by who drafts them, each with the most that k
#: sets it to: for endings that are looked up and for the shortest drafts, that is the usual.
K_FLAGS = {
    **{kind: {"--spec-draft-n-max": 64} for kind in (DRAFT, *TRAINED_KINDS)},
    "ngram-simple": {"--spec-ngram-simple-size-m": 64, "--spec-ngram-simple-size-n": 12},
    "ngram-mod": {"--spec-ngram-mod-n-max": 64, "--spec-ngram-mod-n-min": 48},
}

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

#: Tokens of context that a server has at least, and those that a chat template may add.
LEAST_CONTEXT, TEMPLATE = 4096, 1024

_ROOT = Path(__file__).parents[2]


def server_flags(
    file: str, request: Request, settings: Settings, device: str = "CPU", draft_file: str = ""
) -> list[str]:
    """Flags of llama-server for this GGUF file, with room for the request. `settings` are a
    column's, and `draft_file` the file of its draft, if that is called otherwise.
    """
    text = sum(len(message["content"].encode()) for message in request.messages)
    room = text + TEMPLATE + request.max_new_tokens  # no token is shorter than a byte
    context = min(max(LEAST_CONTEXT, room), request.context or room + LEAST_CONTEXT)
    flags = ["--model", file, "--ctx-size", str(context), "--parallel", "1"]
    if device == "CPU":
        flags += ["--n-gpu-layers", "0"]
    kind, draft, k = settings["spec"], settings["draft"], settings["k"]
    kinds = [] if kind == NO_DRAFT else [kind]
    if draft != NO_DRAFT:
        flags += ["--model-draft", draft_file or draft]
        own = EAGLE3 if draft == TRAINED else DRAFT
        kinds = kinds if kind in TRAINED_KINDS else [own, *kinds]
    elif kind in TRAINED_KINDS and kind != "draft-mtp":
        raise DerbyError(f"llama.cpp's {kind} needs a draft of its own: add draft=FILE.gguf.")
    if kinds:
        flags += ["--spec-type", ",".join(kinds)]
    lengths = {flag: most for name in kinds for flag, most in K_FLAGS[name].items() if k}
    return flags + [word for flag, most in lengths.items() for word in (flag, str(min(k, most)))]


def request_body(request: Request, settings: Settings) -> tuple[str, dict[str, Any]]:
    """Where to ask below /v1/, and what. Raises DerbyError for a grammar that is none."""
    path, body = server_request(request)
    return path, body | _grammar(settings["grammar"])


def _grammar(source: GrammarSource | None) -> dict[str, Any]:
    if source is None:
        return {}
    if source.kind == "gbnf":
        return {"grammar": source.text}
    definition_of(source)  # raises what is wrong with it
    if source.kind == "json_schema":
        return {"json_schema": json.loads(source.text)}
    lark = composed(source.text)
    if source.kind == "regex":
        lark = "start: " + regex_literal(source.text.rstrip("\r\n"))
    return {"grammar": f"%llguidance {{}}\n{lark}"}


class LlamaCppModel:
    """A GGUF file. Each answer has a server of its own, which ends with it."""

    tokenizer, max_context = None, 0

    def __init__(self, spec: ModelSpec, file: Path) -> None:
        self.spec, self.weight_bytes = spec, _size(file)
        self._file = file
        self._server: Popen[str] | None = None

    def prepare(self, request: Request, settings: Settings) -> None:
        """See LibraryModel. The server itself would write on without a grammar that is wrong."""
        self._draft_file(settings["draft"])
        grammar: GrammarSource | None = settings["grammar"]
        if grammar is not None and grammar.kind in ("lark", "regex"):
            check(grammar)

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel."""
        from httpx import Client

        path, body = request_body(request, settings)
        draft = self._draft_file(settings["draft"])
        flags = server_flags(str(self._file), request, settings, self.spec.device, draft)
        with (
            explained("llama.cpp's server"),
            self._serving(flags, emit) as address,
            # Nothing comes while a long prompt is read, which may take minutes.
            Client(base_url=f"{address}/v1/", timeout=None, trust_env=False) as client,  # noqa: S113
        ):
            stream_answer(client, path, body, emit, Serving())

    def _draft_file(self, name: str) -> str:
        """The file of a draft, made or fetched if need be; "": there is none."""
        if name == NO_DRAFT:
            return ""
        if checkpoint := checkpoint_of(name, self.spec):
            return str(gguf_draft(checkpoint, self.spec, self._file))
        return str(gguf_file(name, lambda _: None))

    @contextmanager
    def _serving(self, flags: list[str], emit: Emit) -> Iterator[str]:
        """The address of a server, once it answers. Raises DerbyError for what does not load."""
        command = [sys.executable, "-m", "backend.libraries.llamacpp", *flags]
        command += ["--threads", str(threads()), "--port", "0"]
        with (
            TemporaryFile("w+", errors="replace") as errors,
            Popen(  # noqa: S603 (ours)
                command, cwd=_ROOT, stdin=PIPE, stdout=PIPE, stderr=errors, text=True
            ) as server,
        ):
            self._server = server
            try:
                emit(Serving())  # raises if the column was stopped before there was a server
                assert server.stdout is not None  # noqa: S101 (it is a pipe)
                address = server.stdout.readline().strip()
                if not address:
                    errors.seek(0)
                    why = next((line.partition(" E ")[2] for line in errors if " E " in line), "")
                    why = without_folders(why.strip())
                    raise DerbyError(
                        f"llama.cpp cannot load {self.spec.name!r:.100} ({why:.200}): "
                        "fetch the file again, or choose another."
                    )
                yield address
            finally:
                server.kill()


def _size(file: Path) -> int:
    """Bytes of a file's weights, with its other parts: one in several is named by its first."""
    parts = file.parent.glob(escape(file.name).replace("-00001-of-", "-?????-of-"))
    return sum(part.stat().st_size for part in parts)


def devices() -> tuple[str, ...]:
    """What the wheel computes on here."""
    if find_spec(PACKAGE) is None:
        return ("CPU",)
    gpus = any(device["type"].name.endswith("GPU") for device in wheel().get_device_info())
    return ("CPU", "GPU") if gpus else ("CPU",)


def open_model(spec: ModelSpec, say: Say) -> LlamaCppModel:
    """Find the file. Raises DerbyError for what cannot be had."""
    require_package(PACKAGE)
    if spec.device not in (offered := devices()):
        raise DerbyError(
            f"This llama.cpp has no device {spec.device!r:.60}; it has {', '.join(offered)}."
        )
    return LlamaCppModel(spec, gguf_file(spec.name, say))


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


LLAMACPP = Library(
    "llamacpp",
    EngineDeclaration(
        name="llamacpp",
        title="llama.cpp",
        precisions=(GGUF,),
        devices=devices,
        device_help="CPU or GPU",
        open=open_model,
        estimate_bytes=lambda spec, say: _size(gguf_file(spec.name, say)),
        loads_at_once=True,
    ),
)


if __name__ == "__main__":
    main(sys.argv[1:])
