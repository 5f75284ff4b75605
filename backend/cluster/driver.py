"""The process that imports ray: it keeps an actor on every machine and passes on what they say.

A process of its own, because ray ends its driver when the cluster's head is gone, and the page must
outlive that.
"""

import itertools
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from backend.cluster.actor import RacingActor, Setup
from backend.processes import die_with_parent, spawn
from backend.racing.commands import Command

log = logging.getLogger(__name__)

#: Seconds between two looks at which machines there are.
LOOK = 0.5

#: Seconds between two questions whether a machine is still there.
BEAT = 1.0

#: Seconds without an answer after which a machine is lost: a race is to end within 5 s.
SILENCE = 3.0

#: Seconds without an answer of the cluster's head after which the driver gives up.
PATIENCE = 10.0

#: Seconds that a machine may take to start its actor, models of the Hub included.
JOINING = 1800.0

#: What the driver is asked for.
BEGIN, STOP = "begin", "stop"

ROOT = Path(__file__).resolve().parents[2]


def drive(connection: Connection, address: str, setup: Setup) -> None:
    """Serve until the page closes its end, or the cluster is gone. Says JSON values: `problem`, a
    sentence; `machines`, fields of all choice.Machine; of command `run` its `events`, and at its
    end `ended`, "" or why its machine was lost.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    os.chdir(ROOT)  # ray has machines import what lies where its driver is
    say = _Speaker(connection)
    try:
        ray = import_module("ray")
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError:
        say({"problem": "Ray is not installed: pip install -r requirements-ray.txt."})
        return
    except Exception as error:  # whatever ray raises of an address
        log.warning("the cluster at %s: %s", address, error)
        say({"problem": f"There is no Ray cluster at {address}: start its head, or name another."})
        return
    _Fleet(ray, setup, say).serve(connection)
    os._exit(0)  # ray's own farewell may wait for a head that is gone


class _Speaker:
    """Says JSON values to the page. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def __call__(self, message: Any) -> None:
        data = json.dumps(message).encode()
        with self._lock:
            try:
                self._connection.send_bytes(data)
            except OSError:
                os._exit(0)  # the page has gone


class _Member:
    """One machine, or a GPU of it, and its actor, once that answered."""

    def __init__(self, key: str, node: str, name: str, actor: Any) -> None:
        self.key, self.node, self.name, self.actor = key, node, name, actor
        self.facts: dict[str, Any] = {}
        self.lost = threading.Event()


class _Fleet:
    """All machines. A thread each waits for an actor, and for a race."""

    def __init__(self, ray: Any, setup: Setup, say: _Speaker) -> None:
        """`ray` is the package, whose types are known only where it is installed."""
        self._ray, self._setup, self._say = ray, setup, say
        self._lock = threading.RLock()
        self._members: dict[str, _Member] = {}  # by key
        self._stops: dict[int, threading.Event] = {}
        self._numbers = itertools.count(1)
        self._names: dict[str, str] = {}  # of nodes
        self._looked = time.monotonic()

    def serve(self, connection: Connection) -> None:
        """Do what the page asks for until it closes its end."""
        self._tell()
        for work in (self._look_always, self._watch_head):
            threading.Thread(target=work, daemon=True).start()
        while True:
            try:
                what, run, *rest = connection.recv()
            except (EOFError, OSError):
                return
            if what == STOP:
                if (stop := self._stops.get(run)) is not None:
                    stop.set()
            else:
                stop = self._stops[run] = threading.Event()
                threading.Thread(target=self._race, args=(run, stop, *rest), daemon=True).start()

    def _look_always(self) -> None:
        while True:
            self._look()
            self._looked = time.monotonic()
            time.sleep(LOOK)

    def _watch_head(self) -> None:
        while time.monotonic() - self._looked < PATIENCE:
            time.sleep(LOOK)
        log.warning("the cluster's head did not answer for %g s", PATIENCE)
        os._exit(1)

    def _look(self) -> None:
        """Take in machines that have joined, and let go of those that are gone."""
        alive = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        with self._lock:
            for member in [m for m in self._members.values() if m.node not in alive]:
                self._lose(member, "it left the cluster")
            known = {member.node for member in self._members.values()}
            joined = [node for node in alive.values() if node["NodeID"] not in known]
            for node in joined:
                self._join(node)

    def _join(self, node: Mapping[str, Any]) -> None:
        """Start an actor for the node, or for each of its GPUs; none where it offers no CPU."""
        strategies = import_module("ray.util.scheduling_strategies")
        cpus, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
        if cpus < 1:
            return
        parts = min(max(gpus, 1), cpus)
        for part in range(parts):
            actor = (
                self._ray.remote(RacingActor)
                .options(
                    num_cpus=cpus // parts,
                    num_gpus=gpus // parts if gpus else 0,
                    max_restarts=0,
                    max_task_retries=0,
                    max_concurrency=8,
                    scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(
                        node["NodeID"], soft=False
                    ),
                )
                .remote(self._setup, part, parts)
            )
            key = f"{node['NodeID']}/{part}/{next(self._numbers)}"
            member = _Member(key, node["NodeID"], self._name(node, part, parts), actor)
            self._members[key] = member
            threading.Thread(target=self._attend, args=(member,), daemon=True).start()

    def _name(self, node: Mapping[str, Any], part: int, parts: int) -> str:
        """What the operator named it; addresses are not for visitors to see."""
        named = node.get("NodeName") or node["NodeManagerAddress"]
        usual = f"machine {len(self._names) + 1}"
        own = usual if named == node["NodeManagerAddress"] else named
        name = self._names.setdefault(node["NodeID"], own)
        return name if parts == 1 else f"{name}, GPU {part + 1}"

    def _attend(self, member: _Member) -> None:
        """Tell of a machine as soon as its actor answers, and then whenever it says other things.

        One that falls silent is lost, whether it races or not.
        """
        try:
            facts = self._ray.get(member.actor.facts.remote(), timeout=JOINING)
            while not member.lost.is_set():
                preparing = self._ray.get(member.actor.preparing.remote(), timeout=SILENCE)
                if member.facts != (now := {**facts, "preparing": preparing}):
                    member.facts = now
                    self._tell()
                member.lost.wait(BEAT)
        except Exception as error:
            log.warning("the machine %s: %s: %s", member.name, type(error).__name__, error)
            member.lost.wait(LOOK)  # what fails at once is not tried again at once
            self._lose(member, "it does not answer")

    def _lose(self, member: _Member, why: str) -> None:
        """A machine is gone, or as good as gone; a later look finds it anew if it is there."""
        with self._lock:
            if self._members.pop(member.key, None) is None:
                return
        log.warning("the machine %s is lost: %s", member.name, why)
        member.lost.set()
        threading.Thread(target=self._ray.kill, args=(member.actor,), daemon=True).start()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            self._say(
                {
                    "machines": [
                        {"key": member.key, "name": member.name, **member.facts}
                        for member in self._members.values()
                        if member.facts
                    ]
                }
            )

    def _race(self, run: int, stop: threading.Event, key: str, command: Command) -> None:
        """Have a machine carry out a command, and pass on what it says."""
        why, over, stopping = "it left the cluster", False, False
        member = self._members.get(key)
        try:
            if member is None:
                return
            self._ray.get(member.actor.begin.remote(run, command), timeout=SILENCE)
            while not over and not member.lost.is_set():
                if stop.is_set() and not stopping:
                    stopping = True
                    member.actor.stop.remote(run)
                events, over = self._ray.get(member.actor.hear.remote(run), timeout=SILENCE)
                if events:
                    self._say({"run": run, "events": events})
            why = "" if over else why
        except Exception as error:
            log.warning("a race's machine: %s: %s", type(error).__name__, error)
            why = "it does not answer"
            if member is not None:
                self._lose(member, why)
        finally:
            del self._stops[run]
            self._say({"run": run, "ended": why})


class DriverLink:
    """The page's connection to a driver process of its own."""

    def __init__(self, address: str, setup: Setup) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=drive, args=(theirs, address, setup), name="cluster driver", daemon=True
        )
        self._lock = threading.Lock()
        spawn(self._process)
        theirs.close()

    def begin(self, run: int, machine: str, command: Command) -> None:
        self._send((BEGIN, run, machine, command))

    def stop(self, run: int) -> None:
        self._send((STOP, run))

    def _send(self, request: tuple[Any, ...]) -> None:
        data = ForkingPickler.dumps(request)
        with self._lock:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return  # it is gone, as `hear` finds

    def hear(self) -> Mapping[str, Any]:
        try:
            return json.loads(self._connection.recv_bytes())
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        self._process.kill()
        self._process.join()
