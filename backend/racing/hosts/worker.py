"""A worker process as the app sees it: talked to by threads of its own, so that nobody who races
waits for what it does, or does not do.
"""

import contextlib
import json
import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from backend.events import Preparing, from_json
from backend.limits import Limits
from backend.racing.commands import Command
from backend.racing.hosts.death import Death, death_by
from backend.racing.hosts.watch import LOOK, ProcessVitals, Watch
from backend.racing.hosts.work import BEAT, BEGUN, ENDED, READY, STOP, work
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Seconds that the threads of a process that has died may take to notice.
_FAREWELL = 5.0


class WorkerDiedError(Exception):
    """The worker is gone, and everything that it had said was heard."""


class Worker:
    """One process, from its start to its end. `live` is for one thread, the rest for any.

    `born`: it was started, or could not be. `preparing`: what it does before it is `ready`, in
    its words; it then takes commands. `lost`: it takes none any more, and if it is not dead yet it
    soon will be.
    """

    def __init__(
        self, warm: tuple[ModelSpec, ...], limits: Limits, prefixes: Path | None = None
    ) -> None:
        """`warm` are loaded before it is ready, `prefixes` is the folder of KV caches. Nothing is
        started yet.
        """
        self.born, self.ready, self.lost = (threading.Event() for _ in range(3))
        self.carried_out = 0
        self.preparing = ""
        self.death: Death | None = None
        self._blame: Death | None = None
        self._begun = False
        self._busy = True
        self._signs = 0
        self._to_say: SimpleQueue[Any] = SimpleQueue()
        self._heard: SimpleQueue[Any] = SimpleQueue()
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(
            target=work,
            args=(self._theirs, warm, limits, prefixes),
            name="race worker",
            daemon=True,
        )

    @property
    def pid(self) -> int:
        """Its process id; 0 if there is none."""
        return self._process.pid or 0

    @property
    def begun(self) -> bool:
        """Whether it received the command that it was given last."""
        return self._begun

    def live(self) -> Death:
        """Start the process and watch over it until it is dead: why it died.

        The process lives no longer than the thread that calls this.
        """
        threads = [
            threading.Thread(target=target, name="race worker's talk", daemon=True)
            for target in (self._speak, self._listen)
        ]
        try:
            with no_main_module(), no_interrupts():
                self._process.start()
            self.born.set()
            for thread in threads:
                thread.start()
            self.death = self._watch_over()
        except Exception as error:  # no memory for a process, or no thread
            log.exception("a worker process could not be started")
            self.death = Death("not started", f"{type(error).__name__}: {error}")
        self._bury([thread for thread in threads if thread.ident])
        return self.death

    def _watch_over(self) -> Death:
        if self.lost.is_set():  # asked for before there was a process
            self._process.kill()
        watch = Watch(ProcessVitals(self.pid))
        while not wait([self._process.sentinel], LOOK):
            idle = self.ready.is_set() and not self._busy
            found = watch.look(idle=idle, signs=self._signs)
            if found and not self.lost.is_set():
                self.kill(found)
        self._process.join()
        found = death_by(self._process.exitcode)
        return self._blame if self._blame and found.cause == "killed" else found

    def _bury(self, threads: list[threading.Thread]) -> None:
        """Leave nothing behind of the process."""
        self.lost.set()
        self.born.set()
        if self.pid:
            self._process.kill()
            self._process.join()
        self._theirs.close()
        self._to_say.put(None)
        for thread in threads:
            thread.join(_FAREWELL)
        if not any(thread.is_alive() for thread in threads):
            self._connection.close()
        self._heard.put(None)

    def kill(self, death: Death) -> None:
        """End it, whatever it does."""
        self._blame = self._blame or death
        self.lost.set()
        if self.born.is_set() and self.pid:
            self._process.kill()

    def begin(self, command: Command) -> None:
        """Give it a command. It must be ready, and have ended the one before."""
        data = ForkingPickler.dumps(command)
        self._begun, self._busy = False, True
        self._to_say.put(data)

    def stop(self) -> None:
        """Ask it to end its command."""
        self._to_say.put(ForkingPickler.dumps(STOP))

    def hear(self, seconds: float) -> Any:
        """What it says next: an event as JSON, or ENDED; None if nothing comes in that time.

        Raises WorkerDiedError.
        """
        try:
            message = self._heard.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        if message is None:
            self._heard.put(None)  # for whoever asks again
            raise WorkerDiedError
        return message

    def _speak(self) -> None:
        while (data := self._to_say.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # it is dead, as `live` finds
                return

    def _listen(self) -> None:
        try:
            while True:
                self._take(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):  # it is dead, as `live` finds
            return
        except ValueError:
            log.exception("the worker process said what is no message")
            self.kill(Death("crashed", "it said what is no message"))

    def _take(self, message: Any) -> None:
        self._signs += 1
        if message == READY:
            self._busy, self.preparing = False, ""
            self.ready.set()
        elif message == BEGUN:
            self._begun = True
        elif isinstance(message, dict) and not self.ready.is_set():
            event = from_json(message)
            self.preparing = event.text if isinstance(event, Preparing) else self.preparing
        elif message != BEAT:
            if message == ENDED:
                self._busy = False
                self.carried_out += 1
            self._heard.put(message)


@contextlib.contextmanager
def no_main_module() -> Iterator[None]:
    """Keep a spawned process from importing the program that starts it, page, gradio and all."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Have a process that is started here ignore Ctrl-C, which is the app's to take, from its first
    moment on: before it can say so itself it imports for a second.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else the start does it, and takes the mask away
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
