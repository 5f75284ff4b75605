"""From a request's body, of which nothing is trusted, to what is asked of this server.

Fields are those of OpenAI's API, and some that llama.cpp's server and vLLM add. Unknown ones are
ignored, and so is null; a known one that is not what it must be is refused in one sentence.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Len
from pydantic import BeforeValidator, Field, model_validator

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, shipped
from backend.serving.models import Offered
from backend.strategies.column import Column
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling
from backend.untrusted import Untrusted, UntrustedError, Whole, read_json
from backend.web.bodies import RefusedError
from backend.web.form import MAX_STOP, MAX_STOPS

MAX_MESSAGES = 1_000

#: Who may speak in a chat, and as whom the model hears them.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Turns = tuple[tuple[str, str], ...]


def _listed(value: Any) -> Any:
    """A list as it came; a text as a list of one."""
    if not isinstance(value, str | list):
        raise ValueError("it must be text or a list")  # noqa: TRY004 (as pydantic wants it)
    return [value] if isinstance(value, str) else value


class _Sent(Untrusted):
    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: each for name, each in value.items() if each is not None}


class Part(_Sent):
    """A part of a message."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"type": "text", "text": value} if isinstance(value, str) else value


class Message(_Sent):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_listed)]

    @property
    def turn(self) -> tuple[str, str]:
        return _ROLES[self.role], "".join(part.text for part in self.content)


class StreamOptions(_Sent):
    include_usage: bool = False


class NamedSchema(_Sent):
    content: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Sent):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: NamedSchema | None = None


class Call(_Sent):
    """What completions and chats have in common."""

    where: ClassVar[str]

    model: str = ""
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None  # the newer name
    temperature: float = 1.0
    top_k: Whole = 0  # -1 is off, too
    top_p: float = 1.0
    seed: Whole = -1  # -1: any
    stop: Annotated[
        list[Annotated[str, Len(1, MAX_STOP)]], Len(0, MAX_STOPS), BeforeValidator(_listed)
    ] = Field([])
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    timings_per_token: bool = False
    return_token_ids: bool = False
    return_tokens: bool = False  # llama.cpp's name for it
    grammar: str = ""
    response_format: ResponseFormat = ResponseFormat()

    # What would change the answer, and this server does not have: it may say that it is off.
    n: Literal[1] = 1
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    suffix: Literal[""] = ""
    logprobs: Literal[False] = False
    top_logprobs: Literal[0] = 0
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logit_bias: Annotated[dict[str, Any], Len(0, 0)] = Field({})
    tools: Annotated[list[Any], Len(0, 0)] = Field([])
    functions: Annotated[list[Any], Len(0, 0)] = Field([])

    @property
    def token_ids(self) -> bool:
        return self.return_token_ids or self.return_tokens

    def texts(self) -> tuple[Turns, str]:
        """The turns before the prompt, and the prompt."""
        raise NotImplementedError

    def usual_tokens(self, most: int) -> int:
        """How many tokens are written where the call does not say."""
        raise NotImplementedError

    def tokens(self, most: int) -> int:
        """How many tokens to write at most. Raises RefusedError for none, and for more."""
        newer = self.max_completion_tokens
        tokens = self.max_tokens if newer is None else newer
        if tokens is None:
            return min(self.usual_tokens(most), most)
        name = "max_tokens" if newer is None else "max_completion_tokens"
        try:
            check_range(name, tokens, 1, most)
        except DerbyError as error:
            raise RefusedError(str(error), param=name) from error
        return tokens

    def source(self) -> GrammarSource | None:
        """What the text must be, if the call says so: GBNF, a JSON Schema, or any JSON."""
        form = self.response_format
        if self.grammar and form.type != "text":
            raise RefusedError(
                "The request has a grammar and a response_format: send one of them.",
                param="grammar",
            )
        if self.grammar:
            return GrammarSource("gbnf", self.grammar, "the request's")
        if form.type == "json_object":
            return shipped()["json"]
        if form.type == "text":
            return None
        if form.json_schema is None:
            raise RefusedError(
                "response_format must hold the JSON Schema, an object, at json_schema.schema.",
                param="response_format",
            )
        return GrammarSource("json_schema", json.dumps(form.json_schema.content), "the request's")


class CompletionCall(Call):
    where = "prompt"

    prompt: str = ""

    def texts(self) -> tuple[Turns, str]:
        if not self.prompt.strip():
            raise RefusedError("The prompt is empty: send a text as prompt.", param="prompt")
        return (), self.prompt

    def usual_tokens(self, most: int) -> int:
        return 16  # as OpenAI's server has it


class ChatCall(Call):
    where = "messages"

    messages: Annotated[list[Message], Len(1, MAX_MESSAGES)]

    def texts(self) -> tuple[Turns, str]:
        *turns, (role, prompt) = (message.turn for message in self.messages)
        if role != "user" or not prompt.strip():
            raise RefusedError(
                "The last message must be from the user and must have a text.",
                param="messages",
            )
        return tuple(turns), prompt

    def usual_tokens(self, most: int) -> int:
        return most


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks for, and the call in which it does."""

    call: Call
    request: Request
    column: Column
    target: ModelSpec


def read_asked(body: bytes, offered: Offered, *, chat: bool) -> Asked:
    """What a request's body asks for. Raises DerbyError, mostly a RefusedError that names the
    field.
    """
    try:
        call: Call = read_json(ChatCall if chat else CompletionCall, body, "The request's body")
    except UntrustedError as error:
        raise RefusedError(str(error), param=error.field or None) from error
    own, limits = call.source(), offered.offer.limits
    try:
        column, target = offered.read(call.model, own)
    except DerbyError as error:
        raise RefusedError(str(error), 404, "model", "model_not_found") from error
    turns, prompt = call.texts()
    characters = len(prompt) + sum(len(text) for _, text in turns)
    if characters > limits.prompt_characters:
        raise RefusedError(
            f"The {call.where} {'has' if call.where == 'prompt' else 'have'} {characters:,} "
            f"characters; {limits.prompt_characters:,} are allowed: shorten the text.",
            param=call.where,
        )
    seed = secrets.randbelow(2**63) if call.seed == -1 else call.seed
    request = Request(
        prompt,
        call.tokens(min(limits.tokens, MAX_NEW_TOKENS)),
        Sampling(call.temperature, max(0, call.top_k), call.top_p, seed),
        chat,
        tuple(call.stop),
        turns=turns,
        tags=False,
    )
    return Asked(call, request, column, target)
