"""Runs a column of a library: its generation goes on in a thread of its own and hands over what it
wrote, round by round.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter

from backend.decoding.clock import Clock
from backend.decoding.digits import rounded, rounded_value
from backend.errors import DerbyError
from backend.events import Event, Finished, Reason, Served, Started, Step
from backend.libraries.library import Emit, LibraryModel, Part, Serving, Settings, StoppedError
from backend.text import TextStream, prompt_tokens
from backend.types import Origin, Request

#: Seconds after which a wait for a part lets the race look whether it was stopped.
LOOK = 0.05

#: Seconds that a generation which was told to stop may take to do so.
PATIENCE = 5.0


class Generation:
    """A library's generation on a thread of its own: it prepares, and then waits for `start`. Where
    it `takes_turns`, it runs only inside `turn`: from one part to the next. Otherwise it runs on,
    and `look` gives what has come.
    """

    def __init__(
        self,
        prepare: Callable[[], None],
        generate: Callable[[Emit], None],
        *,
        takes_turns: bool,
    ) -> None:
        self._prepare, self._generate, self._takes_turns = prepare, generate, takes_turns
        self._parts: SimpleQueue[tuple[float, Part | Serving | Exception | None]] = SimpleQueue()
        self._prepared = threading.Event()
        self._turns = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="library", daemon=True)
        self.began = 0.0
        self._thread.start()

    def prepared(self) -> bool:
        """Whether it may start by now, or has failed; waits for LOOK seconds."""
        return self._prepared.wait(LOOK)

    def start(self) -> None:
        self.began = perf_counter()
        if not self._takes_turns:
            self._turns.release()

    def turn(self) -> Part | Serving | None:
        """Let it run to its next part; None: it has ended. Raises what it raises."""
        self._turns.release()
        return self._result(self._parts.get())[1]

    def look(self) -> tuple[float, Part | Serving | None] | None:
        """When the next part came, and the part (None: it has ended); None if none has come for
        LOOK seconds. Raises what it raises.
        """
        try:
            return self._result(self._parts.get(timeout=LOOK))
        except Empty:
            return None

    def close(self) -> None:
        """Have it give up. One that waits for a server is left to itself."""
        self._closed = True
        self._turns.release()
        if self._takes_turns and self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _run(self) -> None:
        ended: Exception | None = None
        try:
            try:
                self._prepare()
            finally:
                self._prepared.set()
            self._wait()
            self._generate(self._emit)
        except Exception as error:
            ended = error
        self._parts.put((perf_counter(), ended))

    def _emit(self, part: Part | Serving) -> None:
        self._parts.put((perf_counter(), part))
        if self._takes_turns:
            self._wait()
        elif self._closed:
            raise StoppedError

    def _wait(self) -> None:
        self._turns.acquire()
        if self._closed:
            raise StoppedError

    @staticmethod
    def _result(
        came: tuple[float, Part | Serving | Exception | None],
    ) -> tuple[float, Part | Serving | None]:
        when, what = came
        if isinstance(what, Exception):
            raise what
        return when, what


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
    started = answer.started(keeps_text=keeps_text)

    def generate(emit: Emit) -> None:
        model.answer(request, settings, emit)

    generation = Generation(
        partial(model.prepare, request, settings), generate, takes_turns=takes_turns
    )
    try:
        while not generation.prepared():
            yield None
        yield started
        generation.start()
        for each in _in_turns(generation, clock) if takes_turns else _alone(generation):
            yield None if each is None else answer.event(*each)
            if answer.reason is None and stopped():
                answer.reason = "stopped"
            if answer.reason is not None:
                break
        yield answer.finished()
    finally:
        generation.close()
        model.stop()


#: What was written, and the seconds that it took.
Round = tuple[Part | Serving, float]


def _in_turns(generation: Generation, clock: Clock) -> Iterator[Round]:
    """Each part with the seconds that it took: the clock runs only while the library does."""
    while True:
        with clock.step():
            part = generation.turn()
        if part is None:
            return
        yield part, clock.last["total"]


def _alone(generation: Generation) -> Iterator[Round | None]:
    """Each part with the seconds that it took, by the library's clock or else by ours; None where
    none has come.
    """
    before = generation.began
    while True:
        came = generation.look()
        if came is None:
            yield None
            continue
        now, part = came
        if part is None:
            return
        if isinstance(part, Serving):
            yield part, 0.0
            continue
        seconds, before = now - before, now
        yield part, seconds if part.seconds is None else part.seconds


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
        if model.max_context and prompt >= model.max_context:
            raise DerbyError(
                f"The prompt has {prompt:,} tokens; the context holds {model.max_context:,}. "
                "Shorten the prompt."
            )
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
        took = {"total": rounded(seconds)}
        return Step(self._column, list(tokens), origins, [], spans, 0, part.drafted, accepted, took)

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
