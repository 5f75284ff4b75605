"""Runs a column of a library: what it writes, round by round, as events of a race."""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter

from backend.decoding.clock import Clock, rounded, rounded_value
from backend.events import Event, Finished, Reason, Served, Started, Step
from backend.libraries.library import Emit, LibraryModel, Part, Serving, Settings, StoppedError
from backend.text import TextStream, prompt_tokens, require_fits
from backend.types import Origin, Request

#: Seconds after which a wait for a part lets the race look whether it was stopped.
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
    keeps_text: bool,
) -> Iterator[Event | None]:
    """Every event of a column that `model` answers; None where nothing has come. Advances `clock`
    if the column takes turns. Raises DerbyError.
    """
    answer = _Answer(column, request, model)
    yield answer.started(keeps_text=keeps_text)
    prepare = partial(model.prepare, request, settings)
    generate = partial(model.answer, request, settings)
    rounds = _in_turns(prepare, generate, clock) if takes_turns else _alone(prepare, generate)
    try:
        for each in rounds:
            yield None if each is None else answer.event(*each)
            if answer.reason is None and stopped():
                answer.reason = "stopped"
            if answer.reason is not None:
                break
        yield answer.finished()
    finally:
        rounds.close()
        model.stop()


#: What was written, and the seconds that it took; None: nothing has come.
Rounds = Generator[tuple[Part | Serving, float] | None, None, None]


def _in_turns(
    prepare: Callable[[], None], generate: Callable[[Emit], None], clock: Clock
) -> Rounds:
    """Each part: library and clock run only while one is waited for. The library stays in this
    thread, on a stack of its own: another thread would have OpenMP threads of its own, and with
    more of them than cores none waits actively, here or there (58 ms a token in place of 34).
    """
    from greenlet import getcurrent, greenlet

    prepare()
    here = getcurrent()
    library = greenlet(lambda: generate(here.switch))
    try:
        while True:
            with clock.step():
                part = library.switch()
            if part is None:  # it has ended
                return
            yield part, clock.last["total"]
    finally:
        if library:
            with suppress(StoppedError):
                library.throw(StoppedError)


def _alone(prepare: Callable[[], None], generate: Callable[[Emit], None]) -> Rounds:
    """Each part with the seconds that it took by the library's clock, or else by ours."""
    thread = _Thread(prepare, generate)
    thread.start()
    before = 0.0
    try:
        while True:
            try:
                now, part = thread.parts.get(timeout=LOOK)
            except Empty:
                yield None
                continue
            if part is None:  # it has ended
                return
            if isinstance(part, Exception):
                raise part
            seconds = 0.0
            if isinstance(part, Part):
                seconds = now - (before or thread.began) if part.seconds is None else part.seconds
                before = now
            yield part, seconds
    finally:
        thread.closed.set()


class _Thread(threading.Thread):
    """A library that runs on by itself. Once `closed` it gives up with its next part."""

    def __init__(self, prepare: Callable[[], None], generate: Callable[[Emit], None]) -> None:
        super().__init__(name="library", daemon=True)
        self._prepare, self._generate = prepare, generate
        self.parts: SimpleQueue[tuple[float, Part | Serving | Exception | None]] = SimpleQueue()
        self.closed = threading.Event()
        self.began = 0.0

    def run(self) -> None:
        ended: Exception | None = None
        try:
            self._prepare()
            self.began = perf_counter()
            if not self.closed.is_set():
                self._generate(self._emit)
        except Exception as error:
            ended = error
        self.parts.put((perf_counter(), ended))

    def _emit(self, part: Part | Serving) -> None:
        self.parts.put((perf_counter(), part))
        if self.closed.is_set():
            raise StoppedError


class _Answer:
    """One answer: makes events of its parts. `reason`: why it ended, once it has."""

    def __init__(self, column: int, request: Request, model: LibraryModel) -> None:
        self.reason: Reason | None = None
        self._column, self._request, self._model = column, request, model
        self._room = request.max_new_tokens
        tokenizer = model.tokenizer
        self._stream = None if tokenizer is None else TextStream(tokenizer, request.stop)

    def started(self, *, keeps_text: bool) -> Started:
        """The first event. Raises DerbyError for a prompt that fills the context."""
        model, tokenizer = self._model, self._model.tokenizer
        name, parts = (str(model.spec), model.spec.parts) if model.spec else ("", {})
        if tokenizer is None:
            return Started(self._column, 0, name, "", parts, keeps_text)
        prompt = len(prompt_tokens(tokenizer, self._request))
        if model.max_context:
            require_fits(prompt, model.max_context)
        return Started(self._column, prompt, name, tokenizer.fingerprint, parts, keeps_text)

    def event(self, part: Part | Serving, seconds: float) -> Event:
        """What a part is to a race; afterwards `reason` says if it is the last."""
        if isinstance(part, Serving):
            trip = rounded_value(part.round_trip)
            return Served(self._column, part.clock, trip, part.prompt_tokens, part.model)
        if self._stream is None:  # whoever writes text alone says when it ends
            tokens, count, text = (), min(part.count, self._room), part.text
            self._room -= count
        else:
            tokens, text = self._read(self._stream, part.tokens)
            count = len(tokens)
            self.reason = self.reason or ("token limit" if self._room <= 0 else None)
        self.reason = self.reason or part.finish
        accepted = min(part.accepted, count)
        origins: list[Origin] = ["drafted" if i < accepted else "sampled" for i in range(count)]
        if accepted and count > accepted:
            origins[-1] = "bonus"
        last = origins[-1] if origins else "sampled"
        spans: list[list[str]] = [[last, text]] if text else []
        total = {"total": rounded(seconds)}
        return Step(
            self._column, list(tokens), origins, [], spans, 0, part.drafted, accepted, total
        )

    def _read(self, stream: TextStream, tokens: Sequence[int]) -> tuple[list[int], str]:
        """The tokens up to the one that ends the answer, and their text."""
        assert self._model.tokenizer is not None  # noqa: S101 (there is a stream of its tokens)
        ends = frozenset() if self._request.ignore_eos else self._model.tokenizer.eos_ids
        taken: list[int] = []
        text = ""
        for token in tokens:
            taken.append(token)
            self._room -= 1
            if token in ends:
                self.reason = "end of text"
            else:
                text += stream.push(token)
                self.reason = "stop string" if stream.stopped else None
            if self.reason is not None or self._room <= 0:
                break
        return taken, text

    def finished(self) -> Finished:
        tail = self._stream.flush() if self._stream is not None else ""
        spans: list[list[str]] = [["sampled", tail]] if tail else []
        return Finished(self._column, self.reason or "end of text", spans)
