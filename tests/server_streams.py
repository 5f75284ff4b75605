"""What servers send, in the forms that are documented of them, and races with such servers.

The streams are written after what is documented of llama.cpp's `timings`, of vLLM's usage, ids and
metrics, and of OpenAI's own form; the log-probabilities after what llama-cpp-python 0.3.36 sent.
"""

from typing import Any

from races import FAKE, board_after, events_of

from backend.events import Event
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import Request

REQUEST = Request("Hello there", 24)

Message = dict[str, Any]


def chat(text: str, finish: str | None = None, **more: Any) -> Message:
    """A chunk of a chat completion; `more` of its choice, or beside the choices."""
    beside = {k: more.pop(k) for k in ("usage", "timings", "metrics") if k in more}
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, **more}
    return {"object": "chat.completion.chunk", "choices": [choice], **beside}


def usage(prompt: int, tokens: int) -> Message:
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


PLAIN = [chat(""), chat("One"), chat(" two"), chat(" three"), chat("", "stop")]

#: The usage comes last, in a message without choices.
COUNTED = [*PLAIN, {"choices": [], "usage": usage(7, 4)}]


def llama_cpp(number: int, text: str, finish: str | None = None) -> Message:
    timings = {
        "cache_n": 2,
        "prompt_n": 5,
        "prompt_ms": 40.0,
        "predicted_n": number,
        "predicted_ms": 10.0 * number,
        "draft_n": 3 * (number // 2),
        "draft_n_accepted": number // 2,
    }
    return chat(text, finish, timings=timings)


LLAMA_CPP = [
    chat(""),
    *(llama_cpp(n, text) for n, text in enumerate(("One", " two", " three"), 1)),
    llama_cpp(3, "", "stop"),
]

VLLM = [
    chat("", usage=usage(7, 0)),
    chat("One two", usage=usage(7, 2), token_ids=[11, 12]),
    chat(" three", usage=usage(7, 3), token_ids=[13]),
    chat("", "stop", usage=usage(7, 3), token_ids=[]),
    {
        "choices": [],
        "usage": usage(7, 3),
        "metrics": {
            "speculative_decoding": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 2}
        },
    },
]


def likely(token: str, *logprobs: float) -> Message:
    top = [{"token": str(i), "logprob": value} for i, value in enumerate(logprobs)]
    return {"content": [{"token": token, "logprob": logprobs[0], "top_logprobs": top}]}


GAPS = [
    chat("One", logprobs=likely("One", -0.5, -1.5)),
    chat(" two", logprobs=likely(" two", -0.1, -3.1)),
    chat("", "length"),
]


def raced(*columns: str, request: Request = REQUEST) -> tuple[list[Event], Scoreboard]:
    race = Race(request, tuple(map(parse_column, columns)), FAKE)
    events = events_of(race)
    return events, board_after(race.columns, events)
