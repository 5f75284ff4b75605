"""Runs several sequences' loops so that one pass serves all of them: a request each, under load.

Each sequence has a thread of its own, for its loop waits in the middle of a step; only one of them
runs at a time, and the pass is run once all of them wait for it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from backend.engines.base import Engine
from backend.engines.batch import Batch, NewRows
from backend.text import Tokenizer
from backend.types import Arrays, Capabilities, HiddenStates, Logits, ModelSpec


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
        if not engine.capabilities.batch:
            raise RuntimeError(f"{engine.spec} computes one sequence a pass")
        self.passes: list[LockstepPass] = []
        self._engine = engine
        self._batch = engine.open_batch(requests)
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
            self._batch.close()
        if self._errors:
            raise self._errors[0]

    def _work(self, sequence: int, work: Callable[[Engine], None]) -> None:
        self._turns[sequence].acquire()
        try:
            work(LockstepEngine(self._engine, LockstepSession(self, self._batch, sequence)))
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._running.discard(sequence)
            self._asked.pop(sequence, None)
            self._hand_on()

    def answer(self, sequence: int, new: NewRows) -> Logits:
        """Wait until all others ask as well, and return this sequence's part of the pass."""
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
        lengths = self._batch.lengths
        try:
            answers: Sequence[Logits | Exception] = self._batch.forward(asked)
            self._engine.synchronize()
        except Exception as error:
            answers = [error] * len(asked)
        rows = tuple(len(new.tokens) for new in asked)
        self.passes.append(LockstepPass(perf_counter(), rows, lengths))
        self._answers = {i: answers[i] for i in self._asked}
        self._asked = {}


class LockstepSession:
    """One of the sequences, as its loop sees it."""

    def __init__(self, lockstep: Lockstep, batch: Batch, sequence: int) -> None:
        self._lockstep = lockstep
        self._batch = batch
        self._sequence = sequence

    @property
    def length(self) -> int:
        return self._batch.lengths[self._sequence]

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        if not tokens:
            raise RuntimeError("forward without tokens")
        return self._lockstep.answer(self._sequence, NewRows(tokens, parents, rows))

    def hidden_states(self) -> HiddenStates:
        return self._batch.hidden_states(self._sequence)

    def keep(self, rows: Sequence[int]) -> None:
        self._batch.keep(self._sequence, rows)

    def truncate(self, length: int) -> None:
        self._batch.truncate(self._sequence, length)

    def export(self, length: int) -> Arrays:
        raise RuntimeError(f"a sequence in lockstep gives no cache away ({length} tokens)")

    def load(self, length: int, arrays: Arrays) -> None:
        raise RuntimeError(f"a sequence in lockstep begins with no cache ({length} tokens)")

    def close(self) -> None:
        """The caches are closed together."""


class LockstepEngine:
    """The engine, but that it opens the one session of this sequence."""

    def __init__(self, engine: Engine, session: LockstepSession) -> None:
        self._engine = engine
        self._session = session

    @property
    def spec(self) -> ModelSpec:
        return self._engine.spec

    @property
    def fingerprint(self) -> str:
        return self._engine.fingerprint

    @property
    def weight_bytes(self) -> int:
        return self._engine.weight_bytes

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    def open(self) -> LockstepSession:
        return self._session

    def open_batch(self, requests: int) -> Batch:
        return self._engine.open_batch(requests)

    def warm_up(self) -> Iterator[None]:
        return self._engine.warm_up()

    def synchronize(self) -> None:
        self._engine.synchronize()
