"""A stand-in for `spaces.GPU` that treats a generator as ZeroGPU does: it runs in a process that is
forked for the call, as a daemon, on a thread of its own; arguments and what it yields are pickled;
a fork that is idle serves the next call.
"""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any


class Refusal(Exception):  # noqa: N818 (as gradio's Error is)
    """As gradio's errors are, which `spaces` raises."""

    def __init__(self, title: str, message: str) -> None:
        super().__init__(message)
        self.title, self.message = title, message


@dataclass
class Lending:
    """`calls` are the seconds that were declared. A `refusal` is raised by the next call."""

    calls: list[int] = field(default_factory=list)
    forks: list[int] = field(default_factory=list)
    asked_by: list[Any] = field(default_factory=list)
    who: Callable[[], Any] = lambda: None
    refusal: Exception | None = None

    def __call__(self, *, duration: Callable[..., int]) -> Callable[[Any], Any]:
        def decorated(task: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            idle: list[tuple[Any, Connection]] = []

            def call(*arguments: Any) -> Iterator[Any]:
                self.calls.append(duration(*arguments))
                self.asked_by.append(self.who())
                if self.refusal is not None:
                    raise self.refusal
                process, theirs = idle.pop() if idle else self._forked(task)
                theirs.send_bytes(pickle.dumps(arguments))
                try:
                    while (value := pickle.loads(theirs.recv_bytes())) is not None:  # noqa: S301
                        yield value
                except EOFError:
                    process.join()
                    raise Refusal("ZeroGPU worker error", "GPU task aborted") from None
                idle.append((process, theirs))

            return call

        return decorated

    def _forked(self, task: Callable[..., Iterator[Any]]) -> tuple[Any, Connection]:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(task, theirs, ours), daemon=True)
        process.start()
        theirs.close()
        self.forks.append(process.pid or 0)
        return process, ours


def _serve(task: Callable[..., Iterator[Any]], mine: Connection, parents: Connection) -> None:
    parents.close()
    while True:
        try:
            arguments = pickle.loads(mine.recv_bytes())  # noqa: S301
        except EOFError:
            return

        def run(arguments: tuple[Any, ...] = arguments) -> None:
            for value in task(*arguments):
                mine.send_bytes(pickle.dumps(value))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        mine.send_bytes(pickle.dumps(None))
