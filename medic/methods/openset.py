"""Systems of open-set recognition."""

from medic.methods.method import Method
from medic.strategies import Joint
from medic.tasks import Grid

OPENSET = (
    Method(
        "openmax",
        "logits far from those of their class in training lose to an unknown class",
        "score: plain training, then an extreme-value model per class",
        "Bendale and Boult 2016",
        Grid(),
        Joint(),
        score="openmax",
    ),
    Method(
        "arpl",
        "every class is what is far from its reciprocal point, within a radius",
        "head and objective: distances to learnt points instead of logits",
        "Chen et al. 2021",
        Grid(),
        Joint(),
        "arpl",
    ),
    Method(
        "onering",
        "unknown is the second best class of every known image",
        "head and objective: an output for unknown",
        "Yang et al. 2022",
        Grid(),
        Joint(),
        "onering",
    ),
)
