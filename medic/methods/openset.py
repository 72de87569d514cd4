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
        "hyprometa",
        "labels that hyperbolic prototypes contradict are corrected, for meta-testing (experimental: our reading)",
        "grid, head, objective and advisor: MEDIC from clean to noisy images, and a category of prompted ones",
        "Peng et al. 2024",
        Grid(2, 2, axes={"clean": 1}, pairing="diagonal"),
        TwoStep(second_order=True),
        "hyprometa",
        forward="task",
        advisor="prototypes",
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
