"""The life of a worker process: load what is usually wanted, then run races one after another."""

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from backend.errors import explain
from backend.events import Event, Preparing, to_json
from backend.grammar.grammars import Grammars
from backend.limits import Limits
from backend.processes import die_with_parent
from backend.racing.commands import Command, run_to_end
from backend.racing.hosts.death import GRAMMAR_DEADLINE
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.strategies.column import default_column
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Asks the worker to end what it does.
STOP = "stop"

#: What a worker says beside events: it takes commands (before that it says in `Preparing` what it
#: still does); it has received one; that one has ended; and the thread that carries it out goes on,
#: though nothing happens.
READY, BEGUN, ENDED, BEAT = "ready", "begun", "ended", "beat"

#: Seconds between two beats.
BEAT_PERIOD = 1.0

#: Columns whose models a new worker loads before anyone asks.
WARM = ("speculative",)


def work(
    connection: Connection, warm: tuple[ModelSpec, ...], limits: Limits, prefixes: Path | None
) -> None:
    """Carry out the commands that come, until the app closes its end or is gone.

    `prefixes` is the folder of KV caches, which outlive this process; None: they do not.
    The app gets JSON: nothing that native code may have spoilt is ever unpickled there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    models = LoadedModels(
        idle_warm_up=True,
        grammars=Grammars(GRAMMAR_DEADLINE),
        limits=limits,
        prefixes=prefixes,
    )

    def say(text: str) -> None:
        log.info(text)
        _say(connection, to_json(Preparing(text)))

    for spec in warm:
        try:
            loading = Loading(models, say)
            loading.prepare([default_column(name) for name in WARM], spec)
            loading.engine(spec)
        except Exception as error:
            log.warning("%s", explain(error))  # races say so too, after another try
    _say(connection, READY)
    while True:
        while not connection.poll() and models.warm_up():
            pass
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message != STOP:
            _say(connection, BEGUN)
            _carry_out(message, models, connection)
            _say(connection, ENDED)


def _say(connection: Connection, message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _carry_out(command: Command, models: LoadedModels, connection: Connection) -> None:
    stop = False
    beat = time.monotonic()

    def stopped() -> bool:
        nonlocal stop, beat
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        if time.monotonic() > beat + BEAT_PERIOD:
            beat = time.monotonic()
            _say(connection, BEAT)
        return stop

    def emit(event: Event) -> None:
        _say(connection, to_json(event))

    run_to_end(command, models, emit, stopped)


def _exit_with_parent() -> None:
    """End with the app where the kernel does not see to it."""
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(0)
