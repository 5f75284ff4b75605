"""Runs races on a ZeroGPU Space: the columns of its GPU in a process that is forked for the call,
all others on the CPU in the usual worker, at the same time.

Spaces lend a GPU for one call of a decorated generator. They fork the process that calls it and run
the generator there, as a daemon that may start none of multiprocessing's children; arguments and
what is yielded are pickled; the declared seconds count against the quota of the visitor whose
request the calling thread's context holds. So a call takes plain values and yields plain values,
ends by itself before its seconds are over, and is stopped by a file.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from secrets import token_hex
from tempfile import gettempdir
from typing import Any, Protocol

from backend.errors import DerbyError, cause_of, explain
from backend.events import (
    Conditions,
    CostsKnown,
    Event,
    Finished,
    Preparing,
    from_json,
    to_json,
)
from backend.kvcache.sources import Scope
from backend.limits import PRIVATE, Limits
from backend.racing.commands import (
    Command,
    Measure,
    SaveColumn,
    all_stopped,
    ending,
)
from backend.racing.hosts.host import POLL, Host, HostFacts, held
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.strategies.column import Column
from backend.types import ModelSpec

#: Seconds of a call beside its tokens, for moving weights to the GPU and capturing passes; and for
#: measuring them, of each model that this was never done for.
START, MEASURING = 10.0, 10.0

#: Seconds that a pass of one row takes on such a model.
UNKNOWN = 0.02

#: How much longer than its plain passes a column may take.
SLACK = 1.5

#: Bounds of the seconds that are declared. The upper one is what Spaces suppose of a call that
#: declares none: who has less left today is lent no GPU at all.
SHORTEST, LONGEST = 20, 60

#: Seconds before the end of the declared ones at which a call ends by itself.
MARGIN = 3.0

#: Seconds after which a call that has not ended of a stop is left to itself.
STOP_GRACE = 0.9

Call = Callable[[Command, str, int], Iterator[dict[str, Any]]]


class Lend(Protocol):
    """Decorates a generator that needs a GPU: `spaces.GPU`."""

    def __call__(self, *, duration: Callable[[Command, str, int], int]) -> Callable[[Call], Call]:
        """`duration` tells the seconds of a call from its arguments."""
        ...


def on_cuda(spec: ModelSpec) -> bool:
    """Whether a model runs on the GPU that is lent."""
    return spec.engine == "torch" and spec.device.upper() != "CPU"


@dataclass(frozen=True, slots=True)
class Share:
    """What one side carries out of a command: the columns that it has of the whole command's."""

    command: Command
    columns: tuple[int, ...]
    lent: bool

    def whole(self, event: Event) -> Event:
        """The event as one of the whole command's."""
        column = getattr(event, "column", None)
        return event if column is None else replace(event, column=self.columns[column])  # type: ignore[arg-type]


def shares_of(command: Command, lent: Callable[[ModelSpec], bool]) -> list[Share]:
    """The parts of a command, that of the GPU first; those without columns are left out, unless
    the command has none: then all of it is the CPU's.
    """

    def is_lent(column: Column, default: ModelSpec) -> bool:
        return column.strategy.lane is None and lent(column.target(default))

    if isinstance(command, SaveColumn):
        race = command.race
        return [Share(command, (0,), is_lent(race.columns[command.index], race.target))]
    if not isinstance(command, Race | Measure):
        return [Share(command, tuple(range(command.width)), lent=False)]
    sides = [is_lent(column, command.target) for column in command.columns]
    found = []
    for side in (True, False):
        mine = tuple(index for index, each in enumerate(sides) if each == side)
        if mine:
            found.append(Share(_part(command, mine), mine, side))
    return found


def _part(command: Race | Measure, mine: Sequence[int]) -> Command:
    columns = tuple(command.columns[index] for index in mine)
    if not isinstance(command, Race):
        return replace(command, columns=columns)
    earlier = tuple(command.earlier[index] for index in mine) if command.earlier else ()
    first = command.first
    if first is not None:
        first = mine.index(first) if first in mine else 0
    return replace(command, columns=columns, earlier=earlier, first=first)


class ZeroGpuHost:
    """`cpu` runs what needs no GPU; it is closed with this host. `lent` tells which models need
    one. Thread-safe. Make it before the first call: Spaces ask at the page's start what there is.
    """

    def __init__(
        self,
        cpu: Host,
        lend: Lend,
        lent: Callable[[ModelSpec], bool] = on_cuda,
        limits: Limits = PRIVATE,
    ) -> None:
        self._cpu = cpu
        self._lent = lent
        self._forked = InlineHost(limits)  # used in forks alone, each of which has its own models
        self._visitors: set[Scope] = set()  # whose caches a fork may hold, likewise
        self._call = lend(duration=lambda _command, _stop, seconds: seconds)(self._in_fork)
        self._one_row: dict[ModelSpec, float] = {}
        self._one_at_a_time = threading.Lock()

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        shares = shares_of(command, self._lent)
        with held(self._one_at_a_time, stopped) as mine:
            if not mine:
                yield from all_stopped(command)
            elif not any(share.lent for share in shares):
                yield from self._cpu.stream(command, stopped)
            elif isinstance(command, Race) and command.first is not None:  # one column at a time
                for share in shares:
                    yield from ending(share.columns, self._at_once([share], stopped))
            else:
                yield from ending(range(command.width), self._at_once(shares, stopped))

    def _at_once(
        self, shares: Sequence[Share], stopped: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """Carry out the shares beside one another. After a stop, one that waits for a GPU or has
        not ended within its grace is left to itself.
        """
        queue: SimpleQueue[Event | None] = SimpleQueue()
        stop = Path(gettempdir()) / f"decode-derby-stop-{token_hex(16)}"
        left, deadline = len(shares), inf
        for share in shares:
            # Who else used the processor is for the CPU's share to tell, whose columns need it all.
            emit = queue.put if len(shares) == 1 or not share.lent else _unless_conditions(queue)
            target = partial(copy_context().run, self._carry_out, share, stop, emit)
            threading.Thread(target=target, name="share of a race", daemon=True).start()
        try:
            while left and time.monotonic() < deadline:
                if deadline == inf and stopped():
                    stop.touch()
                    deadline = time.monotonic() + STOP_GRACE
                try:
                    event = queue.get(timeout=POLL)
                except Empty:
                    continue
                if event is None:
                    left -= 1
                else:
                    yield event
        finally:
            if left:
                stop.touch()  # and stays: nobody knows when they will look
            else:
                stop.unlink(missing_ok=True)

    def _carry_out(self, share: Share, stop: Path, emit: Callable[[Event | None], None]) -> None:
        """Emit the events of a share, and None at its end."""
        source = self._on_gpu if share.lent else self._on_cpu
        events = (share.whole(event) for event in source(share.command, stop))
        try:
            for event in ending(share.columns[: share.command.width], events):
                emit(event)
        finally:
            emit(None)

    def _on_cpu(self, command: Command, stop: Path) -> Iterator[Event]:
        return self._cpu.stream(command, stop.exists)

    def _on_gpu(self, command: Command, stop: Path) -> Iterator[Event]:
        """Raises DerbyError if no GPU is lent, or it is taken away."""
        yield Preparing("Waiting for a GPU of ZeroGPU...")
        try:
            for value in self._call(command, str(stop), self._predicted(command)):
                event = from_json(value)
                self._learn(command, event)
                yield _with_reason(event, asked=stop.exists())
        except Exception as error:
            raise _refused(error) from error

    def _predicted(self, command: Command) -> int:
        """Seconds of GPU time to declare for a command."""
        if not isinstance(command, Race | Measure):
            return SHORTEST
        if isinstance(command, Measure) and command.load:
            return LONGEST
        targets = [column.target(command.target) for column in command.columns]
        seconds = START + MEASURING * len(set(targets) - self._one_row.keys())
        if isinstance(command, Race):
            rows = sum(self._one_row.get(target, UNKNOWN) for target in targets)
            seconds += SLACK * rows * command.request.max_new_tokens
        return round(min(max(seconds, SHORTEST), LONGEST))

    def _learn(self, command: Command, event: Event) -> None:
        if isinstance(event, CostsKnown) and isinstance(command, Race) and event.widths[:1] == [1]:
            column = command.columns[event.column]
            self._one_row[column.target(command.target)] = event.passes[0]

    def _in_fork(self, command: Command, stop: str, seconds: int) -> Iterator[dict[str, Any]]:
        """What Spaces run with a GPU. A fork may serve several calls, and keeps its models, but
        caches of nobody but the call's own visitor.
        """
        begun, asked = time.monotonic(), Path(stop)
        race = command.race if isinstance(command, SaveColumn) else command
        scope = race.scope if isinstance(race, Race) else None
        for other in self._visitors - {scope}:
            self._forked.engines.prefixes.forget(other)  # type: ignore[arg-type]
        self._visitors = {scope} if scope is not None else set()

        def stopped() -> bool:
            return time.monotonic() > begun + seconds - MARGIN or asked.exists()

        for event in self._forked.stream(command, stopped):
            yield to_json(event)

    def facts(self) -> HostFacts:
        return self._cpu.facts()

    def close(self) -> None:
        self._cpu.close()


def _unless_conditions(queue: "SimpleQueue[Event | None]") -> Callable[[Event | None], None]:
    """What takes in all events but Conditions."""

    def emit(event: Event | None) -> None:
        if not isinstance(event, Conditions):
            queue.put(event)

    return emit


def _with_reason(event: Event, *, asked: bool) -> Event:
    """The event as the race tells it: nobody stops a column unasked but the end of the seconds."""
    match event:
        case Finished(reason="stopped") if not asked:
            return replace(event, reason="end of GPU time")
        case _:
            return event


def _refused(error: Exception) -> DerbyError:
    """What Spaces say: their errors are gradio's, with a title and a message."""
    message = getattr(error, "message", "")
    if not message:
        return DerbyError(explain(error), cause=cause_of(error))
    title = getattr(error, "title", "") or "ZeroGPU"
    return DerbyError(
        f"{title}: {str(message).strip().rstrip('.')}. Columns on the CPU need no GPU: choose the "
        "device CPU, or run the race again later."
    )
