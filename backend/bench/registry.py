"""All experiments, by the names that the command line takes."""

from backend.bench.experiment import Experiment
from backend.bench.load import LOAD
from backend.bench.solo import SOLO
from backend.errors import DerbyError

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (SOLO, LOAD)}


def experiment_named(name: str) -> Experiment:
    """Raises DerbyError if there is none of that name."""
    if name not in EXPERIMENTS:
        raise DerbyError(f"There is no experiment {name!r}; run one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
