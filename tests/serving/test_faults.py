"""Clients that vanish, a full line, a worker that dies, strangers: each a sentence, and no harm."""

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from asking import Site, fakes, serving
from hosting import until

from backend.events import Event
from backend.limits import PRIVATE
from backend.racing.hosts.process import ProcessHost
from backend.serving import server

QUICK = {"model": "fake:kv", "prompt": "Hello", "max_tokens": 3, "temperature": 0}
#: Longer than any test has patience.
ENDLESS = QUICK | {"model": "fake-endless:kv", "max_tokens": 4000}


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Do it in a thread; the list gets what comes of it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def assert_answers(site: Site) -> None:
    answer = site.post("completions", QUICK)
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["text"]) == 3


@contextmanager
def begun(site: Site) -> Iterator[Iterator[str]]:
    """The lines to come of a stream that has begun; its client goes away in the end."""
    asked = ENDLESS | {"stream": True}
    with site.client.stream("POST", "/v1/completions", json=asked) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield lines


@contextmanager
def sent(site: Site, values: dict[str, Any]) -> Iterator[None]:
    """A request whose client goes away in the end, with no answer."""
    request = site.client.build_request("POST", "/v1/completions", json=values)
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", ""]).encode()
    with socket.create_connection((request.url.host, request.url.port)) as client:
        client.sendall(head + request.read())
        yield


def runs(site: Site) -> bool:
    """Whether the worker has received a race, and has not ended it."""
    worker = site.races._worker
    return worker.begun and worker._busy


def error_in(answer: httpx.Response) -> Any:
    """The error, which has OpenAI's shape and one sentence."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert "\n" not in error["message"]
    return error


def test_a_client_that_goes_away_ends_its_run(site: Site) -> None:
    """The next one would wait for a minute."""
    with begun(site):
        pass
    assert_answers(site)


def test_a_client_that_goes_away_without_a_stream_ends_its_run(site: Site) -> None:
    until(lambda: site.length == 0)
    with sent(site, ENDLESS):
        until(lambda: site.length == 1)
        until(lambda: runs(site))
    assert_answers(site)


def test_a_line_that_is_full_says_when_to_come_back(races: ProcessHost) -> None:
    limits = replace(PRIVATE, waiting=1)
    with serving(races, fakes(limits)) as site:
        with begun(site):
            thread, waiting = in_background(lambda: site.post("completions", QUICK))
            until(lambda: site.length == 2)
            for stream in (False, True):
                refused = site.post("completions", QUICK | {"stream": stream})
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
                assert error_in(refused)["code"] == "line_full"
        thread.join()
        assert waiting[0].status_code == 200
        until(lambda: site.length == 0)
        assert_answers(site)


@contextmanager
def half_sent(site: Site, count: int, begins: bytes = b"POST /v1/compl") -> Iterator[list[Any]]:
    """Connections on which a request has begun to come."""
    place = site.client.base_url.host, site.client.base_url.port
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_connection(place, 60)) for _ in range(count)]
        for each in sockets:
            each.sendall(begins)
        yield sockets


def test_connections_that_ask_for_nothing_keep_nobody_out(site: Site) -> None:
    """Eighty of them once made a server answer 503 to whoever had the key."""
    with half_sent(site, 200):
        assert_answers(site)


def test_a_request_that_does_not_come_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were once held for as long as their clients liked, also behind a first request."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for begins in (b"", b"GET", b"GET /health HTTP/1.1\r\nHost: loc", whole + b"GET"):
        with half_sent(site, 1, begins) as (client,):
            while client.recv(4096):
                pass


def test_a_client_that_goes_on_sending_behind_its_answer_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte put the end off, and 512 such clients, who needed no key, left others no room."""
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    head = b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    with half_sent(site, 1, head) as (client,):
        assert client.recv(4096).startswith(b"HTTP/1.1 405")

        def gone() -> bool:
            try:
                client.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        until(gone)


def test_of_too_many_connections_the_idlest_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 3600.0)
    with half_sent(site, 12) as clients:
        monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
        with half_sent(site, 2):  # the client of the other tests may be idle, too
            with suppress(ConnectionResetError):  # what it has sent is not read any more
                assert clients[0].recv(1) == b""
            assert_answers(site)


def test_of_two_hundred_requests_at_once_as_many_are_answered_as_may_wait(
    races: ProcessHost,
) -> None:
    """None was: uvicorn counted connections, and refused them all in plain text."""

    async def asked(address: httpx.URL) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
            posts = (client.post("/v1/completions", json=QUICK) for _ in range(200))
            return await asyncio.gather(*posts)

    with serving(races, fakes()) as site:
        answers = asyncio.run(asked(site.client.base_url))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) - len(refused) > PRIVATE.waiting
    assert refused
    for answer in refused:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert error_in(answer)["code"] == "line_full"


def test_a_request_that_waits_leaves_the_line_with_its_client(races: ProcessHost) -> None:
    with serving(races, fakes(replace(PRIVATE, waiting=1))) as site, begun(site):
        with sent(site, QUICK):
            until(lambda: site.length == 2)
        until(lambda: site.length == 1)


def test_a_long_answer_ends_where_others_wait(races: ProcessHost) -> None:
    with serving(races, fakes(replace(PRIVATE, race_seconds=1))) as site:
        long, answers = in_background(lambda: site.post("completions", ENDLESS))
        until(lambda: site.length == 1)
        assert_answers(site)
        long.join()
        choice = answers[0].json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert len(choice["text"]) > 0


def test_a_worker_that_dies_is_an_error_in_the_stream(site: Site) -> None:
    with begun(site) as lines:
        os.kill(site.races.pid, signal.SIGKILL)
        *_, error, done = [line for line in lines if line]
    assert done == "data: [DONE]"
    told = json.loads(error.removeprefix("data: "))["error"]
    assert told["message"].startswith("The worker process died (SIGKILL")
    assert told["type"] == "server_error"
    assert_answers(site)


def test_a_worker_that_dies_without_a_stream_is_a_503(site: Site) -> None:
    until(lambda: site.length == 0)
    thread, answers = in_background(lambda: site.post("completions", ENDLESS))
    until(lambda: runs(site))
    os.kill(site.races.pid, signal.SIGKILL)
    thread.join()
    assert answers[0].status_code == 503
    assert "The worker process died" in error_in(answers[0])["message"]
    assert_answers(site)


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_before_the_first_token_has_a_status(site: Site, stream: bool) -> None:
    """In a stream too: nothing of it has been sent by then."""
    for values, said in (
        ({"prompt": "x" * 5000}, "The prompt has 5,000 tokens; the context holds 4,096"),
        ({"grammar": "root ::= nothing"}, "nothing"),
    ):
        answer = site.post("completions", QUICK | values | {"stream": stream})
        assert answer.status_code == 400
        error = error_in(answer)
        assert said in error["message"]
        assert error["type"] == "invalid_request_error"


def test_what_breaks_here_is_a_500_with_a_reference(
    site: Site, races: ProcessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Event]:
        raise RuntimeError("secret")

    monkeypatch.setattr(races, "stream", broken)
    for stream in (False, True):
        answer = site.post("completions", QUICK | {"stream": stream})
        assert answer.status_code == 500
        assert "reference" in error_in(answer)["message"]
        assert "secret" not in answer.text
    monkeypatch.undo()
    assert_answers(site)


def test_who_has_no_key_gets_no_further(races: ProcessHost) -> None:
    with serving(races, fakes(), key="s3cret") as site:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            for answer in (
                site.post("completions", QUICK, headers=given),
                site.client.get("/v1/models", headers=given),
            ):
                assert answer.status_code == 401
                error = error_in(answer)
                assert error["code"] == "invalid_api_key"
                assert "s3cret" not in answer.text
        unsigned = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        with half_sent(site, 3, unsigned) as clients:
            for each in clients:
                assert each.recv(12) == b"HTTP/1.1 401"
            assert site.length == 0, "they stand in no line"
        right = {"Authorization": "Bearer s3cret"}
        assert site.post("completions", QUICK, headers=right).status_code == 200
        # Behind a proxy it may have any name: whoever has the key is let in.
        named = right | {"Host": "models.example"}
        assert site.client.get("/v1/models", headers=named).status_code == 200
        assert site.client.get("/health").json() == {"status": "ok"}


def test_a_website_cannot_ask_by_a_name_of_its_own(site: Site) -> None:
    """Whoever lets a name point to this machine has a page in its browsers (DNS rebinding). A name
    with an underscore once passed: what is no name by the letter was taken for the server's own.
    """
    for host in ("evil.example", "127.0.0.1.evil.example:80", "ev_il.example", "a b", "[::1"):
        asked = site.post("completions", QUICK, headers={"Host": host})
        assert asked.status_code == 421
        assert host in error_in(asked)["message"]
        assert site.client.get("/v1/models", headers={"Host": host}).status_code == 421
    assert site.client.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200
    plain = site.client.post("/v1/completions", content=json.dumps(QUICK))
    assert plain.status_code == 415, "what a website may send without asking"


def test_a_server_that_prepares_says_so(
    site: Site, races: ProcessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(races.facts(), preparing="Fetching the model...")
    monkeypatch.setattr(races, "facts", lambda: facts)
    answer = site.client.get("/health")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "Fetching the model..."


def test_other_addresses_and_methods_are_told_what_there_is(site: Site) -> None:
    for answer in (site.client.get("/"), site.client.get("/v1/completions")):
        assert answer.status_code in (404, 405)
        assert "/v1/models" in error_in(answer)["message"]
