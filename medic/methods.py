"""The table of methods: combinations of existing parts first, then complete systems.

A name without a suffix is the system in the paper's open-set tables. A suffix marks a variant.
"""

from functools import partial
from typing import Any

from medic.errors import check_choice
from medic.models import LAYERS
from medic.objectives import OBJECTIVES, PENALTIES, Rsc
from medic.objectives.needs import NEEDS
from medic.openset.registry import SCORES
from medic.strategies import AndMask, MultiStep, SandMask, Trajectories, TwoStep
from medic.systems import SYSTEMS
from medic.systems.base import DOMAINBED_ADAM, Method, Rate
from medic.tasks import GridSpec
from medic.training import AVERAGES
from medic.utils.parts import Choice, Part, log10
from medic.utils.plugins import Group

__all__ = [
    "DOMAINBED_ADAM",
    "METHODS",
    "METHOD_GROUP",
    "Method",
    "Rate",
    "describe_method",
    "find_method",
    "find_needs",
    "list_methods",
]

OVA = {"objective": "ce+ova"}
PLAIN = {"weight_decay": 0.0, "schedule": "constant"}

# Methods that share a grid. In the last two, the tasks are the source domains, always in the same order.
_chain = partial(Method, preset=OVA, grid=GridSpec(3, 3))
_diagonal = partial(Method, preset=OVA, grid=GridSpec(2, 2, pairing="diagonal"), forward="task")
_domains_in_one_step = partial(Method, grid=GridSpec(3, steps=1, pairing="ordered"), each_domain=True)
_step_per_domain = partial(Method, grid=GridSpec(3, pairing="ordered"), forward="task", min_domains=2, each_domain=True)

_OF_PARTS = (
    Method("erm", "minimise the mean loss over all source images", "nothing: the baseline", "Vapnik 1998", paper="ERM"),
    Method(
        "swad",
        "average the weights from the iterations with a low validation loss",
        "averaging: plain training, then the mean of the weights over many iterations",
        "Cha et al. 2021",
        preset={"averaging": "swad"},
        paper="SWAD",
    ),
    _chain(
        "maml",
        "minimise the loss on the last step after inner steps on the other tasks",
        "strategy: uses only the gradient of the last step",
        "Finn et al. 2017",
        strategy=Part("maml", MultiStep, {"weights": "last"}),
        paper="MAML",
    ),
    _chain(
        "reptile",
        "sum the gradients along a chain of steps, which aligns each pair of gradients",
        "grid and strategy: random tasks, split by domain and class",
        "Nichol et al. 2018",
        strategy=Part("reptile", MultiStep),
        paper="Reptile",
    ),
    Method(
        "mldg",
        "make a step on some domains help the other domains",
        "grid and strategy: two domain splits (meta-train and meta-test), first order",
        "Li et al. 2018",
        grid=GridSpec(2),
        strategy=Part("mldg", TwoStep),
        paper="MLDG",
    ),
    Method(
        "mldg-domainbed",
        "MLDG as implemented in DomainBed",
        "strategy: a fresh Adam step for each domain pair, with two domains for meta-testing",
        "Gulrajani and Lopez-Paz 2021",
        preset={"optimizer": "adam", "lr": DOMAINBED_ADAM, "inner_lr": "lr", **PLAIN},
        grid=GridSpec(3),
        strategy=Part("mldg-domainbed", TwoStep, {"inner": "adam", "meta_test": 2, "decay": 0.0}),
        each_domain=True,
        search={"beta": log10("mldg_beta", -1, 1), "meta_test": Choice("n_meta_test", (1, 2))},
    ),
    Method(
        "fish",
        "apply Reptile to domains",
        "grid and strategy: one step per domain",
        "Shi et al. 2022",
        grid=GridSpec(3),
        strategy=Part("fish", MultiStep),
        each_domain=True,
        paper="Fish",
    ),
    Method(
        "fish-domainbed",
        "Fish as implemented in DomainBed",
        "strategy: an inner Adam optimizer that keeps its moments; the weights move by 0.5 × its displacement",
        "Gulrajani and Lopez-Paz 2021",
        preset={"lr": 0.5, "inner_lr": DOMAINBED_ADAM, "momentum": 0.0, **PLAIN},
        grid=GridSpec(3, pairing="ordered"),
        strategy=Part("fish-domainbed", MultiStep, {"inner": "adam", "decay": 0.0, "bn_buffers": "interpolate"}),
        each_domain=True,
        search={"lr": Choice("meta_lr", (0.05, 0.1, 0.5))},
    ),
    Method(
        "mvdg",
        "move to the mean of several trajectories that train on some domains and test on the others",
        "grid and strategy: three trajectories of 3 × 2 steps, each with a fresh Adam optimizer",
        "Zhang et al. 2022",
        preset={"lr": 0.05, "momentum": 0.0, "weight_decay": 5e-4, "head_lr_scale": 10.0},
        grid=GridSpec(2, repeat=9),
        strategy=Part("mvdg", Trajectories, {"lr": 1e-3}),
        min_domains=3,
        paper="MVDG",
    ),
    _diagonal(
        "medic",
        "cross two domain splits with two class splits; a step on one diagonal must help the other",
        "grid and strategy: diagonal 2 × 2 tasks, second order",
        "Wang et al. 2023",
        strategy=Part("medic", TwoStep, {"second_order": True}),
        paper="MEDIC",
    ),
    _diagonal(
        "medic-fo",
        "MEDIC without second-order derivatives",
        "grid and strategy: diagonal 2 × 2 tasks, first order",
        "Wang et al. 2023",
        strategy=Part("medic-fo", TwoStep),
    ),
    _chain(
        "medic++",
        "take a chain of steps over tasks split by domain and class, keeping confusable classes apart",
        "grid and strategy: 3 × 3 tasks in three steps, with adaptive class splits",
        "Wang et al. 2025",
        grid=GridSpec(3, 3, sampling="adaptive"),
        strategy=Part("medic++", MultiStep),
        paper="MEDIC++",
    ),
    _chain(
        "arith",
        "move to the mean of the points along the chain",
        "strategy: step gradients with weights in arithmetic progression",
        "Wang et al. 2025",
        strategy=Part("arith", MultiStep, {"weights": "arithmetic"}),
    ),
    _diagonal(
        "l2ot",
        "push the features of different classes apart",
        "objective: MEDIC with a penalty on the optimal transport between classes",
        "Li et al. 2025",
        preset={**OVA, "penalty": "transport"},
        strategy=Part("l2ot", TwoStep, {"second_order": True}),
        experimental=True,
    ),
    Method(
        "openmax",
        "move probability to an unknown class when logits are far from the class's training logits",
        "score: plain training, then an extreme value model per class",
        "Bendale and Boult 2016",
        preset={"score": "openmax"},
        paper="OpenMax",
    ),
    _domains_in_one_step(
        "groupdro",
        "give domains with a larger loss more weight",
        "objective: exponential weights on the domain losses",
        "Sagawa et al. 2020",
        preset={"penalty": "groupdro"},
        forward="task",
        paper="GroupDRO",
    ),
    _domains_in_one_step(
        "vrex",
        "equalise the loss across domains",
        "objective: penalty on the variance of the domain losses",
        "Krueger et al. 2021",
        preset={"penalty": "vrex"},
        paper="V-REx",
    ),
    _domains_in_one_step(
        "coral",
        "equalise the mean and covariance of the features across domains",
        "objective: penalty on differences between feature moments",
        "Sun and Saenko 2016",
        preset={"penalty": "coral"},
        forward="task",
        paper="CORAL",
    ),
    Method(
        "rsc",
        "train without the most predictive features",
        "objective: masks the most predictive features of some samples",
        "Huang et al. 2020",
        change=Part("rsc", Rsc),
        paper="RSC",
    ),
    _domains_in_one_step(
        "fishr",
        "equalise the variance of the classifier gradients across domains",
        "objective: penalty on differences between gradient variances",
        "Rame et al. 2022",
        preset={"penalty": "fishr"},
        paper="Fishr",
    ),
    _domains_in_one_step(
        "hgp",
        "equalise the gradient, and the curvature along it, across domains",
        "objective: penalty on differences between head gradients and between Hessian-gradient products",
        "Hemati et al. 2023",
        preset={"penalty": "hgp"},
        forward="task",
        min_log2_batch=4,
        paper="HGP",
    ),
    _domains_in_one_step(
        "hutchinson",
        "equalise the gradient, and the curvature of each weight, across domains",
        "objective: penalty on differences between head gradients and between Hessian diagonals",
        "Hemati et al. 2023",
        preset={"penalty": "hutchinson"},
        forward="task",
        min_log2_batch=4,
        paper="Hutchinson",
    ),
    Method(
        "miro",
        "keep features close to the pretrained features",
        "objective: penalty on the distance to the pretrained feature maps of each stage; frozen batch norm",
        "Cha et al. 2022",
        preset={"penalty": "miro"},
        paper="MIRO",
    ),
    _step_per_domain(
        "andmask",
        "update only the weights whose gradients have the same sign in all domains",
        "strategy: masks coordinates on which the domains disagree",
        "Parascandolo et al. 2021",
        strategy=Part("andmask", AndMask),
        paper="AND-mask",
    ),
    _step_per_domain(
        "sandmask",
        "update each weight in proportion to the agreement between domain gradients",
        "strategy: a smooth mask computed from the agreement and spread of the gradients",
        "Shahtalebi et al. 2021",
        strategy=Part("sandmask", SandMask),
        paper="SAND-mask",
    ),
    Method(
        "mixstyle",
        "mix the styles of images during training",
        "layer: mixes channel statistics between images after backbone stages",
        "Zhou et al. 2021",
        preset={"layer": "mixstyle"},
        paper="MixStyle",
    ),
    Method(
        "aloft-e",
        "add noise to the low frequencies of the features",
        "layer: perturbs each amplitude inside the global filters",
        "Guo et al. 2023",
        preset={"layer": "aloft-e"},
        backbone="gfnet_h_ti",
        paper="ALOFT",
    ),
    Method(
        "aloft-s",
        "add noise to the statistics of the features' low frequencies",
        "layer: perturbs the mean and deviation of the amplitudes inside the global filters",
        "Guo et al. 2023",
        preset={"layer": "aloft-s"},
        backbone="gfnet_h_ti",
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in (*_OF_PARTS, *SYSTEMS)}
BUILT_IN = frozenset(METHODS)
"""Names of the methods in this package."""
METHOD_GROUP = Group("medic.methods", "method", Method, METHODS)


def find_method(name: str) -> Method:
    """Return a method by name. Searches installed packages if the method is not built in."""
    return METHOD_GROUP.find(name)


def find_needs(method: Method) -> tuple[str, ...]:
    """Return the names of a method's requirements beyond logits, in the order of `medic.objectives.needs.NEEDS`."""
    kind, preset = OBJECTIVES[method.preset.get("objective", "ce")], method.preset
    declared: list[Any] = [kind.kind, *(loss.kind for loss in kind.losses)]
    declared += [] if "penalty" not in preset else [PENALTIES[preset["penalty"]]]
    named = (LAYERS.get(preset.get("layer", "")), AVERAGES.get(preset.get("averaging", "")))
    declared += [part.kind for part in (method.change, method.callback, *named) if part]
    needs = {check_choice("need", need, NEEDS) for part in declared for need in getattr(part, "needs", ())}
    if "score" in preset and SCORES[preset["score"]].fitter is not None:
        needs |= {"train_set"}
    return tuple(need for need in NEEDS if need in needs)


def list_methods() -> list[dict[str, Any]]:
    """Describe all methods with plain values, one dict per method."""
    return [describe_method(method) for method in METHODS.values()]


def describe_method(method: Method) -> dict[str, Any]:
    """Describe a method with plain values: name, idea, parts, requirements, source, tasks and steps."""
    grid = method.grid
    return {
        "method": method.name,
        "paper": method.paper,
        "idea": method.idea,
        "experimental": method.experimental,
        "differs in": method.differs,
        "source": method.citation,
        "grid": "each domain" if method.each_domain else " × ".join(map(str, grid.splits.values())) or "one task",
        "needs": ", ".join(NEEDS[need].text for need in find_needs(method)) or "logits",
        "steps": ",".join(map(str, grid.round)) + (f" × {grid.repeat}" if grid.repeat > 1 else ""),
    }
