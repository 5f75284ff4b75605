"""Runs several sequences' loops so that one pass serves all of them: a request each, under load.

Each sequence has a thread of its own, for its loop waits in the middle of a step; only one of them
runs at a time, and the pass is run once all of them wait for it.
"""

import threading
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from time import perf_counter

from backend.engines.base import Engine, Session
from backend.engines.cache import NewRows
from backend.types import Logits


@dataclass(frozen=True, slots=True)
class LockstepPass:
    """A pass that served several sequences: when it ended, in seconds of a common clock; of each
    sequence its new rows, 0 if it took no part, and the tokens that it had kept before.
    """

    ended: float
    rows: tuple[int, ...]
    lengths: tuple[int, ...]


class Lockstep:
    """So many sequences of one engine, to be run once."""

    def __init__(self, engine: Engine, requests: int) -> None:
        """Raises RuntimeError unless the engine declares `Capabilities.batch`."""
        self.passes: list[LockstepPass] = []
        self._engine = engine
        self._cache = engine.cache(requests)
        self._turns = [threading.Semaphore(0) for _ in range(requests)]
        self._asked: dict[int, NewRows] = {}
        self._answers: dict[int, Logits | Exception] = {}
        self._running = set(range(requests))
        self._errors: list[BaseException] = []

    def run(self, works: Sequence[Callable[[Engine], None]]) -> None:
        """Call each with an engine whose sessions' passes are computed with the others'. Returns
        when all have ended; raises what the first one to fail has raised.
        """
        threads = [
            threading.Thread(target=self._work, args=(i, work), name=f"sequence {i}", daemon=True)
            for i, work in enumerate(works)
        ]
        self._running = set(range(len(works)))
        try:
            for thread in threads:
                thread.start()
            self._turns[0].release()
            for thread in threads:
                thread.join()
        finally:
            self._cache.close()
        if self._errors:
            raise self._errors[0]

    def _work(self, sequence: int, work: Callable[[Engine], None]) -> None:
        self._turns[sequence].acquire()
        try:
            work(opening(self._engine, Session(self._cache, sequence, self._answer)))
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._running.discard(sequence)
            self._asked.pop(sequence, None)
            self._hand_on()

    def _answer(self, sequence: int, new: NewRows) -> Logits:
        """Wait until all others ask as well, and return this sequence's part of the pass."""
        if not new.tokens:
            raise RuntimeError("forward without tokens")
        self._asked[sequence] = new
        self._hand_on()
        self._turns[sequence].acquire()
        answer = self._answers.pop(sequence)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _hand_on(self) -> None:
        """Give the turn to whoever has not asked yet; if all have, run the pass."""
        ready = self._running - self._asked.keys()
        if not ready and self._running:
            self._run_pass()
            ready = self._running
        if ready:
            self._turns[min(ready)].release()

    def _run_pass(self) -> None:
        asked = [self._asked.get(i, NewRows()) for i in range(len(self._turns))]
        lengths = self._cache.lengths
        try:
            answers: Sequence[Logits | Exception] = self._cache.run(asked)
            self._engine.synchronize()
        except Exception as error:
            answers = [error] * len(asked)
        rows = tuple(len(new.tokens) for new in asked)
        self.passes.append(LockstepPass(perf_counter(), rows, lengths))
        self._answers = {i: answers[i] for i in self._asked}
        self._asked = {}


def opening(engine: Engine, session: Session) -> Engine:
    """The engine, but that it opens this session."""
    member = copy(engine)
    vars(member)["open"] = lambda: session
    return member
