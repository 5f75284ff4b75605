"""Runs a column of a library: what it writes, round by round, as events of a race."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from time import perf_counter

from backend.decoding.clock import Clock, rounded
from backend.decoding.text_stream import TextStream
from backend.events import Event, Finished, Reason, Served, Started, Step
from backend.libraries.library import Chunk, LibraryModel, Serving, Settings, StoppedError
from backend.tokenizer import positions_for, prompt_tokens
from backend.types import Origin, Request

#: Seconds after which a wait for a chunk lets the race look whether it was stopped.
LOOK = 0.05


def library_events(
    column: int,
    request: Request,
    settings: Settings,
    model: LibraryModel,
    clock: Clock,
    stopped: Callable[[], bool],
    *,
    takes_turns: bool,
    lossless: bool,
) -> Iterator[Event | None]:
    """Every event of a column that `model` answers; None where nothing has come. Advances `clock`
    if the column takes turns. Raises DerbyError.
    """
    tokenizer, prompt, stream = model.tokenizer, 0, None
    limit: Reason = "token limit"
    if tokenizer is not None:
        prompt, stream = len(prompt_tokens(tokenizer, request)), TextStream(tokenizer, request.stop)
        if model.max_context:
            room = positions_for(prompt, request, model.max_context) - prompt
            limit = limit if request.max_new_tokens <= room else "context full"
            request = replace(request, max_new_tokens=min(request.max_new_tokens, room))
    spec = asdict(model.spec) if model.spec else {}
    facts = tokenizer.facts if tokenizer is not None else {}
    yield Started(column, prompt, spec=spec, lossless=lossless, **facts)

    ends = frozenset() if tokenizer is None or request.ignore_eos else tokenizer.eos_ids
    room, reason = request.max_new_tokens, None
    asked = model, request, settings
    rounds = _in_turns(*asked, clock) if takes_turns else _alone(*asked)
    try:
        for chunk, seconds in rounds:
            if isinstance(chunk, Serving):
                yield Served(column, chunk.clock, chunk.prompt_tokens)
            elif chunk is not None:
                tokens, text, count = list(chunk.tokens[:room]), chunk.text, min(chunk.count, room)
                if stream is not None:
                    tokens, text, reason = _read(stream, tokens, ends)
                    count = len(tokens)
                room -= count
                if stream is not None and room == 0:  # who gives text alone says when it ends
                    reason = reason or limit
                reason = reason or chunk.finish
                yield _step(column, chunk, tokens, text, count, seconds)
            else:
                yield None
            if reason is None and stopped():
                reason = "stopped"
            if reason is not None:
                break
        tail = stream.flush() if stream is not None else ""
        yield Finished(column, reason or "end of text", [["sampled", tail]] if tail else [])
    finally:
        rounds.close()
        model.stop()


def _read(
    stream: TextStream, tokens: list[int], ends: frozenset[int]
) -> tuple[list[int], str, Reason | None]:
    """The tokens up to the one that ends the answer, their text, and why it ends."""
    text = ""
    for length, token in enumerate(tokens, 1):
        if token in ends:
            return tokens[:length], text, "end of text"
        text += stream.push(token)
        if stream.stopped:
            return tokens[:length], text, "stop string"
    return tokens, text, None


def _step(
    column: int, chunk: Chunk, tokens: list[int], text: str, count: int, seconds: float
) -> Step:
    """What the race writes of a chunk: `count` tokens of it."""
    accepted = min(chunk.accepted, count)
    origins: list[Origin] = ["drafted" if i < accepted else "sampled" for i in range(count)]
    if 0 < accepted < count:
        origins[-1] = "bonus"
    spans: list[list[str]] = [[origins[-1] if origins else "sampled", text]] if text else []
    total = {"total": rounded(seconds)}
    return Step(column, tokens, origins, [], spans, 0, chunk.drafted, accepted, total)


#: What was written, and the seconds that it took; None: nothing has come.
Rounds = Generator[tuple[Chunk | Serving | None, float]]


def _in_turns(model: LibraryModel, request: Request, settings: Settings, clock: Clock) -> Rounds:
    """Every chunk: library and clock run only while one is waited for. The library stays in this
    thread, on a stack of its own: another thread would have OpenMP threads of its own, and with
    more of them than cores none waits actively, here or there (58 ms a token in place of 34).
    """
    from greenlet import getcurrent, greenlet

    model.prepare(request, settings)
    here = getcurrent()
    library = greenlet(lambda: model.answer(request, settings, here.switch))
    try:
        while True:
            with clock.step():
                chunk = library.switch()
            if chunk is None:  # it has ended
                return
            yield chunk, clock.last["total"]
    finally:
        if library:
            with suppress(StoppedError):
                library.throw(StoppedError)


def _alone(model: LibraryModel, request: Request, settings: Settings) -> Rounds:
    """Every chunk of a library that runs on in a thread, with the seconds that it took by the
    library's clock, or else by ours. Once this is closed it gives up with its next chunk.
    """
    rounds: SimpleQueue[tuple[Chunk | Serving, float] | Exception | None] = SimpleQueue()
    closed, before = threading.Event(), 0.0

    def emit(chunk: Chunk | Serving) -> None:
        nonlocal before
        seconds = 0.0
        if isinstance(chunk, Chunk):
            now = perf_counter()
            seconds = now - before if chunk.seconds is None else chunk.seconds
            before = now
        rounds.put((chunk, seconds))
        if closed.is_set():
            raise StoppedError

    def run() -> None:
        nonlocal before
        end: Exception | None = None
        try:
            model.prepare(request, settings)
            before = perf_counter()
            if not closed.is_set():
                model.answer(request, settings, emit)
        except Exception as error:
            end = error
        rounds.put(end)

    threading.Thread(target=run, name="library", daemon=True).start()
    try:
        while True:
            latest = None, 0.0
            with suppress(Empty):
                latest = rounds.get(timeout=LOOK)
            if latest is None:  # it has ended
                return
            if isinstance(latest, Exception):
                raise latest
            yield latest
    finally:
        closed.set()
