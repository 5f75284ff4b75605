"""All experiments, by the names that the command line takes."""

from backend.bench.baselines import ASSISTED, PEERS
from backend.bench.costs import COSTS
from backend.bench.coverage import COVERAGE
from backend.bench.experiment import Experiment
from backend.bench.grammar import GRAMMAR
from backend.bench.interleaved import INTERLEAVED
from backend.bench.load import LOAD
from backend.bench.program import PROGRAM
from backend.bench.solo import SOLO
from backend.bench.structure import STRUCTURE
from backend.errors import DerbyError

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        SOLO,
        INTERLEAVED,
        COVERAGE,
        COSTS,
        LOAD,
        PROGRAM,
        STRUCTURE,
        GRAMMAR,
        PEERS,
        ASSISTED,
    )
}


def experiment_named(name: str) -> Experiment:
    """Raises DerbyError if there is none of that name."""
    if name not in EXPERIMENTS:
        raise DerbyError(f"There is no experiment {name!r}; run one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
