"""Systems of open-set recognition."""

from medic.methods.method import Method
from medic.strategies import Joint, TwoStep
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
        "l2ot",
        "classes whose features are far from each other (experimental: our reading)",
        "objective: MEDIC with a penalty on the transport between classes",
        "Li et al. 2025",
        Grid(2, 2, pairing="diagonal"),
        TwoStep(second_order=True),
        "ce+ova",
        forward="task",
        penalty="transport",
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
    Method(
        "crossmatch",
        "images made harder, and others that all classifiers are to reject (experimental: our reading)",
        "objective: losses on pools of images that gradient ascent makes of the step's",
        "Zhu and Li 2022",
        Grid(),
        Joint(),
        "crossmatch",
    ),
)
