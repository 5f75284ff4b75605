"""Streams an answer of a server in OpenAI's form. Nothing that a server sends is trusted."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasPath, Field

from backend.errors import DerbyError
from backend.libraries.library import Emit, Part, Serving
from backend.types import Request, template_options
from backend.untrusted import Untrusted, UntrustedError, read_json

if TYPE_CHECKING:
    from httpx import Client, Response

#: Seconds for which a server may send nothing.
SILENCE = 60.0

#: Bytes of a line, and of a whole answer for each of its tokens and beside them.
MOST_LINE, TOKEN_BYTES, SPARE_BYTES = 1 << 18, 1 << 12, 1 << 18

#: Tokens that hold every context: llama.cpp takes a number alone for "all", and room for as many.
WHOLE = 1 << 17

#: What to do about a server's refusal, by its status.
REFUSALS = {
    401: "needs another key: set it in the file of servers",
    403: "refuses this key: set another in the file of servers",
    404: "has no such path or model: check the address and the model",
}


def openai_body(request: Request, model: str = "") -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The path to ask at, what to ask in OpenAI's words, and the fields beyond: they make servers
    count in every message, read the prompt anew, and sample as columns here do.
    """
    sampling, chat = request.sampling, request.chat
    text = {"messages": request.messages} if chat else {"prompt": request.prompt}
    body = text | {
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed % 2**31,
        "stream": True,
    }
    optional = {
        "model": model,
        "stop": list(request.stop),
        "top_p": sampling.top_p if sampling.top_p < 1 else 0,
        "chat_template_kwargs": template_options(request.thinking),
    }
    further = {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "timings_per_token": True,
        "cache_prompt": False,
        "ignore_eos": request.ignore_eos,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "repeat_penalty": sampling.repetition_penalty,  # llama.cpp's name
        "repeat_last_n": WHOLE,
    }
    path = "chat/completions" if chat else "completions"
    return path, body | {name: value for name, value in optional.items() if value}, further


class WrongRequestError(DerbyError):
    """The server called the request wrong: it may not know a field."""


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
    except DerbyError as error:
        hidden = str(error).replace(key, "...") if key else str(error)
        raise DerbyError(hidden.replace("The server", who, 1)) from error


def stream_answer(
    client: "Client", path: str, body: Mapping[str, Any], emit: Emit, serving: Serving
) -> None:
    """Ask for an answer and hand over what its stream says. Where messages hold llama.cpp's
    `timings`, the seconds are by that clock, which is called `serving.clock`, and messages of one
    moment are one round; else they are the network's. Raises DerbyError and httpx's errors: see
    `explained`.
    """
    began, seconds, written, drafted, accepted, finish = perf_counter(), 0.0, 0, 0, 0, ""
    clock, latest, part = "", None, Part(seconds=0.0)
    with client.stream("POST", path, json=body) as response:
        for message in _messages(response, SPARE_BYTES + TOKEN_BYTES * body["max_tokens"]):
            text, finish = message.text, message.finish or finish
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
            if passed and (part.text or part.count):
                emit(part)
                part = Part(seconds=0.0)
            guessed = max((message.drafted or 0) - drafted, 0)
            right = min(max((message.accepted or 0) - accepted, 0), count)
            part = Part(
                text=part.text + text,
                count=part.count + count,
                seconds=(part.seconds or 0.0) + passed,
                drafted=part.drafted + guessed,
                accepted=part.accepted + right,
            )
            seconds, written = seconds + passed, written + count
            drafted, accepted = drafted + guessed, accepted + right
    if not finish:
        raise DerbyError("The server broke off: try again.")
    emit(replace(part, finish="token limit" if finish == "length" else "end of text"))


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
        return "".join(filter(None, (self.thought or self.thinking, self.chat, self.plain)))

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
    """The messages of a stream of at most so many bytes. Raises DerbyError for what is none."""
    status = response.status_code
    if status != 200:
        words = printable(beginning(response, 2000).decode(errors="replace"))
        refusal = REFUSALS.get(status, f"refused the request: {words or 'it does not say why'}")
        kind = WrongRequestError if status in (400, 422) else DerbyError
        raise kind(f"The server {refusal} (status {status}).")
    strange = "The server is not OpenAI-compatible: check its address."
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise DerbyError(strange)
    for line in _lines(response.iter_raw(), most):
        data = line.removeprefix(b"data:").strip()
        if data == line.strip() or data == b"[DONE]":
            continue
        try:
            message = read_json(_Message, data)
        except UntrustedError as error:
            raise DerbyError(strange) from error
        if error := message.error:
            words = error.get("message") if isinstance(error, dict) else error
            raise DerbyError(f"The server says: {printable(str(words))}")
        yield message


def _lines(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The lines of a stream. Raises DerbyError for too many bytes, in all or without an end."""
    rest, size = b"", 0
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        size += len(piece)
        if size > most or len(rest) > MOST_LINE:
            raise DerbyError("The server sent far more than it was asked for: it has a bug.")
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
