"""From a request's body, of which nothing is trusted, to what is asked of this server.

Fields are those of OpenAI's API, and some that llama.cpp's server and vLLM add. Unknown ones are
ignored; a known one that is not what it must be is refused in one sentence.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, shipped
from backend.records.document import read_json
from backend.serving.models import Offered
from backend.strategies.column import Column
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling
from backend.web.form import MAX_STOP, MAX_STOPS, read_number, read_whole

T = TypeVar("T")
Values = Mapping[str, Any]

#: Tokens of a completion that names no number of them, as OpenAI's server has it.
USUAL_TOKENS = 16

MAX_MESSAGES = 1_000

#: Fields that change what is answered, and that this server does not have: what they may say.
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "tools": [],
    "functions": [],
}

#: Who may speak in a chat, and as whom the model hears them.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class RefusedError(DerbyError):
    """A request that is not answered: the status, a sentence, and which field is the matter."""

    def __init__(
        self, sentence: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks for. `model` is the name that it wrote. `stream`: in chunks; `usage`: with
    a last one that counts tokens; `timings`: with timings in each; `token_ids`: with tokens' ids.
    """

    request: Request
    column: Column
    target: ModelSpec
    model: str
    stream: bool = False
    usage: bool = False
    timings: bool = False
    token_ids: bool = False


def read_body(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body. Raises RefusedError if there is none."""
    try:
        values = read_json(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError("The request's body is no JSON in UTF-8: check its syntax.") from error
    if not isinstance(values, dict):
        raise RefusedError("The request's body must be a JSON object of fields.")
    return values


def read_asked(values: Values, offered: Offered, *, chat: bool) -> Asked:
    """What these fields ask for. Raises DerbyError, mostly a RefusedError that names the field."""
    _require_neutral(values)
    name = _field(values, "model", _text, "")
    try:
        column, target = offered.read(name, _grammar(values))
    except RefusedError:
        raise
    except DerbyError as error:
        raise RefusedError(str(error), 404, "model", "model_not_found") from error
    limits = offered.offer.limits
    most = min(limits.tokens, MAX_NEW_TOKENS)
    turns, prompt = _chat(values) if chat else ((), _prompt(values))
    characters = len(prompt) + sum(len(text) for _, text in turns)
    where = "messages" if chat else "prompt"
    if characters > limits.prompt_characters:
        raise RefusedError(
            f"The {where} of {characters:,} characters is too long: {limits.prompt_characters:,} "
            "are allowed; shorten it.",
            param=where,
        )
    asked = Request(
        prompt,
        _tokens(values, most, most if chat else USUAL_TOKENS),
        _sampling(values),
        chat,
        _stops(values.get("stop")),
        turns=turns,
        tags=False,
    )
    options = _field(values, "stream_options", _object, {})
    return Asked(
        asked,
        column,
        target,
        name,
        stream=_field(values, "stream", _flag, default=False),
        usage=_field(options, "include_usage", _flag, default=False),
        timings=_field(values, "timings_per_token", _flag, default=False),
        token_ids=_field(values, "return_token_ids", _flag, default=False)
        or _field(values, "return_tokens", _flag, default=False),
    )


def _require_neutral(values: Values) -> None:
    for name, neutral in _NEUTRAL.items():
        value = values.get(name)
        same = value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        if value is not None and not same:
            raise RefusedError(
                f"{name} is {_shown(value)}; this server has no other {name} than "
                f"{_shown(neutral)}: leave it out.",
                param=name,
            )


def _field(values: Values, name: str, read: Callable[[str, Any], T], default: T) -> T:
    """The field of that name; `default` where it is left out or null."""
    if values.get(name) is None:
        return default
    try:
        return read(name, values[name])
    except RefusedError:
        raise
    except DerbyError as error:
        raise RefusedError(str(error), param=name) from error


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DerbyError(f"{name} is {_shown(value)}; it must be one text.")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DerbyError(f"{name} is {_shown(value)}; it must be true or false.")
    return value


def _object(name: str, value: Any) -> Values:
    if not isinstance(value, dict):
        raise DerbyError(f"{name} is {_shown(value)}; it must be an object.")
    return value


def _shown(value: Any) -> str:
    """A value as it came, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _prompt(values: Values) -> str:
    prompt = _field(values, "prompt", _text, "")
    if not prompt.strip():
        raise RefusedError("The prompt is empty: send a text as prompt.", param="prompt")
    return prompt


def _chat(values: Values) -> tuple[tuple[tuple[str, str], ...], str]:
    """The turns of a chat before its last message, and that one's text."""
    messages = values.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise RefusedError(
            f"messages must be a list of 1 to {MAX_MESSAGES} messages, each with role and content.",
            param="messages",
        )
    turns = tuple(_turn(f"messages[{i}]", message) for i, message in enumerate(messages))
    role, prompt = turns[-1]
    if role != "user" or not prompt.strip():
        raise RefusedError(
            "The last message must be the user's and have a text: that is what is answered.",
            param="messages",
        )
    return turns[:-1], prompt


def _turn(name: str, message: Any) -> tuple[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise RefusedError(
            f"{name} must have a role of {', '.join(_ROLES)}; it has {_shown(role)}.",
            param="messages",
        )
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise RefusedError(
            f"{name}'s content must be a text, or a list of parts of type text.", param="messages"
        )
    return _ROLES[role], "".join(map(str, texts))


def _tokens(values: Values, most: int, usual: int) -> int:
    """How many tokens to write at most; chats have a newer name for it."""
    name = "max_tokens" if values.get("max_completion_tokens") is None else "max_completion_tokens"

    def read(name: str, value: Any) -> int:
        tokens = read_whole(name, value)
        check_range(name, tokens, 1, most)
        return tokens

    return _field(values, name, read, min(usual, most))


def _sampling(values: Values) -> Sampling:
    """How tokens are chosen. -1 is off for top_k, and any seed, as with other servers."""
    seed = _field(values, "seed", read_whole, -1)
    return Sampling(
        _field(values, "temperature", read_number, 1.0),
        max(0, _field(values, "top_k", read_whole, 0)),
        _field(values, "top_p", read_number, 1.0),
        secrets.randbelow(2**63) if seed == -1 else seed,
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in stops)
    ):
        raise RefusedError(
            f"stop must be a text of 1 to {MAX_STOP} characters, or a list of up to {MAX_STOPS}.",
            param="stop",
        )
    return tuple(stops)


def _grammar(values: Values) -> GrammarSource | None:
    """What the text must be, if the request says so: GBNF, a JSON Schema, or any JSON."""
    gbnf = _field(values, "grammar", _text, "")
    form = _field(values, "response_format", _object, {})
    kind = form.get("type", "text")
    if gbnf and kind != "text":
        raise RefusedError(
            "The request has a grammar and a response_format: send one of them.", param="grammar"
        )
    if gbnf:
        return GrammarSource("gbnf", gbnf, "the request's")
    if kind == "json_object":
        return shipped()["json"]
    if kind == "json_schema":
        return _schema(form.get("json_schema"))
    if kind != "text":
        raise RefusedError(
            f"response_format's type is {_shown(kind)}; it must be text, json_object or "
            "json_schema.",
            param="response_format",
        )
    return None


def _schema(value: Any) -> GrammarSource:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, dict):
        raise RefusedError(
            "response_format must hold the JSON Schema, an object, at json_schema.schema.",
            param="response_format",
        )
    return GrammarSource("json_schema", json.dumps(schema), "the request's")
