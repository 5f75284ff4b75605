"""The page's side of a cluster: as many races at once as there are machines."""

import itertools
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from backend.cluster.choice import Machine, Wanted, choose, wanted
from backend.errors import DerbyError
from backend.events import Event, failures, from_json
from backend.racing.commands import Command, ForgetVisitor, all_stopped, ending
from backend.racing.hosts.host import POLL, HostFacts, Lease
from backend.racing.race import Race

log = logging.getLogger(__name__)

#: Seconds before the next try to reach a cluster, doubled with each in vain, and their bound.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0

#: Seconds that a machine has to end a race that is stopped: its own host's, and the way there.
STOP_GRACE = 2.0

#: Visitors of whom it is known where their caches lie.
MOST_HOMES = 10_000


class Link(Protocol):
    """What the page knows of a cluster. Lost for good once `hear` raises EOFError."""

    def begin(self, run: int, machine: str, command: Command) -> None:
        """Have a machine, by its key, carry out a command. `run` is a number never used before."""
        ...

    def stop(self, run: int) -> None: ...

    def hear(self) -> Mapping[str, Any]:
        """What is said next, as `driver.drive` says it. Raises EOFError once the driver is gone."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A Lease: what makes a command's events, and what frees the machine."""

    run: Callable[[Command, Callable[[], bool]], Iterator[Event]]
    release: Callable[[], None] = lambda: None

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        return self.run(command, stopped)


def _refused(error: DerbyError, command: Command, _stopped: Callable[[], bool]) -> Iterator[Event]:
    """Where no machine of the cluster can do what is asked for."""
    yield from failures(range(command.width), error)


class ClusterHost:
    """A Host, and Machines. `connect` makes a link."""

    def __init__(self, address: str, connect: Callable[[], Link]) -> None:
        self._address, self._connect = address, connect
        self._lock = threading.Lock()
        self._closed, self._changed = threading.Event(), threading.Condition(self._lock)
        self._link: Link | None = None
        self._problem = ""
        self._machines: list[Machine] = []
        self._busy: set[str] = set()
        self._homes: OrderedDict[str, list[Machine]] = OrderedDict()  # by scope, the last one last
        self._heard: dict[int, SimpleQueue[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._lost: Counter[str] = Counter()
        self._keeper = threading.Thread(target=self._keep_connected, name="cluster", daemon=True)
        self._keeper.start()

    @property
    def machines(self) -> Sequence[Machine]:
        """Those that are there now, in the order in which they joined."""
        with self._lock:
            return tuple(self._machines)

    def await_machine(self, seconds: float) -> bool:
        """Wait until a machine is there, ready or not; False if none came in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._machines), seconds)

    def facts(self) -> HostFacts:
        with self._lock:
            devices: dict[str, dict[str, None]] = {}
            for machine in self._machines:
                for engine, names in machine.devices.items():
                    devices.setdefault(engine, {}).update(dict.fromkeys(names))
            found = {engine: tuple(names) for engine, names in devices.items()}
            return HostFacts(dict(self._lost), 0, self._preparing(), found)

    def _preparing(self) -> str:
        """What no race can begin for; "" if a machine takes races."""
        if not self._machines:
            wait = f"The cluster at {self._address} has no machine yet: waiting for one to join..."
            return wait if self._link and not self._problem else self._problem or "Connecting..."
        preparing = [f"{m.name}: {m.preparing}" for m in self._machines if m.preparing]
        return "" if len(preparing) < len(self._machines) else preparing[0]

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        while (lease := self.lease((command,))) is None:
            if stopped() or self._closed.wait(POLL):
                yield from all_stopped(command)
                return
        try:
            yield from lease.stream(command, stopped)
        finally:
            lease.release()

    def lease(self, commands: Sequence[Command]) -> Lease | None:
        asked = wanted(commands)
        with self._lock:
            if isinstance(commands[0], ForgetVisitor):
                return _Held(partial(self._forget, self._homes.pop(commands[0].visitor, [])))
            homes = self._homes.get(asked.scope, [])
            home = homes[-1].key if homes else ""
            try:
                machine = choose(self._machines, self._busy, asked, home)
            except DerbyError as error:
                return _Held(partial(_refused, error))
            if machine is None:
                return None
            self._busy.add(machine.key)
            self._remember(asked, machine)
            there = any(each.key == home for each in self._machines)
        note = ""
        if homes and asked.goes_on and home != machine.key:
            why = "cannot run this" if there else "is gone"
            note = f"{homes[-1].name} {why}; its caches are computed again."
        return _Held(partial(self._run, machine, note), partial(self._release, machine))

    def _remember(self, asked: Wanted, machine: Machine) -> None:
        """Where the visitor's caches will lie."""
        if asked.scope:
            homes = [m for m in self._homes.get(asked.scope, []) if m.key != machine.key]
            self._homes[asked.scope] = [*homes, machine]
            self._homes.move_to_end(asked.scope)
            while len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)

    def _release(self, machine: Machine) -> None:
        """The machine is free for others."""
        with self._lock:
            self._busy.discard(machine.key)

    def _begin(self, machine: Machine, command: Command) -> tuple[int, Link, "SimpleQueue[Any]"]:
        """Have a machine carry out a command: its number, the link to stop it by, and a queue of
        what `driver.drive` says of it. Raises DerbyError if the cluster is not reached.
        """
        with self._lock:
            if self._link is None:
                raise _lost(machine.name, "the cluster's head is gone")
            number = next(self._numbers)
            heard = self._heard[number] = SimpleQueue[Any]()
            self._link.begin(number, machine.key, command)
            return number, self._link, heard

    def _run(
        self, machine: Machine, note: str, command: Command, stopped: Callable[[], bool]
    ) -> Iterator[Event]:
        """Carry out a command on the machine. `note` is said with a race."""
        if isinstance(command, Race):
            yield machine.placed(note)
        yield from ending(range(command.width), self._events(machine, command, stopped))

    def _events(
        self, machine: Machine, command: Command, stopped: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """What comes of a command, until STOP_GRACE after it was stopped. Raises DerbyError if the
        machine is lost.
        """
        number, link, heard = self._begin(machine, command)
        deadline, said = float("inf"), dict[str, Any]()
        try:
            while "ended" not in said:
                if deadline == float("inf") and stopped():
                    deadline = time.monotonic() + STOP_GRACE
                    link.stop(number)
                if time.monotonic() > deadline:
                    return
                with suppress(Empty):
                    said = heard.get(timeout=POLL)
                    yield from map(from_json, said.get("events", ()))
        finally:
            if "ended" not in said:
                link.stop(number)
        if said["ended"]:
            raise _lost(machine.name, said["ended"])

    def _forget(
        self, machines: Sequence[Machine], command: Command, _stopped: Callable[[], bool]
    ) -> Iterator[Event]:
        """Tell each machine where a visitor raced to forget them, and wait for none of them."""
        for machine in machines:
            self._begin(machine, command)
        yield from ()

    def _keep_connected(self) -> None:
        vain = 0
        while not self._closed.is_set():
            if self._connected():
                vain = 0
            vain += 1
            self._closed.wait(min(FIRST_PAUSE * 2 ** (vain - 1), LONGEST_PAUSE))

    def _connected(self) -> bool:
        """Hear a link until it is lost; whether it had reached the cluster."""
        reached = False
        try:
            link = self._connect()
        except Exception:  # no memory for a process
            log.exception("the cluster's driver could not be started")
            return False
        with self._lock:
            self._link = link
        try:
            while not self._closed.is_set():
                said = link.hear()
                reached = reached or "machines" in said
                self._take(said)
        except EOFError:
            pass
        except Exception:
            log.exception("the cluster's driver said what is no message")
        link.close()
        self._disconnected(reached=reached and not self._closed.is_set())
        return reached

    def _disconnected(self, *, reached: bool) -> None:
        with self._lock:
            self._link = None
            self._machines, self._busy = [], set()
            if reached:
                self._lost["head"] += 1
                self._problem = (
                    f"The cluster at {self._address} was lost: trying to reach it again..."
                )
            for heard in self._heard.values():
                heard.put({"ended": "the cluster's head is gone"})
            self._heard.clear()
        if reached:
            log.warning("the cluster at %s was lost", self._address)

    def _take(self, said: Mapping[str, Any]) -> None:
        with self._changed:
            if "problem" in said:
                self._problem = str(said["problem"])
            elif "machines" in said:
                found = [Machine(**fields) for fields in said["machines"]]
                gone = {m.key for m in self._machines} - {m.key for m in found}
                self._lost["machine"] += len(gone)
                self._machines, self._problem = found, ""
                self._changed.notify_all()
            elif (heard := self._heard.get(said["run"])) is not None:
                heard.put(said)
                if "ended" in said:
                    del self._heard[said["run"]]

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            link = self._link
        if link is not None:
            link.close()
        self._keeper.join()


def _lost(name: str, why: str) -> DerbyError:
    """What a race's columns end with that were open when their machine was lost."""
    return DerbyError(
        f"{name} was lost ({why}): run the race again, on another machine.", cause="machine"
    )
