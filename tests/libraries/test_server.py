"""A server's column shows what each kind of server says, by the right clock; it is asked what the
race asks. A bad server fails its own column in a sentence, whatever it sends can be shown, and a
key goes to its server and nowhere else.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from httpx import Client, HTTPTransport, MockTransport, ReadError, Response
from httpx import Request as HttpRequest
from hypothesis import given
from hypothesis import strategies as st
from race_runs import FAKE, board_after, events_of

from backend.errors import DerbyError
from backend.events import Event
from backend.libraries.library import Chunk, Serving
from backend.libraries.server import VARIABLE, ServerError, server_at, stream_answer
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import recorded
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import Request, Sampling

REQUEST = Request("Hello there", 24)
HOST = "http://host:8000"

Message = dict[str, Any]


@dataclass
class Server:
    """What it answers, and what it was asked: paths, bodies and keys."""

    pieces: Iterable[bytes]
    status: int = 200
    kind: str = "text/event-stream; charset=utf-8"
    models: bytes = b'{"data": [{"id": "tiny"}]}'
    paths: list[str] = field(default_factory=list)
    bodies: list[Message] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)

    def answer(self, request: HttpRequest) -> Response:
        if request.method == "GET":
            return Response(200, content=iter([self.models]))
        self.paths.append(request.url.path)
        self.bodies.append(json.loads(request.content))
        self.keys.add(request.headers.get("Authorization"))
        return Response(self.status, headers={"Content-Type": self.kind}, content=iter(self.pieces))


#: Sets up the server that answers at every address: the bytes of its stream, and what is unusual.
Serve = Callable[..., Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    def served(pieces: Iterable[bytes], **unusual: Any) -> Server:
        server = Server(pieces, **unusual)

        def handle(_: HTTPTransport, request: HttpRequest) -> Response:
            return server.answer(request)

        monkeypatch.setattr(HTTPTransport, "handle_request", handle)
        return server

    return served


def stream(*messages: Message) -> list[bytes]:
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in messages]


def chat(text: str | list[Any], finish: str | None = None, **beside: Any) -> Message:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"choices": [choice], **beside}


def usage(tokens: int) -> Message:
    return {"prompt_tokens": 7, "completion_tokens": tokens}


def timings(number: int) -> Message:
    """What llama.cpp says of the answer so far."""
    return {
        "cache_n": 2,
        "prompt_n": 5,
        "prompt_ms": 40.0,
        "predicted_n": number,
        "predicted_ms": 10.0 * number,
        "draft_n": 3 * (number // 2),
        "draft_n_accepted": number // 2,
    }


TEXTS = ("One", " two", " three")
PLAIN = [chat(""), *map(chat, TEXTS), chat("", "stop")]
COUNTED = [*PLAIN, {"choices": [], "usage": usage(3)}]
CONTINUOUS = [
    *(chat(text, usage=usage(n)) for n, text in enumerate(TEXTS, 1)),
    chat("", "length", usage=usage(3)),
]
LLAMA_CPP = [
    chat(""),
    *(chat(text, timings=timings(n)) for n, text in enumerate(TEXTS, 1)),
    chat("", "stop", timings=timings(3)),
]


def raced(*columns: str, request: Request = REQUEST) -> tuple[list[Event], Scoreboard]:
    """Each column runs once."""
    race = Race(request, tuple(map(parse_column, columns)), FAKE, alone_from=0)
    events = events_of(race)
    return events, board_after(race.columns, events)


@pytest.mark.parametrize(
    ("messages", "length", "reason"),
    [
        (PLAIN, 0, "end of text"),
        (COUNTED, 3, "end of text"),
        (CONTINUOUS, 3, "token limit"),
        (PLAIN[:-1], 0, "end of text"),
    ],
)
def test_without_timings_text_is_timed_over_the_network(
    messages: list[Message], length: int, reason: str, serve: Serve
) -> None:
    """Tokens are as many as the server counts, in each message or at the end; a mark ends a stream
    that gives no reason.
    """
    serve([*stream(*messages), b"data: [DONE]\n\n"])
    board = raced("kv", f"@{HOST}")[1]
    score = board.scores[1]
    assert (score.state, score.reason, score.text) == ("done", reason, "One two three")
    assert (score.clock, score.length, score.prompt_tokens) == ("network", length, length and 7)
    assert 0 < score.ttft <= score.seconds
    assert not result_of(board).rows[1].speedup.known, "two machines have no common moment"


def test_llama_cpps_own_clock_is_used_where_it_sends_one(serve: Serve) -> None:
    serve(stream(*LLAMA_CPP))
    score = raced(f"@{HOST}")[1].scores[0]
    assert (score.clock, score.text) == ("server", "One two three")
    clocks = [moment.clock for moment in score.moments if moment.step]
    assert clocks == pytest.approx([0.05, 0.06, 0.07])
    assert score.ttft == pytest.approx(0.05)
    assert (score.prompt_tokens, score.drafted, score.accepted) == (7, 3, 1)


def test_the_request_is_the_races(serve: Serve) -> None:
    server, earlier = serve(stream(*COUNTED)), (("Who?", "I."),)
    drawn = Sampling(0.7, 40, 0.9, 2**40 + 5, min_p=0.1)
    raced(f"@{HOST}", request=Request("Why?", 9, drawn, stop=("x",), earlier=earlier))
    body = server.bodies[0]
    turns = [(each["role"], each["content"]) for each in body["messages"]]
    assert turns == [("user", "Who?"), ("assistant", "I."), ("user", "Why?")]
    fields = [body[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")]
    assert fields == [0.7, 40, 0.9, 0.1, 5]
    assert (body["max_tokens"], body["stop"], body["model"]) == (9, ["x"], "tiny")
    assert body["cache_prompt"] is False, "a column reads its prompt anew"
    raced(f"@{HOST}/v3:model=other", request=Request("Why?", 9, chat=False))
    assert server.paths == ["/v1/chat/completions", "/v3/completions"]
    assert (server.bodies[1]["prompt"], server.bodies[1]["model"]) == ("Why?", "other")


@pytest.mark.parametrize("models", [b"<html>", b"[" * 99_999, b'{"data": []}'])
def test_a_server_that_lists_no_models_is_asked_without_one(models: bytes, serve: Serve) -> None:
    server = serve(stream(*COUNTED), models=models)
    assert raced(f"@{HOST}")[1].scores[0].text == "One two three"
    assert "model" not in server.bodies[0]


def broken() -> Iterator[bytes]:
    yield from stream(*PLAIN[:3])
    raise ReadError("")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "ends without a reason": ({"pieces": stream(*PLAIN[:3])}, "broke off"),
    "dies": ({"pieces": broken()}, "broke off"),
    "a filter": ({"pieces": stream(*PLAIN[:-1], chat("", "content_filter"))}, "content_filter"),
    "no key": ({"pieces": [], "status": 401}, "model and key"),
    "a flaw": ({"status": 500, "pieces": [b"out\nof \x00memory"]}, "500: out of memory): try"),
    "an error": ({"pieces": stream({"error": {"message": "no room"}})}, "says: no room"),
    "a page": ({"pieces": [b"<html>"], "kind": "text/html"}, "is not OpenAI-compatible"),
    "no JSON": ({"pieces": [b"data: {\xe2\n\n"]}, "is not OpenAI-compatible"),
    "no answer": ({"pieces": stream({"choices": [{"text": 3}]})}, "is not OpenAI-compatible"),
    "a line without end": ({"pieces": [b"data: " + b"x" * 400_000]}, "far more"),
    "too much": ({"pieces": stream(chat("x" * 2000)) * 300}, "far more"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_fails_its_own_column_in_a_sentence(name: str, serve: Serve) -> None:
    settings, reason = BAD[name]
    serve(**settings)
    _, board = raced("kv", f"@{HOST}")
    message = board.scores[1].message
    assert [score.state for score in board.scores] == ["done", "failed"]
    assert message.startswith("The server host:8000 ")
    assert reason in message
    assert "\n" not in message
    if name in ("dies", "a filter"):
        assert board.scores[1].text.startswith("One"), "what was written is shown"


def test_nobody_there_is_a_sentence() -> None:
    _, board = raced("kv", "@http://127.0.0.1:1", "@nowhere")
    assert "does not answer: start it" in board.scores[1].message
    assert "There is no server 'nowhere'" in board.scores[2].message
    assert board.scores[0].state == "done"


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "servers.toml"))
    return tmp_path / "servers.toml"


def test_a_key_goes_to_its_server_and_nowhere_else(servers: Path, serve: Serve) -> None:
    server = serve(stream(*COUNTED))
    servers.write_text(f'[mine]\nurl = "{HOST}"\nkey = "sk-hush"\n')
    events, board = raced("kv", "@mine")
    assert server.keys == {"Bearer sk-hush"}
    record = as_bytes(recorded(REQUEST, board.columns, FAKE, events))
    assert b"hush" not in record
    assert b"8000" not in record, "nor does the address of one that goes by a name"
    assert "hush" not in repr(server_at("mine"))
    serve([b"you sent sk-hush"], status=500)
    _, board = raced("kv", "@mine")
    assert "you sent ...)" in board.scores[1].message


def test_the_operators_file_is_read_strictly(
    servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is a host and perhaps a path, else /v1; a key may stand in the environment."""
    servers.write_text('[mine]\nurl = "http://host"\nkey_variable = "MY_KEY"\n')
    for text, url in (
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"),
        ("https://host.example/api/v3", "https://host.example/api/v3"),
        ("http://[::1]:8080/v1beta/openai", "http://[::1]:8080/v1beta/openai"),
    ):
        assert server_at(text).url == url
    for text in ("http://me:key@host", "http://host/?key=1", "http://host/#a", "http://", "host"):
        with pytest.raises(DerbyError):
            server_at(text)
    with pytest.raises(DerbyError, match="MY_KEY"):
        server_at("mine")
    monkeypatch.setenv("MY_KEY", "sk-hush")
    assert server_at("mine").key == "sk-hush"
    for text in ("[mine", "[mine]\nport = 1", "[mine]\nmodel = 'a'", "[mine]\nurl = 3", "mine = 1"):
        servers.write_text(text)
        with pytest.raises(DerbyError, match=r"mine|file of servers"):
            server_at("mine")


NUMBERS = st.integers(-5, 40) | st.floats() | st.sampled_from([10**400, -(10**9), True, None, "1"])


def _any(names: str) -> st.SearchStrategy[Message]:
    return st.dictionaries(st.sampled_from(names.split()), NUMBERS, max_size=5)


ANY_MESSAGE = st.builds(
    lambda text, finish, counts, times: chat(text, finish, usage=counts, timings=times),
    st.sampled_from(["", "a", "\ud83d"]),
    st.sampled_from([None, "stop", "length"]),
    _any("prompt_tokens completion_tokens"),
    _any("prompt_ms predicted_ms prompt_n predicted_n draft_n draft_n_accepted"),
)


@given(st.lists(ANY_MESSAGE, max_size=6))
def test_whatever_a_server_says_can_be_shown_and_recorded(messages: list[Message]) -> None:
    """No figure is negative, endless or not a number, and none counts what was not written."""
    body, parts = b"".join(stream(*messages)), list[Chunk | Serving]()
    kind = {"Content-Type": "text/event-stream"}
    client = Client(
        base_url="http://host",
        transport=MockTransport(lambda _: Response(200, headers=kind, content=iter([body]))),
    )
    with suppress(ServerError), client:
        stream_answer(client, "completions", {"max_tokens": 24}, parts.append, Serving())
    for part in parts:
        if isinstance(part, Chunk):
            part.text.encode()
            assert part.seconds is not None
            assert 0 <= part.seconds < 1e9
            assert 0 <= part.accepted <= part.count
            assert part.drafted >= 0
