"""A server elsewhere as a column. Nothing that it sends is trusted.

An operator names servers in a TOML file, one table each:

    [vllm]
    url = "http://10.0.0.5:8000"
    model = "owner/name"          # left out: the first that it lists
    key_variable = "VLLM_KEY"     # of the environment; or key = "..."; left out: none
"""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AliasPath, Field

from backend.errors import DerbyError
from backend.libraries.library import Chunk, Emit, Library, Serving, Settings
from backend.machine import LOOPBACK
from backend.types import Request, template_options
from backend.untrusted import Untrusted, UntrustedError, read_as, read_json

if TYPE_CHECKING:
    from httpx import Client, Response

#: The environment's name of the operator's file.
VARIABLE = "DECODE_DERBY_SERVERS"

#: The setting that names no model: the first that the server lists.
ANY_MODEL = "first"

#: Seconds until a server must have taken a connection.
CONNECT = 5.0

#: An address: host, port, path; no user, query or fragment.
ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[\w./~-]*)?", re.ASCII)

#: Seconds for which a server may send nothing.
SILENCE = 60.0

#: Bytes that an answer may have for each of its tokens, and beside them.
TOKEN_BYTES, SPARE_BYTES = 1 << 12, 1 << 18

#: Tokens that hold every context: llama.cpp takes a number alone for "all", and room for as many.
WHOLE = 1 << 17


class Server(Untrusted, extra="forbid"):
    """A table of the file. `key` is never shown, logged or recorded."""

    url: str
    model: str = ""
    key: str = Field(default="", repr=False)
    key_variable: str = ""


def is_address(text: str) -> bool:
    """Tell whether this is an address, and not the name of an offered server."""
    return text.startswith(("http://", "https://"))


def named_servers() -> Mapping[str, Server]:
    """The servers of the operator's file, by name; none without one. Raises DerbyError for a file
    that says anything else.
    """
    path = os.environ.get(VARIABLE, "")
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DerbyError(
            f"The file of servers cannot be read ({type(error).__name__}): check that it is there "
            "and that it is TOML.",
            f"{path}: {error}",
        ) from error
    return read_as(dict[str, Server], tables, "The file of servers")


def server_at(text: str) -> Server:
    """The server of that name, or at that address, with its key. Raises DerbyError."""
    servers = {text: Server(url=text)} if is_address(text) else named_servers()
    if text not in servers:
        raise DerbyError(
            f"There is no server {text!r:.60}: choose from {', '.join(servers) or 'none'}, or "
            "write an address such as http://127.0.0.1:8080."
        )
    url, variable = servers[text].url.rstrip("/"), servers[text].key_variable
    if not ADDRESS.fullmatch(url):
        raise DerbyError(
            f"{url!r:.80} is not a server's address: write http:// or https://, a host and a port, "
            "without a user, query or fragment; keys belong into the file of servers."
        )
    key = os.environ.get(variable, "") if variable else servers[text].key
    if variable and not key:
        raise DerbyError(f"The environment has no {variable!r:.60}, the key of {text}: set it.")
    url = url if urlsplit(url).path else f"{url}/v1"
    return servers[text].model_copy(update={"url": url, "key": key})


def local_port(text: str) -> int:
    """The port of this machine where that server listens; 0: it runs elsewhere, or is none."""
    with suppress(DerbyError, ValueError):  # a port beyond 65535
        url = urlsplit(server_at(text).url)
        if url.hostname in LOOPBACK:
            return url.port or (443 if url.scheme == "https" else 80)
    return 0


class ServerModel:
    """Whatever a server runs: nothing is loaded here."""

    spec, tokenizer, weight_bytes, max_context = None, None, 0, 0

    def prepare(self, request: Request, settings: Settings) -> None: ...

    def stop(self) -> None: ...

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel."""
        from httpx import Client, Timeout

        server, name = server_at(settings["at"]), urlsplit(settings["at"]).netloc or settings["at"]
        keys = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        client = Client(
            base_url=server.url,
            headers={"Accept-Encoding": "identity"} | keys,
            timeout=Timeout(SILENCE, connect=CONNECT),
            # A proxy of the environment is not on the way to this machine.
            trust_env=urlsplit(server.url).hostname not in LOOPBACK,
        )
        with explained(f"The server {name}", server.key), client:
            chosen = server.model if settings["model"] == ANY_MODEL else settings["model"]
            path, body = server_request(request, chosen or _first_model(client))
            stream_answer(client, path, body, emit, Serving("server"))


def _first_model(client: "Client") -> str:
    """The first model that the server lists; "": none."""
    with client.stream("GET", "models") as response:
        body = beginning(response, 1 << 20)
    with suppress(ValueError, KeyError, IndexError, TypeError, RecursionError):
        return printable(str(json.loads(body)["data"][0]["id"]))
    return ""


def server_request(request: Request, model: str = "") -> tuple[str, dict[str, Any]]:
    """Where to ask below /v1/, and what: in OpenAI's words, and those in which llama.cpp, vLLM and
    SGLang count in every message, read the prompt anew and sample as columns here do. They ignore
    fields that are not theirs.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        **({"messages": request.messages} if request.chat else {"prompt": request.text}),
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed % 2**31,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "timings_per_token": True,
        "cache_prompt": False,
        "ignore_eos": request.ignore_eos,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "repeat_penalty": sampling.repetition_penalty,  # llama.cpp's name
        "repeat_last_n": WHOLE,
    }
    optional = {
        "model": model,
        "stop": list(request.stop),
        "chat_template_kwargs": template_options(request.thinking),
    }
    path = "chat/completions" if request.chat else "completions"
    return path, body | {name: value for name, value in optional.items() if value}


class ServerError(Exception):
    """What a server did, as a sentence says it behind its name: see `explained`."""


@contextmanager
def explained(who: str, key: str = "") -> Iterator[None]:
    """Tell what goes wrong with a server, called so, in a sentence that holds no key."""
    from httpx import ConnectError, ConnectTimeout, HTTPError, InvalidURL, TimeoutException

    try:
        yield
    except (ConnectError, ConnectTimeout, InvalidURL) as error:
        raise DerbyError(f"{who} does not answer: start it, or check its address.") from error
    except TimeoutException as error:
        raise DerbyError(f"{who} sent nothing for {SILENCE:.0f} s: try again.") from error
    except HTTPError as error:
        raise DerbyError(f"{who} broke off: try again.") from error
    except ServerError as error:
        words = str(error).replace(key, "...") if key else str(error)
        raise DerbyError(f"{who} {words}") from error


def stream_answer(
    client: "Client", path: str, body: Mapping[str, Any], emit: Emit, serving: Serving
) -> None:
    """Ask for an answer and hand over what its stream says. Where messages hold llama.cpp's
    `timings`, the seconds are by that clock, which is called `serving.clock`, and messages of one
    moment are one round; else they are the network's. Raises ServerError and httpx's errors.
    """
    began, seconds, written, drafted, accepted, finish = perf_counter(), 0.0, 0, 0, 0, ""
    clock, latest, chunk = "", None, Chunk(seconds=0.0)
    with client.stream("POST", path, json=body) as response:
        for message in _messages(response, SPARE_BYTES + TOKEN_BYTES * body["max_tokens"]):
            text, finish = message.text, finish or message.finish or ""
            count = max(message.written - written, 0)
            if text or count:
                clock = clock or ("network" if message.seconds is None else serving.clock)
            serving = replace(serving, prompt_tokens=message.prompt or serving.prompt_tokens)
            if latest != replace(serving, clock=clock or "network"):
                emit(latest := replace(serving, clock=clock or "network"))
            if not (text or count):
                continue
            now = perf_counter() - began if clock == "network" else message.seconds or 0.0
            passed = max(now - seconds, 0.0)
            if passed and (chunk.text or chunk.count):
                emit(chunk)
                chunk = Chunk(seconds=0.0)
            guessed = max((message.drafted or 0) - drafted, 0)
            right = min(max((message.accepted or 0) - accepted, 0), count)
            chunk = Chunk(
                text=chunk.text + text,
                count=chunk.count + count,
                seconds=(chunk.seconds or 0.0) + passed,
                drafted=chunk.drafted + guessed,
                accepted=chunk.accepted + right,
            )
            seconds, written = seconds + passed, written + count
            drafted, accepted = drafted + guessed, accepted + right
    if not finish:
        raise ServerError("broke off: try again.")
    if finish in ("content_filter", "abort", "error"):  # OpenAI's, vLLM's: there was more to say
        emit(chunk)
        raise ServerError(f"ended the answer early ({finish}): try again, or ask something else.")
    emit(replace(chunk, finish="token limit" if finish == "length" else "end of text"))


#: Figures of a server, which end somewhere, times in a year; None: it does not say.
Count = Annotated[int | None, Field(ge=0, le=1 << 30)]
Milliseconds = Annotated[float | None, Field(ge=0, le=3e10)]


def _at(*path: Any) -> Any:
    return Field(default=None, validation_alias=AliasPath(*path))


class _Message(Untrusted):
    """What a message of a stream says; its numbers are of the whole answer so far."""

    error: Any = None
    thought: str | None = _at("choices", 0, "delta", "reasoning_content")
    thinking: str | None = _at("choices", 0, "delta", "reasoning")  # Ollama's, and vLLM's of late
    chat: str | None = _at("choices", 0, "delta", "content")
    plain: str | None = _at("choices", 0, "text")
    finish: str | None = _at("choices", 0, "finish_reason")
    usage_prompt: Count = _at("usage", "prompt_tokens")
    usage_written: Count = _at("usage", "completion_tokens")
    prompt_ms: Milliseconds = _at("timings", "prompt_ms")
    predicted_ms: Milliseconds = _at("timings", "predicted_ms")
    cached: Count = _at("timings", "cache_n")
    prompt_n: Count = _at("timings", "prompt_n")
    predicted_n: Count = _at("timings", "predicted_n")
    drafted: Count = _at("timings", "draft_n")
    accepted: Count = _at("timings", "draft_n_accepted")

    @property
    def text(self) -> str:
        thought = self.thought or self.thinking
        return "".join(filter(None, (thought, self.chat, self.plain)))

    @property
    def prompt(self) -> int:
        return (self.cached or 0) + (self.prompt_n or 0) or self.usage_prompt or 0

    @property
    def written(self) -> int:
        return self.predicted_n or self.usage_written or 0

    @property
    def seconds(self) -> float | None:
        """By the server's clock, since it took the request; None: it does not say."""
        if self.prompt_ms is None or self.predicted_ms is None:
            return None
        return (self.prompt_ms + self.predicted_ms) / 1e3


def _messages(response: "Response", most: int) -> Iterator[_Message]:
    """The messages of a stream of at most so many bytes. Raises ServerError for what is none."""
    status = response.status_code
    if status != 200:
        words = printable(beginning(response, 2000).decode(errors="replace"))
        remedy = "check its address, model and key" if status < 500 else "try again"
        raise ServerError(f"refused the request (status {status}: {words}): {remedy}.")
    strange = "is not OpenAI-compatible: check its address."
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise ServerError(strange)
    for line in _lines(response.iter_raw(), most):
        data = line.removeprefix(b"data:").strip()
        if data == line.strip():
            continue
        if data == b"[DONE]":  # all that some servers say of the end
            data = b'{"choices": [{"finish_reason": "stop"}]}'
        try:
            message = read_json(_Message, data)
        except UntrustedError as error:
            raise ServerError(strange) from error
        if error := message.error:
            words = error.get("message") if isinstance(error, dict) else error
            raise ServerError(f"says: {printable(str(words))}")
        yield message


def _lines(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The lines of a stream. Raises ServerError for too many bytes."""
    rest, size = b"", 0
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        size += len(piece)
        if size > most:
            raise ServerError("sent far more than it was asked for: it has a bug.")
        yield from lines
    yield rest


def beginning(response: "Response", most: int) -> bytes:
    """The first bytes of a body, `most` of them or few more."""
    body = b""
    for piece in response.iter_raw():
        body += piece
        if len(body) >= most:
            break
    return body


def printable(text: str) -> str:
    """A server's words as a sentence can hold them: on a line, 200 characters at most."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:200]


SERVER = Library("server", elsewhere=ServerModel())
