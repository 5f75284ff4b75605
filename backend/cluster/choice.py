"""Which machine of a cluster a race goes to: pure, of what the machines said of themselves."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from backend.errors import DerbyError
from backend.events import Placed
from backend.racing.commands import Command, Measure, SaveColumn
from backend.racing.race import Race
from backend.types import ModelSpec

#: Devices that an engine chooses itself.
ANY = ("AUTO",)


@dataclass(frozen=True, slots=True)
class Machine:
    """What an actor said of its machine. `key` is the actor's own: one that takes its place on the
    same machine has another. `devices` are by engine; of the models that are paths it has `models`.
    `preparing` says what it still does before it takes races; "": it takes them.
    """

    key: str
    name: str
    processor: str = ""
    cores: float = 0.0
    memory: int = 0
    system: str = ""
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    models: Sequence[str] = ()
    preparing: str = ""

    def placed(self, note: str) -> Placed:
        """The event that says where a race runs."""
        return Placed(self.name, self.processor, self.cores, self.memory, self.system, note)

    def lacks(self, spec: ModelSpec) -> str:
        """What the model wants that is not on this machine; "" if all is."""
        if spec.engine not in self.devices:
            return f"the engine {spec.engine}"
        device = spec.device.partition(".")[0].partition(":")[0]
        known = {name.partition(".")[0].partition(":")[0] for name in self.devices[spec.engine]}
        if device not in known and device not in ANY:
            return f"the device {spec.device}"
        if spec.name.startswith((".", "~", "/")) and spec.name not in self.models:
            return f"the model {spec.name}"
        return ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a visitor's commands want of a machine. `scope` is whose caches they use, "" nobody's;
    `goes_on`: they go on from what lies in them.
    """

    specs: tuple[ModelSpec, ...] = ()
    scope: str = ""
    goes_on: bool = False


def wanted(commands: Sequence[Command]) -> Wanted:
    """Of commands that one machine carries out, one after another."""
    specs: dict[ModelSpec, None] = {}
    scope, goes_on = "", False
    for command in commands:
        race = command.race if isinstance(command, SaveColumn) else command
        if isinstance(race, Race | Measure):
            local = [column for column in race.columns if column.strategy.lane is None]
            specs |= dict.fromkeys(column.target(race.target) for column in local)
        if isinstance(race, Race):
            scope = getattr(race.scope, "id", "")
            earlier = any(answer.tokens and not answer.snapshot for answer in race.earlier)
            goes_on = goes_on or earlier or isinstance(command, SaveColumn)
    return Wanted(tuple(specs), scope, goes_on)


def choose(
    machines: Sequence[Machine], busy: Collection[str], asked: Wanted, home: str = ""
) -> Machine | None:
    """The machine to take now, None to wait. `busy` and `home` are keys of machines; home is where
    the caches lie. Who goes on from these waits for it, anybody else takes the first free one.

    Raises DerbyError if there are machines and none of them can run what is asked for.
    """
    able = [machine for machine in machines if not any(map(machine.lacks, asked.specs))]
    if machines and not able:
        raise DerbyError(_nowhere(machines, asked))
    at_home = next((machine for machine in able if machine.key == home), None)
    if at_home is not None and asked.goes_on:
        able = [at_home]
    free = [machine for machine in able if machine.key not in busy and not machine.preparing]
    return at_home if at_home in free else next(iter(free), None)


def _nowhere(machines: Sequence[Machine], asked: Wanted) -> str:
    lacking = "; ".join(
        f"{machine.name} lacks {next(filter(None, map(machine.lacks, asked.specs)))}"
        for machine in machines
    )
    return f"No machine of the cluster can run this race ({lacking}): choose what one of them has."
