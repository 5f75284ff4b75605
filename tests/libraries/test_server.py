"""A server's column shows what each kind of server says, by the right clock; it is asked what the
race asks. A bad server fails its own column in a sentence, whatever it sends can be shown, and a
key goes to its server and nowhere else.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from httpx import Client, MockTransport, Response
from hypothesis import given
from hypothesis import strategies as st
from race_runs import FAKE, board_after, events_of, until

from backend.errors import DerbyError
from backend.events import Event, Finished, Served, Step
from backend.libraries.library import Chunk, Serving
from backend.libraries.server import VARIABLE, ServerError, server_at, stream_answer
from backend.racing.hosts import InlineHost
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import recorded
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import Request, Sampling

REQUEST = Request("Hello there", 24)

Message = dict[str, Any]


@dataclass
class Script:
    """What to answer. Models are listed below `base`. A request with a field of `unknown` is called
    wrong in its words; a stream that `breaks` ends before its length; `held` is waited for before
    the last piece.
    """

    pieces: Iterable[bytes] = ()
    status: int = 200
    kind: str = "text/event-stream; charset=utf-8"
    base: str = "/v1"
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])
    breaks: bool = False
    held: threading.Event | None = None
    bodies: list[Message] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def do_GET(self) -> None:
        status = 200 if self.path == f"{self.script.base}/models" else 404
        self._send(status, "application/json", [b'{"data": [{"id": "tiny"}]}'] * (status == 200))

    def do_POST(self) -> None:
        script, length = self.script, int(self.headers["Content-Length"])
        script.bodies.append(json.loads(self.rfile.read(length)))
        script.paths.append(self.path)
        script.keys.add(self.headers["Authorization"])
        refusals = [words for name, words in script.unknown.items() if name in script.bodies[-1]]
        if refusals:
            self._send(400, "application/json", [json.dumps({"error": refusals[0]}).encode()])
        else:
            self._send(script.status, script.kind, script.pieces, script.held, script.breaks)

    def _send(
        self,
        status: int,
        kind: str,
        pieces: Iterable[bytes],
        held: threading.Event | None = None,
        breaks: bool = False,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if breaks:
            self.send_header("Content-Length", "1000000")
        self.end_headers()
        *first, last = [*pieces] or [b""]
        with suppress(ConnectionError):
            for piece in first:
                self.wfile.write(piece)
            if held is not None:
                held.wait()
            self.wfile.write(last)


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """The address of a server that follows the script."""
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if script.held is not None:
            script.held.set()
        server.shutdown()
        server.server_close()
        thread.join()


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


def answered(request: Request = REQUEST, at: str = "", **more: Any) -> tuple[Script, Scoreboard]:
    """What a server was asked by a column, and what came of it."""
    script = Script(**dict[str, Any](pieces=stream(*COUNTED)) | more)
    with scripted(script) as address:
        return script, raced(f"@{address}{at}", request=request)[1]


@pytest.mark.parametrize(
    ("messages", "length", "reason"),
    [
        (PLAIN, 0, "end of text"),
        (COUNTED, 3, "end of text"),
        (CONTINUOUS, 3, "token limit"),
    ],
)
def test_without_timings_text_is_timed_over_the_network(
    messages: list[Message], length: int, reason: str
) -> None:
    """Tokens are as many as the server counts, in each message or at the end."""
    with scripted(Script(stream(*messages))) as address:
        events, board = raced("kv", f"@{address}")
    score = board.scores[1]
    assert (score.state, score.reason, score.text) == ("done", reason, "One two three")
    assert (score.clock, score.length, score.prompt_tokens) == ("network", length, length and 7)
    assert 0 < score.ttft <= score.seconds
    served = [event.model for event in events if isinstance(event, Served)]
    assert served[-1] == f"tiny on {address.removeprefix('http://')}"
    assert not result_of(board).rows[1].speedup.known, "two machines have no common moment"


@pytest.mark.parametrize(
    ("last", "reason"), [([], "end of text"), ([chat("", "length")], "token limit")]
)
def test_a_mark_ends_a_stream_that_gives_no_reason(last: list[Message], reason: str) -> None:
    pieces = [*stream(*PLAIN[:-1], *last), b"data: [DONE]\n\n"]
    score = answered(pieces=pieces)[1].scores[0]
    assert (score.state, score.reason, score.text) == ("done", reason, "One two three")


def test_llama_cpps_own_clock_is_used_where_it_sends_one() -> None:
    with scripted(Script(stream(*LLAMA_CPP))) as address:
        score = raced(f"@{address}")[1].scores[0]
    assert (score.clock, score.text) == ("server", "One two three")
    assert [moment.clock for moment in score.moments if moment.step] == pytest.approx(
        [0.05, 0.06, 0.07]
    )
    assert score.ttft == pytest.approx(0.05)
    assert (score.prompt_tokens, score.drafted, score.accepted) == (7, 3, 1)


def test_the_request_is_the_races() -> None:
    earlier = (("Who?", "I."),)
    drawn = Sampling(0.7, 40, 0.9, 2**40 + 5, min_p=0.1)
    script, _ = answered(Request("Why?", 9, drawn, stop=("x",), earlier=earlier))
    body = script.bodies[0]
    assert script.paths == ["/v1/chat/completions"]
    turns = [(each["role"], each["content"]) for each in body["messages"]]
    assert turns == [("user", "Who?"), ("assistant", "I."), ("user", "Why?")]
    fields = [body[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")]
    assert fields == [0.7, 40, 0.9, 0.1, 5]
    assert (body["max_tokens"], body["stop"], body["model"]) == (9, ["x"], "tiny")
    assert body["cache_prompt"] is False, "a column reads its prompt anew"
    script, _ = answered(Request("Why?", 9, chat=False))
    assert (script.paths, script.bodies[0]["prompt"]) == (["/v1/completions"], "Why?")


@pytest.mark.parametrize(
    ("at", "listed", "base"),
    [
        ("", "/v1", "/v1"),
        ("", "", ""),
        ("", "/nowhere", "/v1"),
        ("/v1/", "/v1", "/v1"),
        ("/v3", "/nowhere", "/v3"),
        ("/api", "/api/v1", "/api/v1"),
        ("/v1beta/openai", "/v1beta/openai", "/v1beta/openai"),
    ],
)
def test_v1_is_added_unless_models_are_listed_without(at: str, listed: str, base: str) -> None:
    script, board = answered(at=at, base=listed)
    assert (script.paths, board.scores[0].state) == ([f"{base}/chat/completions"], "done")


def test_a_server_that_knows_fewer_fields_is_asked_for_less_if_that_is_the_same() -> None:
    unknown = {"timings_per_token": "unknown field"}
    script, board = answered(unknown=unknown)
    assert (len(script.bodies), board.scores[0].text) == (2, "One two three")
    for request in (
        Request("Hi", sampling=Sampling(0.7, min_p=0.1)),
        Request("Hi", ignore_eos=True),
    ):
        script, board = answered(request, unknown=unknown)
        assert (len(script.bodies), board.scores[0].state) == (1, "failed")
        assert "unknown field" in board.scores[0].message


@pytest.mark.parametrize("at", [None, 0, 20])
def test_texts_are_compared_by_character(at: int | None) -> None:
    _, board = raced("kv")
    text = board.scores[0].text
    other = text if at is None else text[:at] + "\N{SNOWMAN}" + text[at + 1 :]
    with scripted(Script(stream(chat(other[:5]), chat(other[5:], "length")))) as url:
        _, board = raced("kv", f"@{url}")
    row = result_of(board).rows[1]
    assert row.text == ("same" if at is None else "different")
    assert row.comparison.comparison
    assert row.comparison.comparison.parted == (at is not None)
    assert row.comparison.comparison.agreed == (len(text) if at is None else at)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "ends without a reason": ({"pieces": stream(*PLAIN[:3])}, "broke off"),
    "dies": ({"pieces": stream(*PLAIN[:3]), "breaks": True}, "broke off"),
    "no key": ({"status": 401}, "needs another key"),
    "no path": ({"status": 404}, "has no such path or model"),
    "a flaw": ({"status": 500, "pieces": [b"out\nof \x00memory"]}, "the request: out of memory"),
    "an error": ({"pieces": stream({"error": {"message": "no room"}})}, "says: no room"),
    "a page": ({"pieces": [b"<html>"], "kind": "text/html"}, "is not OpenAI-compatible"),
    "no JSON": ({"pieces": [b"data: {\xe2\n\n"]}, "is not OpenAI-compatible"),
    "no answer": ({"pieces": stream({"choices": [{"text": 3}]})}, "is not OpenAI-compatible"),
    "a line without end": ({"pieces": [b"data: " + b"x" * 300_000]}, "far more"),
    "too much": ({"pieces": stream(chat("x" * 2000)) * 300}, "far more"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_fails_its_own_column_in_a_sentence(name: str) -> None:
    settings, reason = BAD[name]
    with scripted(Script(**settings)) as address:
        _, board = raced("kv", f"@{address}")
    message = board.scores[1].message
    assert [score.state for score in board.scores] == ["done", "failed"]
    assert message.startswith(f"The server {address.removeprefix('http://')} ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize("finish", ["content_filter", "abort"])
def test_an_answer_that_ends_early_is_shown_and_has_failed(finish: str) -> None:
    score = answered(pieces=stream(*PLAIN[:-1], chat("", finish)))[1].scores[0]
    assert (score.state, score.text) == ("failed", "One two three")
    assert finish in score.message


def test_nobody_there_is_a_sentence() -> None:
    with scripted(Script()) as address:
        pass
    _, board = raced("kv", f"@{address}", "@nowhere")
    assert "does not answer: start it" in board.scores[1].message
    assert "There is no server 'nowhere'" in board.scores[2].message
    assert board.scores[0].state == "done"


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "servers.toml"))
    return tmp_path / "servers.toml"


def test_a_key_goes_to_its_server_and_nowhere_else(servers: Path) -> None:
    script = Script(stream(*COUNTED))
    with scripted(script) as address:
        servers.write_text(f'[mine]\nurl = "{address}"\nkey = "sk-hush"\n')
        events, board = raced("kv", "@mine")
        assert script.keys == {"Bearer sk-hush"}
        assert [each.model for each in events if isinstance(each, Served)][-1] == "tiny on mine"
        record = as_bytes(recorded(REQUEST, board.columns, FAKE, events))
        assert b"hush" not in record
        assert b"127.0.0.1" not in record, "nor does the address of one that goes by a name"
        assert "hush" not in repr(server_at("mine"))
        script.pieces, script.status = [b"you sent sk-hush"], 500
        _, board = raced("kv", "@mine")
    assert board.scores[1].message.endswith("refused the request: you sent ... (status 500).")


def test_the_operators_file_is_read_strictly(
    servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is a host and perhaps a version; a key may stand in the environment."""
    servers.write_text('[mine]\nurl = "http://host"\nkey_variable = "MY_KEY"\n')
    for text, url in (
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://host.example/api/v3", "https://host.example/api/v3"),
        ("http://[::1]:8080", "http://[::1]:8080"),
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


def test_a_stop_ends_the_column_of_a_server_that_fell_silent() -> None:
    script = Script(stream(*PLAIN), held=threading.Event())
    events: list[Event] = []
    with scripted(script) as address:
        race = Race(REQUEST, (parse_column(f"@{address}"),), FAKE)

        def silent() -> bool:
            return sum(isinstance(event, Step) for event in events) == 2

        began = time.monotonic()
        InlineHost(LoadedModels()).run(race, events.append, silent)
        assert time.monotonic() - began < 10
        assert [e.reason for e in events if isinstance(e, Finished)] == ["stopped"]
    until(lambda: not any(each.name == "library" for each in threading.enumerate()))


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
