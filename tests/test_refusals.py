"""What is refused, and in which words: the one place where sentences of refusals are pinned.

Each table has how to provoke a refusal beside its sentence. Other tests state what is refused, not
how that is said.
"""

import json
from typing import Any

import pytest
from asking import fakes

from backend.errors import DerbyError
from backend.limits import limits_of
from backend.serving.requests import RefusedError, read_asked

#: The fields of a request to `serve` that are wrong, the one that is named, and the sentence.
SERVED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": 3}, "model", "'model' is 3; it must be text."),
    ({"prompt": ["a", "b"]}, "prompt", "'prompt' is a list of 2; it must be text."),
    ({"prompt": " "}, "prompt", "The prompt is empty: send a text as prompt."),
    (
        {"prompt": "x" * 70_000},
        "prompt",
        "The prompt of 70,000 characters is too long: 65,536 are allowed; shorten it.",
    ),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must lie between 1 and 8192."),
    (
        {"max_tokens": "many"},
        "max_tokens",
        "'max_tokens' is 'many'; it must be a whole number.",
    ),
    ({"max_tokens": 1.5}, "max_tokens", "'max_tokens' is 1.5; it must be a whole number."),
    (
        {"max_completion_tokens": 9000},
        "max_completion_tokens",
        "max_completion_tokens is 9000; it must lie between 1 and 8192.",
    ),
    ({"temperature": "hot"}, "temperature", "'temperature' is 'hot'; it must be a number."),
    ({"temperature": True}, "temperature", "'temperature' is True; it must be a number."),
    ({"temperature": -1}, None, "temperature is -1.0; it must lie between 0.0 and 5.0."),
    ({"top_p": 0}, None, "top-p is 0.0; it must lie between 0.01 and 1.0."),
    ({"seed": -2}, None, "seed is -2; it must lie between 0 and 9223372036854775807."),
    (
        {"seed": 2**63},
        "seed",
        (
            "'seed' is 9223372036854775808; it must lie between -9223372036854775808 and "
            "9223372036854775807."
        ),
    ),
    ({"stop": 3}, "stop", "'stop': it must be text or a list."),
    ({"stop": [""]}, "stop", "'stop.0' has 0 characters; it must have at least 1."),
    ({"stop": ["a"] * 17}, "stop", "'stop' has 17 entries; it must have at most 16."),
    ({"stream": "yes"}, "stream", "'stream' is 'yes'; it must be true or false."),
    (
        {"stream_options": {"include_usage": 1}},
        "stream_options",
        "'stream_options.include_usage' is 1; it must be true or false.",
    ),
    ({"n": 2}, "n", "'n' is 2; choose from 1."),
    ({"echo": True}, "echo", "'echo' is True; choose from False."),
    ({"logit_bias": {"1": 5}}, "logit_bias", "'logit_bias' has 1 entries; it must have at most 0."),
    (
        {"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
        "grammar",
        "The request has a grammar and a response_format: send one of them.",
    ),
    (
        {"response_format": {"type": "xml"}},
        "response_format",
        "'response_format.type' is 'xml'; choose from text, json_object, json_schema.",
    ),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format",
        "response_format must hold the JSON Schema, an object, at json_schema.schema.",
    ),
    (
        {"model": "gpt"},
        "model",
        (
            "There is no model 'gpt' here: write MODEL or MODEL:COLUMN, as in "
            "fake:speculative:k=4, with one of fake, fake-slow, fake-draft, fake-loop, "
            "fake-endless."
        ),
    ),
    (
        {"model": "fake:@http://127.0.0.1:1"},
        "model",
        "Server does not run here: choose another column.",
    ),
    (
        {"model": "fake:kv:model=fake-loop"},
        "model",
        (
            "The column 'kv:model=fake-loop' names a model of its own: name it before the column, "
            "as MODEL:COLUMN."
        ),
    ),
]

#: Messages of a chat that are wrong, and the sentence.
CHATS: list[tuple[Any, str]] = [
    ([], "'messages' has 0 entries; it must have at least 1."),
    ("Hello", "'messages' is 'Hello'; it must be a list."),
    ([{"role": "user"}], "'messages.0.content' is missing."),
    ([{"role": "user", "content": 3}], "'messages.0.content': it must be text or a list."),
    (
        [{"role": "tool", "content": "Hello"}],
        "'messages.0.role' is 'tool'; choose from system, developer, user, assistant.",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        "'messages.0.content.0.type' is 'image_url'; choose from text.",
    ),
    (
        [{"role": "user", "content": ""}],
        "The last message must be the user's and have a text: that is what is answered.",
    ),
    (
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        "The last message must be the user's and have a text: that is what is answered.",
    ),
    (
        [{"role": "user", "content": "x" * 70_000}],
        "The messages of 70,000 characters is too long: 65,536 are allowed; shorten it.",
    ),
]

#: Bodies that are no JSON object, and how the sentence begins.
BODIES = {
    b"": "The request's body is not JSON (EOF while parsing",
    b"[1]": "The request's body is a list of 1; it must be an object.",
    b"\xff": "The request's body is not JSON (",
    b'{"temperature": NaN}': "'temperature' is nan; it must be a finite number.",
    b"[" * 10**5: "The request's body is not JSON (recursion limit exceeded",
    b'{"prompt": "\\ud800"}': "The request's body is not JSON (",
}


#: What an operator may write for a limit, and how the sentence begins.
LIMITS = {
    "columns": "The limit columns is ''; it must be a whole number.",
    "colums=3": "There is no limit 'colums'; write NAME=VALUE with one of columns, tokens, ",
    "columns=": "The limit columns is ''; it must be a whole number.",
    "columns=-1": "The limit columns is -1; it must lie between 1 and 9007199254740992.",
    "columns=0": "The limit columns is 0; it must lie between 1 and 9007199254740992.",
    "tokens=1e3": "The limit tokens is '1e3'; it must be a whole number.",
    "=3": "There is no limit ''; write NAME=VALUE with one of columns, tokens, ",
    f"columns={'9' * 1_000_000}": "The limit columns is '99999",
}


@pytest.mark.parametrize(("text", "beginning"), LIMITS.items(), ids=range(len(LIMITS)))
def test_a_limit_is_refused(text: str, beginning: str) -> None:
    with pytest.raises(DerbyError) as refused:
        limits_of([text], public=False)
    assert str(refused.value).startswith(beginning)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("wrong", "param", "sentence"), SERVED)
def test_serve_refuses_a_completion(
    wrong: dict[str, Any], param: str | None, sentence: str
) -> None:
    body = json.dumps({"model": "fake", "prompt": "Hello"} | wrong).encode()
    with pytest.raises(DerbyError) as refused:
        read_asked(body, fakes(), chat=False)
    assert str(refused.value) == sentence
    assert getattr(refused.value, "param", None) == param


@pytest.mark.parametrize(("messages", "sentence"), CHATS)
def test_serve_refuses_a_chat(messages: Any, sentence: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_asked(json.dumps({"model": "fake", "messages": messages}).encode(), fakes(), chat=True)
    assert (str(refused.value), refused.value.param) == (sentence, "messages")


@pytest.mark.parametrize(("body", "beginning"), BODIES.items(), ids=range(len(BODIES)))
def test_serve_refuses_a_body(body: bytes, beginning: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_asked(body, fakes(), chat=False)
    assert str(refused.value).startswith(beginning)
