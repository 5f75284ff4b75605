"""What a client may send: each field, and for each that is wrong one sentence that names it."""

import json
from typing import Any

import pytest
from asking import Site, fakes
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.kvcache.sources import EARLIER_ANSWERS, THIS_ANSWER
from backend.limits import PRIVATE, PUBLIC
from backend.serving import models
from backend.serving.requests import ChatCall, read_asked
from backend.strategies.column import Column, parse_column
from backend.types import MAX_NEW_TOKENS, Sampling
from backend.web.bodies import RefusedError

PROMPT = {"model": "fake", "prompt": "Hello"}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
OWN = GrammarSource("regex", "a+", "the request's")


def read(
    values: dict[str, Any], *, chat: bool = False, offered: models.Offered | None = None
) -> Any:
    return read_asked(json.dumps(values).encode(), offered or fakes(), chat=chat)


def test_fields_have_the_usual_meanings_and_unknown_ones_none() -> None:
    asked = read(PROMPT | {"user": "me", "min_p": 0.1, "n": 1, "logprobs": None, "echo": False})
    assert asked.request.max_new_tokens == 16
    assert (asked.request.sampling.temperature, asked.request.sampling.top_p) == (1, 1)
    assert asked.request.sampling != read(PROMPT).request.sampling, "a seed of its own"
    assert not (asked.call.stream)
    assert not (asked.call.timings_per_token)
    assert not (asked.call.token_ids)
    assert read(CHAT, chat=True).request.max_new_tokens == MAX_NEW_TOKENS
    assert read(CHAT, chat=True, offered=fakes(PUBLIC)).request.max_new_tokens == PUBLIC.tokens
    sampled = {"temperature": 0.5, "top_k": -1, "top_p": 0.5, "seed": 7}
    assert read(PROMPT | sampled).request.sampling == Sampling(0.5, 0, 0.5, 7)
    assert read(PROMPT | {"max_tokens": 5, "max_completion_tokens": 6}).request.max_new_tokens == 6
    assert read(PROMPT | {"stop": ["a", "b"]}).request.stop == ("a", "b")
    form = {"type": "json_object"}
    assert read(PROMPT | {"response_format": form}).column.grammar.name == "json"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(sorted({*ChatCall.model_fields, "prompt"})), ANYTHING),
    st.booleans(),
)
def test_anything_is_a_request_or_one_sentence_that_names_its_field(
    sent: dict[str, Any], chat: bool
) -> None:
    try:
        asked = read((CHAT if chat else PROMPT) | sent, chat=chat)
    except RefusedError as refused:
        sentence, param = str(refused), refused.param
    except DerbyError as error:  # of values that only make sense together, and of the sampling
        sentence, param = str(error), None
    else:
        assert asked.request.chat == chat
        return
    assert sentence.endswith(".")
    assert len(sentence) < 300
    assert param is None or param in {*sent, "messages", "prompt", "model"}


def test_a_wrong_request_is_answered_in_openais_shape(site: Site) -> None:
    answer = site.post("completions", PROMPT | {"max_tokens": 0})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "message": f"max_tokens is 0; it must lie between 1 and {MAX_NEW_TOKENS}.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": None,
        }
    }
    answer = site.post("completions", PROMPT | {"model": "gpt-4"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert (
        site.post("completions", PROMPT | {"user": "x" * PRIVATE.request_bytes}).status_code == 413
    )
    bad = site.client.post(
        "/v1/completions", content="{", headers={"content-type": "application/json"}
    )
    assert bad.status_code == 400


NAMES = {
    "fake": "speculative:cache=session",
    "fake-loop:kv": "kv:cache=session",
    "fake:lookup:k=4": "lookup:k=4,cache=session",
    "fake:lookup@fake/fp32/CPU:k=4,cache=call": "lookup@fake/fp32/CPU:k=4",
    "fake:stateless:limit=99": "stateless:limit=99",
    "fake:kv:grammar=sql": "kv:grammar=sql,cache=session",
}


def meant(name: str, own: GrammarSource | None = None) -> Column:
    return fakes().read(name, own)[0]


@pytest.mark.parametrize(("name", "column"), NAMES.items())
def test_a_name_is_a_model_and_a_column(name: str, column: str) -> None:
    found, target = fakes().read(name, None)
    assert found == parse_column(column)
    assert (target.name, target.engine) == (name.partition(":")[0], "fake")


def test_a_column_keeps_its_cache_unless_its_name_says_otherwise() -> None:
    assert meant("fake:kv").cache == EARLIER_ANSWERS
    assert meant("fake:kv:cache=call").cache == THIS_ANSWER
    assert meant("fake:kv", OWN).grammar == meant("fake:grammar:grammar=own", OWN).grammar == OWN


@pytest.mark.parametrize(
    "name",
    [
        "",
        "fake:",
        "fakes",
        "fake:nothing",
        "fake:kv:k=4",
        "fake:kv@torch",
        "fake@fake:kv",
        "fake:kv:model=fake-loop",
        "fake:speculative:draft=/etc",
        "fake:speculative:draft=./x",
        "fake:speculative:draft=owner/model",
        "/etc:kv",
        "owner/model",
        "fake:kv:grammar=own",
        "fake:" + "k" * 2000,
    ],
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match=r"\.$") as refused:
        read(PROMPT | {"model": name})
    assert (refused.value.status, refused.value.param) == (404, "model")


@pytest.mark.parametrize("column", ["server", "@http://127.0.0.1:1", "@vllm:model=a"])
def test_a_column_that_does_not_run_here_is_not_offered(column: str) -> None:
    """Nobody may have this server ask others in its name."""
    assert not any("server" in name for name in fakes().names())
    with pytest.raises(DerbyError, match=r"does not run here|none is offered"):
        fakes().read(f"fake:{column}", None)


def test_the_listed_names_are_names() -> None:
    names = fakes().names()
    assert {name.partition(":")[2] for name in names if name.startswith("fake-loop")} == {
        "",
        "stateless",
        "kv",
        "speculative",
        "lookahead",
        "grammar",
        "lookup",
        "suffix",
        "recycling",
        "layerskip",
    }
    for name in names:
        fakes().read(name, None)
    assert json.dumps(names)
