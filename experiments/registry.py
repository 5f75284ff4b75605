"""All experiments, by the names that `python -m experiments` takes."""

from experiments.baselines import ASSISTED, PEERS
from experiments.costs import COSTS
from experiments.coverage import COVERAGE
from experiments.experiment import Experiment
from experiments.interleaved import INTERLEAVED
from experiments.masks import MASKS
from experiments.program import PROGRAM
from experiments.structure import STRUCTURE

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (INTERLEAVED, COVERAGE, COSTS, PROGRAM, STRUCTURE, MASKS, PEERS, ASSISTED)
}
