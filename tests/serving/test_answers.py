"""Answers over HTTP: the text that the same race writes, in one piece and in chunks."""

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
from asking import PLACE, Raced, Site, serving
from hosting import never

from backend.racing.hosts.inline import InlineHost
from backend.racing.hosts.process import ProcessHost
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.serving.models import Offered
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling
from backend.web.offer import offer_of

HELLO = {"model": "fake-loop:lookup", "prompt": "Hello there", "temperature": 0, "max_tokens": 40}


def events(answer: httpx.Response) -> list[Any]:
    """The JSON of a stream's events, which end with [DONE]."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


CASES = [
    ("kv", {"temperature": 0}, Request("Hello there", 40, chat=False)),
    ("speculative", {"seed": 3}, Request("Hello there", 40, Sampling(1.0, seed=3), chat=False)),
    (
        "lookup:k=4",
        {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "seed": 1, "stop": ["e", "zz"]},
        Request("Hello there", 40, Sampling(0.7, 9, 0.9, 1), chat=False, stop=("e", "zz")),
    ),
    (
        "lookahead",
        {"temperature": 0, "stop": " "},
        Request("Hello there", 40, chat=False, stop=(" ",)),
    ),
    ("stateless", {"temperature": 0}, Request("Hello there", 40, chat=False)),
    ("kv:grammar=yes_no", {"temperature": 0}, Request("Hello there", 40, chat=False)),
]


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(("column", "fields", "request_"), CASES, ids=[case[0] for case in CASES])
def test_a_text_is_the_races_in_one_piece_and_in_chunks(
    site: Site, raced: Raced, column: str, fields: dict[str, Any], request_: Request, chat: bool
) -> None:
    same = replace(request_, chat=chat, tags=False)
    wanted = raced("fake-loop", column, same)
    assert wanted.state == "done"
    path = "chat/completions" if chat else "completions"
    messages = {"messages": [{"role": "user", "content": "Hello there"}]}
    asked = {"model": f"fake-loop:{column}", "max_tokens": 40, "return_token_ids": True, **fields}
    asked |= messages if chat else {"prompt": "Hello there"}
    whole = site.post(path, asked).json()
    choice = whole["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == wanted.text
    assert choice["token_ids"] == wanted.tokens
    chunks = events(site.post(path, asked | {"stream": True, "timings_per_token": True}))
    choices = [chunk["choices"][0] for chunk in chunks]
    said = [each["delta"].get("content", "") if chat else each["text"] for each in choices]
    assert "".join(said) == wanted.text
    assert [token for each in choices for token in each["token_ids"]] == wanted.tokens
    finish = "stop" if wanted.reason in ("end of text", "stop string") else "length"
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + [finish]
    assert choice["finish_reason"] == finish
    assert len({chunk["id"] for chunk in chunks}) == 1
    kind = "chat.completion.chunk" if chat else "text_completion"
    assert {(chunk["object"], chunk["model"]) for chunk in chunks} == {(kind, asked["model"])}
    if chat:
        assert [each["delta"].get("role") for each in choices] == ["assistant"] + [None] * (
            len(choices) - 1
        )


def test_usage_and_timings_are_the_columns(site: Site, raced: Raced) -> None:
    """Totals grow from chunk to chunk; the last chunk's are the whole answer's."""
    asked = HELLO | {"model": "fake-loop:lookup:k=3,cache=call", "stream": True}
    options = {"stream_options": {"include_usage": True}, "timings_per_token": True}
    *chunks, last = events(site.post("completions", asked | options))
    wanted = raced("fake-loop", "lookup:k=3", Request("Hello there", 40, chat=False))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 40,
        "total_tokens": 51,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert all(chunk["usage"] is None for chunk in chunks)
    told = [chunk["timings"] for chunk in chunks[:-1]]
    assert len(told) == wanted.steps
    assert told[-1] == last["timings"]
    for before, after in pairwise(told):
        assert before["prompt_ms"] == after["prompt_ms"]
        for name in ("predicted_n", "predicted_ms", "draft_n", "draft_n_accepted"):
            assert before[name] <= after[name]
    assert (told[0]["predicted_n"], told[0]["predicted_ms"]) == (1, 0)
    end = last["timings"]
    assert (end["draft_n"], end["draft_n_accepted"]) == (wanted.drafted, wanted.accepted)
    assert end["draft_n"] > 0
    assert (end["cache_n"], end["prompt_n"], end["predicted_n"]) == (0, 11, 40)
    assert end["prompt_per_token_ms"] == pytest.approx(end["prompt_ms"] / 11, rel=1e-4)
    assert end["predicted_per_token_ms"] == pytest.approx(end["predicted_ms"] / 39, rel=1e-4)
    assert end["predicted_per_second"] == pytest.approx(39e3 / end["predicted_ms"], rel=1e-4)
    plain = events(site.post("completions", asked))
    assert [("timings" in chunk) for chunk in plain] == [False] * (len(plain) - 1) + [True]
    assert not any("usage" in chunk or "token_ids" in chunk["choices"][0] for chunk in plain)


def test_an_answer_begins_with_what_earlier_ones_left(site: Site) -> None:
    asked = HELLO | {"prompt": "Something long enough to be kept, once", "model": "fake:kv"}
    first, again = (site.post("completions", asked).json() for _ in range(2))
    assert again["choices"] == first["choices"]
    count = len(asked["prompt"])
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": count - 1}
    assert (again["timings"]["cache_n"], again["timings"]["prompt_n"]) == (count - 1, 1)
    alone = site.post("completions", asked | {"model": "fake:kv:cache=call"}).json()
    assert alone["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_chat_is_rendered_whole(site: Site) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": "C", "name": "x"},
        {"role": "user", "content": "D"},
    ]
    asked = {"model": "fake:kv", "messages": messages, "max_completion_tokens": 3, "temperature": 0}
    text = "System: Be brief.\nUser: AB\nAnswer: C\nUser: D\nAnswer: "
    whole = site.post("chat/completions", asked).json()
    assert whole["usage"]["prompt_tokens"] == len(text)
    raw = {"model": "fake:kv", "prompt": text, "max_tokens": 3, "temperature": 0}
    same = site.post("completions", raw).json()
    assert same["choices"][0]["text"] == whole["choices"][0]["message"]["content"]


def test_a_programs_tags_are_text_here(site: Site) -> None:
    """A prompt that quoted a template was run as a program."""
    prompt = 'Say {{gen "a"}} or {{repeat 2}}.'
    asked = {"model": "fake:kv", "prompt": prompt, "temperature": 0, "max_tokens": 5}
    assert site.post("completions", asked).json()["usage"]["prompt_tokens"] == len(prompt)
    message = [{"role": "user", "content": prompt}]
    chat = {"model": "fake:kv", "messages": message, "max_tokens": 5}
    whole = site.post("chat/completions", chat).json()
    assert whole["usage"]["prompt_tokens"] == len(f"User: {prompt}\nAnswer: ")


def test_a_request_may_bind_its_text_to_a_grammar(site: Site) -> None:
    asked = HELLO | {"model": "fake", "max_tokens": 60, "temperature": 1, "seed": 1}
    gbnf = site.post("completions", asked | {"grammar": 'root ::= "yes, it is" | "no"'}).json()
    assert gbnf["choices"][0]["text"] in ("yes, it is", "no")
    assert gbnf["choices"][0]["finish_reason"] == "stop"
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    held = site.post("completions", asked | {"response_format": form}).json()
    assert json.loads(held["choices"][0]["text"]) in ({"a": 1}, {"a": 2})


def test_clients_at_one_time_get_their_own_texts(site: Site, raced: Raced) -> None:
    prompts = [f"Client {number} asks" for number in range(8)]

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=site.client.base_url, timeout=60) as client:
            asked = ({**HELLO, "prompt": prompt, "model": "fake:speculative"} for prompt in prompts)
            return await asyncio.gather(
                *(client.post("/v1/completions", json=each) for each in asked)
            )

    for prompt, answer in zip(prompts, asyncio.run(ask_all()), strict=True):
        wanted = raced("fake", "kv", Request(prompt, 40, chat=False)).text
        assert answer.json()["choices"][0]["text"] == wanted


def test_every_listed_model_answers(site: Site) -> None:
    listed = site.client.get("/v1/models").json()
    assert listed["object"] == "list"
    names = [model["id"] for model in listed["data"]]
    assert len(set(names)) == len(names)
    fast = [name for name in names if name.split(":")[0] == "fake-loop"]
    assert {"fake-loop", "fake-loop:kv", "fake-loop:speculative", "fake-loop:lookup"} <= set(fast)
    texts = {}
    for name in fast:
        answer = site.post("completions", HELLO | {"model": name, "max_tokens": 8}).json()
        texts[name] = answer["choices"][0]["text"]
        assert answer["model"] == name
    assert len({text for name, text in texts.items() if not name.endswith(":grammar")}) == 1


@pytest.mark.model
def test_speculation_keeps_the_text_of_a_chat_with_the_built_in_model() -> None:
    offered = Offered(offer_of(["openvino"]), ModelSpec())
    messages = [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": "Name the three primary colours, please."},
    ]
    asked = {"messages": messages, "temperature": 0, "max_tokens": 40, "return_tokens": True}
    with closing(ProcessHost()) as races, serving(races, offered) as site:
        answers = [
            site.post(
                "chat/completions", asked | {"model": f"built-in{column}"}, timeout=300
            ).json()
            for column in (":kv:cache=call", ":speculative", "")
        ]
    first, *others = [answer["choices"][0] for answer in answers]
    assert len(first["message"]["content"]) > 5
    assert others == [first, first]
    assert answers[1]["timings"]["draft_n"] > 0


def test_a_served_column_is_one_of_a_race_elsewhere(site: Site) -> None:
    """By the clock of the server, token by token, and with the text of the same column here."""
    named = f"@{site.client.base_url}:model=fake-loop"
    texts = ("lookup", f"{named}:lookup:cache=call", f"{named}:kv:cache=call")
    target, columns = replace(PLACE, name="fake-loop"), tuple(map(parse_column, texts))
    board = Scoreboard(columns)
    for event in InlineHost().stream(Race(Request("Hello there", 40), columns, target), never):
        board.add(event)
    here, guessed, plain = board.scores
    assert here.text == guessed.text == plain.text
    assert here.tokens == guessed.tokens == plain.tokens
    assert {guessed.clock, plain.clock} == {"server"}
    assert (guessed.written, guessed.prompt_tokens) == (here.written, here.prompt_tokens)
    assert (guessed.drafted, guessed.accepted) == (here.drafted, here.accepted)
    assert plain.drafted == 0
    assert 0 < guessed.ttft < guessed.seconds
