"""A column that a server writes: one streamed request, and the time that it takes by one clock.

Where every message carries the server's own times (llama.cpp's `timings`), these are the column's;
else the times at which messages came over the network. The two are never mixed, and no time per
token is made of messages that hold nobody knows how many.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from backend.decoding.digits import rounded, rounded_value
from backend.decoding.lane import Lane, polled
from backend.errors import DerbyError
from backend.events import Event, Finished, Reason, Served, Started, Step
from backend.machine import LOOPBACK
from backend.remote.chunk import Chunk, printable, read_chunk
from backend.remote.counters import NOTHING, Counters, counters_of
from backend.remote.lock import ServerLock
from backend.remote.server import Server, server_at
from backend.remote.stream import DONE, messages
from backend.types import Request, template_options

if TYPE_CHECKING:
    from httpx import Client, Response

#: The setting that names no model: the first that the server lists.
ANY_MODEL = "first"

#: Seconds until a server must have taken a connection, and must have sent something more.
CONNECT, SILENCE = 5.0, 60.0

#: Exchanges of which the quickest is the round trip.
TRIPS = 3

#: Bytes of text that a token may have, and that any answer may have; bytes of a list of models.
_TOKEN_BYTES, _SPARE_BYTES, _MOST_LIST = 256, 1 << 16, 1 << 20

#: Fields beyond OpenAI's, which make servers tell more or sample as columns here do. A server that
#: refuses them is asked again without.
_TELL_MORE = {
    "timings_per_token": True,
    "return_token_ids": True,
    "return_spec_tokens_details": True,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "repetition_penalty": 1.0,
}

#: Why an answer ended, by a server's word for it.
_REASONS: Mapping[str, Reason] = {"length": "token limit", "stop string": "stop string"}

#: What to do about a server's refusal, by its status.
_REFUSALS = {
    401: "needs another key: set it in the file of servers",
    403: "refuses this key: set another in the file of servers",
    404: "has no such path or model: check the address and the model",
    429: "accepts no more requests now: try again later",
    503: "is not ready: try again later",
}


def server_lane(column: int, request: Request, values: Mapping[str, Any]) -> Lane:
    """The lane of a column with these settings: at, model, gaps. Raises DerbyError for a server
    that nobody named.
    """
    server = server_at(values["at"])
    if values["model"] != ANY_MODEL:
        server = replace(server, model=values["model"])
    lock = ServerLock(server.url)
    events = _events(column, request, server, lock, gaps=values["gaps"])
    return Lane(column, polled(events, lock.end), alone=True)


def _events(
    column: int, request: Request, server: Server, lock: ServerLock, *, gaps: bool
) -> Iterator[Event]:
    from httpx import Client, Timeout

    headers = {"Accept-Encoding": "identity"}
    if server.key:
        headers["Authorization"] = f"Bearer {server.key}"
    timeout = Timeout(SILENCE, connect=CONNECT)
    with (
        _explained(server),
        lock,
        Client(
            base_url=server.url,
            headers=headers,
            timeout=timeout,
            # A proxy of the environment is not on the way to this machine.
            trust_env=urlsplit(server.url).hostname not in LOOPBACK,
            event_hooks={"request": [lock.follow]},
        ) as client,
    ):
        listed, round_trip = _listed(client)
        model = server.model or listed
        yield Started(column, 0, f"{model or 'a model'} on {server.name}")
        path, bodies = _bodies(request, model, gaps=gaps)
        before = counters_of(client, server.url)
        with _answer(client, path, bodies) as (response, began):
            meanwhile = partial(_counted_since, before, client, server.url)
            answer = Answer(column, request, round_trip, began, meanwhile)
            yield from answer.events(response.iter_raw())


def _counted_since(before: Counters, client: "Client", url: str) -> Counters:
    """What the server has counted since; it is not asked where it told nothing before."""
    return counters_of(client, url).since(before) if before.known else NOTHING


@contextmanager
def _explained(server: Server) -> Iterator[None]:
    """Tell what goes wrong with the server in a sentence that holds no key."""
    from httpx import ConnectError, ConnectTimeout, HTTPError, TimeoutException

    try:
        yield
    except (ConnectError, ConnectTimeout) as error:
        raise DerbyError(
            f"The server {server.name} does not answer: start it, or check its address."
        ) from error
    except TimeoutException as error:
        raise DerbyError(
            f"The server {server.name} sent nothing for {SILENCE:.0f} s: try again."
        ) from error
    except HTTPError as error:
        raise DerbyError(f"The server {server.name} broke off: try again.") from error
    except DerbyError as error:
        hidden = str(error).replace(server.key, "...") if server.key else str(error)
        raise DerbyError(hidden.replace("The server", f"The server {server.name}", 1)) from error


def _listed(client: "Client") -> tuple[str, float]:
    """The first model that the server lists, "" if it lists none; and the seconds of the quickest
    exchange.
    """
    trips, body = [], b""
    for _ in range(TRIPS):
        before = perf_counter()
        with client.stream("GET", "models") as response:
            if response.status_code in (401, 403):
                raise _refused(response)
            body = _start(response, _MOST_LIST)
        trips.append(perf_counter() - before)
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        name = ""  # not every server lists models
    return printable(str(name)), min(trips)


def _start(response: "Response", most: int) -> bytes:
    """The first bytes of a body, `most` of them or few more."""
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) >= most:
            break
    return bytes(body)


def _bodies(request: Request, model: str, *, gaps: bool) -> tuple[str, list[dict[str, Any]]]:
    """The path to ask at, and what to ask: the fullest form first. The prompt is read anew, as by
    columns here.
    """
    sampling = request.sampling
    plain: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed % 2**31,
        "stream": True,
    }
    if model:
        plain["model"] = model
    if request.stop:
        plain["stop"] = list(request.stop)
    if request.chat:
        path = "chat/completions"
        plain["messages"] = request.messages
        if options := template_options(request.thinking):
            plain["chat_template_kwargs"] = options
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    else:
        path, plain["prompt"] = "completions", request.prompt
        asked = {"logprobs": 2}
    if gaps:
        plain |= asked
    counted = {"stream_options": {"include_usage": True}}
    running = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    # -1: all. The salt keeps vLLM and SGLang from what an earlier request left in their caches.
    unshared = {"cache_prompt": False, "cache_salt": secrets.token_hex(16)}
    fullest = _TELL_MORE | unshared | {"top_k": sampling.top_k or -1}
    if not sampling.temperature:
        return path, [plain | fullest | running, plain | counted, plain]
    drawn = plain | {"top_p": sampling.top_p}
    # OpenVINO Model Server takes no other options of the stream, TGI no top-p of 1.
    bodies = [drawn | fullest | running, drawn | fullest | counted, drawn | counted]
    return path, bodies + ([plain | counted, plain] if sampling.top_p == 1 else [drawn])


@contextmanager
def _answer(
    client: "Client", path: str, bodies: list[dict[str, Any]]
) -> Iterator[tuple["Response", float]]:
    """The answer's stream, and when its request was sent; asked for with the first of `bodies` that
    the server does not call wrong.
    """
    for body in bodies:
        began = perf_counter()
        with client.stream("POST", path, json=body) as response:
            if response.status_code in (400, 422) and body is not bodies[-1]:
                continue
            if response.status_code != 200:
                raise _refused(response)
            kind = response.headers.get("content-type", "nothing")
            if not kind.startswith("text/event-stream"):
                raise DerbyError(
                    f"The server sent {kind!r:.60} instead of a stream of events: check its "
                    "address."
                )
            yield response, began
            return


def _refused(response: "Response") -> DerbyError:
    status = response.status_code
    what = _REFUSALS.get(status)
    if what is None:
        said = printable(_start(response, 2000).decode(errors="replace"))
        what = f"refused the request: {said}" if said else "refused the request"
    return DerbyError(f"The server {what} (status {status}).")


class Answer:
    """Makes events of one answer, which was asked for at `began` (perf_counter's seconds).
    `meanwhile` asks what the server has counted since; only done behind the last step, and where
    its messages told nothing of drafts.
    """

    def __init__(
        self,
        column: int,
        request: Request,
        round_trip: float,
        began: float,
        meanwhile: Callable[[], Counters] = Counters,
    ) -> None:
        self._column, self._most = column, request.max_new_tokens
        self._began, self._meanwhile = began, meanwhile
        self._served = Served(column, "network", rounded_value(round_trip))
        self._seconds = 0.0  # by the column's clock, up to the last step
        self._size = 0  # bytes of text
        self._steps = 0
        self._tokens = self._drafted = self._accepted = 0  # so far, as far as they were told

    def events(self, pieces: Iterable[bytes]) -> Iterator[Event]:
        """Every event of the answer whose bytes these are. Raises DerbyError if it breaks off, does
        not end, or is none.
        """
        finish, summed, held = "", Chunk(), Chunk()
        for message in messages(pieces):
            came = perf_counter()
            if message is DONE:
                break
            chunk = read_chunk(message).behind(held)
            finish, summed = chunk.finish or finish, summed.updated(chunk)
            held = Chunk() if chunk.text else chunk
            if chunk.text:
                yield from self._step(chunk, came)
        if not finish:
            raise DerbyError(f"The server broke off after {self._size:,} bytes of text: try again.")
        yield self._sum(summed)
        yield Finished(self._column, _REASONS.get(finish, "end of text"), [])

    def _step(self, chunk: Chunk, came: float) -> Iterator[Event]:
        self._size += len(chunk.text.encode(errors="replace"))
        if self._size > _TOKEN_BYTES * self._most + _SPARE_BYTES:
            raise DerbyError(
                f"The server has written {self._size:,} bytes, although it was asked for "
                f"{self._most} tokens: the server has a bug."
            )
        if not self._steps:
            by_server = chunk.timings is not None
            self._served = replace(self._served, clock="server" if by_server else "network")
            yield self._served
        self._steps += 1
        seconds, count = self._passed(chunk, came), self._count(chunk)
        drafted, accepted = self._guesses(chunk)
        yield Step(
            self._column,
            list(chunk.ids) if len(chunk.ids) == count else [],
            ["sampled"] * count,
            [rounded_value(gap) for gap in chunk.gaps[:count]],
            [["sampled", chunk.text]],
            0,
            drafted,
            accepted,
            {"total": rounded(seconds)},
        )

    def _passed(self, chunk: Chunk, came: float) -> float:
        """Seconds since the step before, by the column's clock."""
        now = came - self._began
        if self._served.clock == "server":
            now = chunk.timings.seconds if chunk.timings is not None else self._seconds
        before, self._seconds = self._seconds, max(now, self._seconds)
        return self._seconds - before

    def _count(self, chunk: Chunk) -> int:
        """How many tokens a text is; 0 where nobody tells."""
        so_far = max(chunk.so_far or self._tokens + chunk.count, self._tokens)
        before, self._tokens = self._tokens, min(so_far, self._most)
        return self._tokens - before

    def _guesses(self, chunk: Chunk) -> tuple[int, int]:
        """How many tokens a draft offered since the step before, and how many passed."""
        if chunk.timings is None:
            return 0, 0
        drafted = max(chunk.timings.drafted - self._drafted, 0)
        accepted = min(max(chunk.timings.accepted - self._accepted, 0), drafted)
        self._drafted, self._accepted = self._drafted + drafted, self._accepted + accepted
        return drafted, accepted

    def _sum(self, summed: Chunk) -> Served:
        """What is known of the whole answer. An end that a server counts as a token has no text."""
        each = not self._tokens and 0 <= summed.so_far - self._steps <= 1
        known = summed.drafted or self._served.clock == "server"
        counted = NOTHING if known else self._meanwhile()
        drafted = summed.drafted or counted.drafted
        return replace(
            self._served,
            prompt_tokens=summed.prompt_tokens,
            tokens=summed.so_far,
            each=each and self._steps > 0,
            drafted=drafted,
            accepted=min(summed.accepted or counted.accepted, drafted),
            rounds=counted.rounds,
            places=list(counted.places),
            per_pass=rounded_value(counted.per_pass),
            others=counted.known and counted.by_others(summed.so_far or self._tokens),
        )
