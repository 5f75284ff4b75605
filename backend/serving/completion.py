"""What a client is answered: OpenAI's shapes, with timings as llama.cpp's server sends them.

Every figure is of the column's own clock, which runs only while its steps run: never the network's,
and never the time that a request waited.
"""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from backend.events import Event, Finished, Step
from backend.results.metrics import Score
from backend.serving.requests import Asked
from backend.web.bodies import RefusedError

Json = dict[str, Any]

#: Why a text ended, as OpenAI's API has it; any other reason is a limit.
_STOPS = ("end of text", "stop string")

#: What kind of error a status stands for.
_KINDS = {401: "authentication_error", 500: "server_error", 503: "server_error"}


class Completion:
    """One answer, as its column's events come in."""

    def __init__(self, asked: Asked) -> None:
        self.score = Score()
        self._call = asked.call
        self._chat = asked.request.chat
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._begun = False

    def add(self, event: Event) -> Json | None:
        """Fold in an event: the chunk to send for it, if there is one.

        A chunk is a step, with whole characters; a step that shows nothing yet has one only where
        tokens or timings are asked for.
        """
        self.score.add(event)
        if not isinstance(event, Step | Finished):
            return None
        tokens = event.tokens if isinstance(event, Step) else []
        text = "".join(piece for _, piece in event.spans)
        if not text and not (tokens and (self._call.token_ids or self._call.timings_per_token)):
            return None
        chunk = self._chunk(self._piece(text, tokens))
        return chunk | ({"timings": timings(self.score)} if self._call.timings_per_token else {})

    def last(self) -> Iterator[Json]:
        """The chunks behind a text that has ended: why it did and, if asked for, its usage. The
        last one has the timings.
        """
        ended = self._chunk(self._piece("", [], finish=finish_reason(self.score)))
        told = {"timings": timings(self.score)}
        if not self._call.stream_options.include_usage:
            yield ended | told
            return
        yield ended
        yield {**self._frame(chunk=True), "choices": [], "usage": usage(self.score)} | told

    def whole(self) -> Json:
        """The answer in one piece, once it has ended."""
        score = self.score
        text = {"role": "assistant", "content": score.text} if self._chat else score.text
        choice: Json = {
            "index": 0,
            "message" if self._chat else "text": text,
            "logprobs": None,
            "finish_reason": finish_reason(score),
        }
        if self._call.token_ids:
            choice["token_ids"] = score.tokens
        counted = {"usage": usage(score), "timings": timings(score)}
        return {**self._frame(chunk=False), "choices": [choice], **counted}

    def _frame(self, *, chunk: bool) -> Json:
        kind = "text_completion"
        if self._chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        named = {"created": self._created, "model": self._call.model}
        return {"id": self._id, "object": kind, **named}

    def _chunk(self, choice: Json) -> Json:
        counted = {"usage": None} if self._call.stream_options.include_usage else {}
        return {**self._frame(chunk=True), "choices": [choice], **counted}

    def _piece(self, text: str, tokens: list[int], finish: str | None = None) -> Json:
        """A chunk's choice. The first one of a chat says whose turn it is."""
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._chat:
            role = {} if self._begun else {"role": "assistant"}
            choice["delta"] = role | ({} if finish else {"content": text})
        else:
            choice["text"] = text
        if self._call.token_ids:
            choice["token_ids"] = tokens
        self._begun = True
        return choice


def finish_reason(score: Score) -> str:
    """Whether the text had ended, or a limit cut it, in OpenAI's words."""
    return "stop" if score.reason in _STOPS else "length"


def usage(score: Score) -> Json:
    """The tokens of prompt and answer; the one that ends a text is counted, too."""
    return {
        "prompt_tokens": score.prompt_tokens,
        "completion_tokens": score.written,
        "total_tokens": score.prompt_tokens + score.written,
        "prompt_tokens_details": {"cached_tokens": score.reused},
    }


def timings(score: Score) -> Json:
    """So far, in milliseconds of the column's own clock.

    prompt: up to the end of the first step, which writes the first token; of the prompt's tokens
    those that no earlier cache held. predicted: every token written, but the time behind the first
    step, and per token that time over the tokens behind the first step.
    """
    computed = max(0, score.prompt_tokens - score.reused)
    counts: Json = {
        "cache_n": score.reused,
        "prompt_n": computed,
        "predicted_n": score.written,
        "draft_n": score.drafted,
        "draft_n_accepted": score.accepted,
    }
    figures = {
        "prompt_ms": 1e3 * score.ttft,
        "prompt_per_token_ms": 1e3 * score.ttft / computed if computed else 0.0,
        "prompt_per_second": computed / score.ttft if score.ttft else 0.0,
        "predicted_ms": 1e3 * score.decode_seconds,
        "predicted_per_token_ms": 1e3 * score.tpot,
        "predicted_per_second": score.tokens_per_second,
    }
    return counts | {name: float(f"{value:.6g}") for name, value in figures.items()}


def error_of(error: RefusedError) -> Json:
    """An error in OpenAI's shape."""
    kind = _KINDS.get(error.status, "invalid_request_error")
    told = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": told}


def as_json(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: " + data + b"\n\n"
