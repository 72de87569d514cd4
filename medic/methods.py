"""The table of methods: those of existing parts, then whole systems.

A plain name is the system as in the paper's open-set tables; a suffix names another form.
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

# Methods that share a grid. The tasks of the last two are the source domains, always in the same order.
_chain = partial(Method, preset=OVA, grid=GridSpec(3, 3))
_diagonal = partial(Method, preset=OVA, grid=GridSpec(2, 2, pairing="diagonal"), forward="task")
_domains_in_one_step = partial(Method, grid=GridSpec(3, steps=1, pairing="ordered"), each_domain=True)
_step_per_domain = partial(Method, grid=GridSpec(3, pairing="ordered"), forward="task", min_domains=2, each_domain=True)

_OF_PARTS = (
    Method(
        "erm", "minimise the risk of all source images together", "nothing: the baseline", "Vapnik 1998", paper="ERM"
    ),
    Method(
        "swad",
        "average the weights over the valley of the validation loss",
        "after the loop: plain training, then the mean of the weights of many iterations",
        "Cha et al. 2021",
        preset={"averaging": "swad"},
        paper="SWAD",
    ),
    _chain(
        "maml",
        "minimise the risk of the last step, after inner steps on the others",
        "strategy: keeps the last step's gradient only",
        "Finn et al. 2017",
        strategy=Part("maml", MultiStep, {"weights": "last"}),
        paper="MAML",
    ),
    _chain(
        "reptile",
        "sum the gradients of a chain of steps, which matches them pairwise",
        "grid and strategy: tasks by domain and class, at random",
        "Nichol et al. 2018",
        strategy=Part("reptile", MultiStep),
        paper="Reptile",
    ),
    Method(
        "mldg",
        "a step on some domains must help the others",
        "grid and strategy: two domain splits, meta-train and meta-test, first order",
        "Li et al. 2018",
        grid=GridSpec(2),
        strategy=Part("mldg", TwoStep),
        paper="MLDG",
    ),
    Method(
        "mldg-domainbed",
        "MLDG as DomainBed has it",
        "strategy: a fresh Adam step per pair of domains, two of them for meta-testing",
        "Gulrajani and Lopez-Paz 2021",
        preset={"optimizer": "adam", "lr": DOMAINBED_ADAM, "inner_lr": "lr", **PLAIN},
        grid=GridSpec(3),
        strategy=Part("mldg-domainbed", TwoStep, {"inner": "adam", "meta_test": 2, "decay": 0.0}),
        each_domain=True,
        search={"beta": log10("mldg_beta", -1, 1), "meta_test": Choice("n_meta_test", (1, 2))},
    ),
    Method(
        "fish",
        "Reptile over domains",
        "grid and strategy: one step per domain",
        "Shi et al. 2022",
        grid=GridSpec(3),
        strategy=Part("fish", MultiStep),
        each_domain=True,
        paper="Fish",
    ),
    Method(
        "fish-domainbed",
        "Fish as DomainBed has it",
        "strategy: an inner Adam that keeps its moments, then 0.5 × its displacement",
        "Gulrajani and Lopez-Paz 2021",
        preset={"lr": 0.5, "inner_lr": DOMAINBED_ADAM, "momentum": 0.0, **PLAIN},
        grid=GridSpec(3, pairing="ordered"),
        strategy=Part("fish-domainbed", MultiStep, {"inner": "adam", "decay": 0.0, "bn_buffers": "interpolate"}),
        each_domain=True,
        search={"lr": Choice("meta_lr", (0.05, 0.1, 0.5))},
    ),
    Method(
        "mvdg",
        "move to the mean of several trajectories, each of which trains on some domains and tests on the others",
        "grid and strategy: three trajectories of three times two steps with a fresh Adam",
        "Zhang et al. 2022",
        preset={"lr": 0.05, "momentum": 0.0, "weight_decay": 5e-4, "head_lr_scale": 10.0},
        grid=GridSpec(2, repeat=9),
        strategy=Part("mvdg", Trajectories, {"lr": 1e-3}),
        min_domains=3,
        paper="MVDG",
    ),
    _diagonal(
        "medic",
        "tasks crossed over two domain and two class splits; a step on one diagonal must help the other",
        "grid and strategy: diagonal 2 × 2 tasks, second order",
        "Wang et al. 2023",
        strategy=Part("medic", TwoStep, {"second_order": True}),
        paper="MEDIC",
    ),
    _diagonal(
        "medic-fo",
        "MEDIC without second derivatives",
        "grid and strategy: diagonal 2 × 2 tasks, first order",
        "Wang et al. 2023",
        strategy=Part("medic-fo", TwoStep),
    ),
    _chain(
        "medic++",
        "a chain of steps, each of several tasks by domain and class, with confusable classes apart",
        "grid and strategy: 3 × 3 tasks in three steps, adaptive class splits",
        "Wang et al. 2025",
        grid=GridSpec(3, 3, sampling="adaptive"),
        strategy=Part("medic++", MultiStep),
        paper="MEDIC++",
    ),
    _chain(
        "arith",
        "aim at the mean of the points that the chain visits",
        "strategy: step gradients weighted in arithmetic progression",
        "Wang et al. 2025",
        strategy=Part("arith", MultiStep, {"weights": "arithmetic"}),
    ),
    _diagonal(
        "l2ot",
        "classes whose features are far apart",
        "objective: MEDIC with a penalty on the transport between classes",
        "Li et al. 2025",
        preset={**OVA, "penalty": "transport"},
        strategy=Part("l2ot", TwoStep, {"second_order": True}),
        experimental=True,
    ),
    Method(
        "openmax",
        "logits far from those of their class in training lose to an unknown class",
        "score: plain training, then an extreme-value model per class",
        "Bendale and Boult 2016",
        preset={"score": "openmax"},
        paper="OpenMax",
    ),
    _domains_in_one_step(
        "groupdro",
        "domains with a larger loss weigh more",
        "objective: exponential weights on the domains' risks",
        "Sagawa et al. 2020",
        preset={"penalty": "groupdro"},
        forward="task",
        paper="GroupDRO",
    ),
    _domains_in_one_step(
        "vrex",
        "risks that are equal in all domains",
        "objective: penalty on the variance of the domains' risks",
        "Krueger et al. 2021",
        preset={"penalty": "vrex"},
        paper="V-REx",
    ),
    _domains_in_one_step(
        "coral",
        "features with the same mean and covariance in all domains",
        "objective: penalty on differences of feature moments",
        "Sun and Saenko 2016",
        preset={"penalty": "coral"},
        forward="task",
        paper="CORAL",
    ),
    Method(
        "rsc",
        "learn without the features that matter most",
        "objective: the most supporting features of some samples are muted",
        "Huang et al. 2020",
        change=Part("rsc", Rsc),
        paper="RSC",
    ),
    _domains_in_one_step(
        "fishr",
        "gradients of the classifier that vary alike in all domains",
        "objective: penalty on differences of gradient variances",
        "Rame et al. 2022",
        preset={"penalty": "fishr"},
        paper="Fishr",
    ),
    _domains_in_one_step(
        "hgp",
        "the same gradient, and curvature along it, in all domains",
        "objective: penalty on differences of head gradients and Hessian-gradient products",
        "Hemati et al. 2023",
        preset={"penalty": "hgp"},
        forward="task",
        min_log2_batch=4,
        paper="HGP",
    ),
    _domains_in_one_step(
        "hutchinson",
        "the same gradient, and curvature per weight, in all domains",
        "objective: penalty on differences of head gradients and Hessian diagonals",
        "Hemati et al. 2023",
        preset={"penalty": "hutchinson"},
        forward="task",
        min_log2_batch=4,
        paper="Hutchinson",
    ),
    Method(
        "miro",
        "stay near the features of the pretrained network",
        "objective: penalty on the distance of stage maps to those before training; batch norm is frozen",
        "Cha et al. 2022",
        preset={"penalty": "miro"},
        paper="MIRO",
    ),
    _step_per_domain(
        "andmask",
        "move where the gradients of all domains agree in sign",
        "strategy: coordinates without agreement are masked",
        "Parascandolo et al. 2021",
        strategy=Part("andmask", AndMask),
        paper="AND-mask",
    ),
    _step_per_domain(
        "sandmask",
        "move where the gradients of all domains agree, by how much",
        "strategy: a smooth mask from agreement and spread",
        "Shahtalebi et al. 2021",
        strategy=Part("sandmask", SandMask),
        paper="SAND-mask",
    ),
    Method(
        "mixstyle",
        "images learn in each other's styles",
        "layer: channel statistics are mixed between images behind the stages of the backbone",
        "Zhou et al. 2021",
        preset={"layer": "mixstyle"},
        paper="MixStyle",
    ),
    Method(
        "aloft-e",
        "noise on the low frequencies of the features",
        "layer: amplitudes inside global filters are perturbed, element by element",
        "Guo et al. 2023",
        preset={"layer": "aloft-e"},
        backbone="gfnet_h_ti",
        paper="ALOFT",
    ),
    Method(
        "aloft-s",
        "noise on the statistics of low frequencies of the features",
        "layer: amplitudes inside global filters are perturbed, by mean and deviation",
        "Guo et al. 2023",
        preset={"layer": "aloft-s"},
        backbone="gfnet_h_ti",
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in (*_OF_PARTS, *SYSTEMS)}
METHOD_GROUP = Group("medic.methods", "method", Method, METHODS)


def find_method(name: str) -> Method:
    """Return a method by name, from an installed package if it is not one of ours."""
    return METHOD_GROUP.find(name)


def find_needs(method: Method) -> tuple[str, ...]:
    """Return what a method needs beyond logits, by the names in `medic.objectives.needs`, in their order."""
    kind, preset = OBJECTIVES[method.preset.get("objective", "ce")], method.preset
    declared: list[Any] = [kind.kind, *(loss.kind for loss in kind.losses)]
    declared += [] if "penalty" not in preset else [PENALTIES[preset["penalty"]]]
    declared += [part.kind for part in (method.change, method.callback, LAYERS.get(preset.get("layer", ""))) if part]
    declared += [AVERAGES[preset["averaging"]].kind] if "averaging" in preset else []
    needs = {check_choice("need", need, NEEDS) for part in declared for need in getattr(part, "needs", ())}
    if "score" in preset and SCORES[preset["score"]].fitter is not None:
        needs |= {"train_set"}
    return tuple(need for need in NEEDS if need in needs)


def list_methods() -> list[dict[str, Any]]:
    """Return all methods as plain values: name, idea, what each differs in and needs, source, tasks and steps."""
    return [describe_method(method) for method in METHODS.values()]


def describe_method(method: Method) -> dict[str, Any]:
    """Return a method as plain values."""
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
