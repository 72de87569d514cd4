"""Tasks: subsets of the training data along labelled axes, distributed over the steps of an iteration."""

from medic.tasks.cells import Cells
from medic.tasks.grid import Grid, Task, gather
from medic.tasks.lagged import Sampler
from medic.tasks.partition import MatchedPairs, chunks, matched_pairs, step_sizes
from medic.tasks.samplers import SAMPLERS, Adaptive, Random
from medic.tasks.spec import GridSpec, Pairing, Separation
from medic.tasks.step import Step

__all__ = [
    "SAMPLERS",
    "Adaptive",
    "Cells",
    "Grid",
    "GridSpec",
    "MatchedPairs",
    "Pairing",
    "Random",
    "Sampler",
    "Separation",
    "Step",
    "Task",
    "chunks",
    "gather",
    "matched_pairs",
    "step_sizes",
]
