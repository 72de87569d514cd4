"""Systems of open-set recognition."""

from medic.methods.method import Method, Training
from medic.methods.search import Rate
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
        paper="OpenMax",
    ),
    Method(
        "arpl",
        "every class is what is far from its reciprocal point, within a radius",
        "head and objective: distances to learnt points instead of logits",
        "Chen et al. 2021",
        Grid(),
        Joint(),
        "arpl",
        paper="ARPL",
    ),
    Method(
        "arpl-cs",
        "ARPL, and generated images that look real must be as far from all reciprocal points",
        "head and objective: ARPL beside a generator and a discriminator",
        "Chen et al. 2021",
        Grid(),
        Joint(),
        "arpl-cs",
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
        "ebil-hads",
        "the domain that a follower trusts least is apart; two evidential branches (experimental: our reading)",
        "head, objective and grid: MEDIC with two branches, a network that weighs images, and a domain held apart",
        "Peng et al. 2024",
        Grid(2, 2, pairing="diagonal"),
        TwoStep(second_order=True, lr=1e-3),
        "ebil",
        forward="task",
        least_domains=2,
        advisor="hard-domain",
    ),
    Method(
        "onering",
        "unknown is the second best class of every known image",
        "head and objective: an output for unknown",
        "Yang et al. 2022",
        Grid(),
        Joint(),
        "onering",
        paper="OneRing",
    ),
    Method(
        "daml",
        "a network for every source domain, which learns its own, and then to serve the others",
        "model, grid, strategy and objective: networks that teach each other, on features mixed between domains",
        "Shu et al. 2021",
        Grid(3, steps=1, pairing="ordered", repeat=2),
        TwoStep(),
        "daml",
        forward="task",
        # The authors' 1e-3 and 1e-4 beside a gradient summed over the t = 6 tasks of three domains.
        training=Training(lr=Rate(small=None, large=6e-3), weight_decay=1e-4 / 6),
        least_domains=2,
        each_domain=True,
    ),
)
