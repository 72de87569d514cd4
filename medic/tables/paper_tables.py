"""The paper's tables and figures by name, with the authors' settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from medic.errors import check_choice
from medic.methods import METHODS
from medic.tables.cells import Metric
from medic.tables.reproduction import Line, Reproduction, Settings

OURS = {method.paper: name for name, method in METHODS.items() if method.paper is not None}
"""The paper's names of methods, and ours."""
AS_RUN: Mapping[str, Settings] = {"MEDIC++": {"sampling": "probe"}}
"""What the authors ran where our default is another."""
AS_READ: Mapping[str, Mapping[str, str]] = {name: {"H-score": "hscore"} for name in ("OpenMax", "OneRing")}
"""Where metrics of systems that say unknown by themselves are read: their own decision, not the best of thresholds."""


def line(paper: str, variant: str = "", keys: Mapping[str, str] | None = None, **settings: Any) -> Line:
    """A row of one of the paper's methods."""
    own = {"method": OURS[paper], **AS_RUN.get(paper, {}), **settings}
    return Line(paper, own, variant, keys or AS_READ.get(paper, {}))


class Stage(NamedTuple):
    """What a table is made on: a dataset with a backbone, the titles of its domains, and how its splits are called."""

    dataset: str
    backbone: str
    domains: Mapping[str, str]
    split: str | None = None
    classes: int = 0
    iterations: int = 6000
    """Where the paper does not say, the default of the authors' code."""
    groups: int | None = None
    """How many groups of classes the authors split, if not single classes."""

    @property
    def settings(self) -> dict[str, Any]:
        """What every run on it shares."""
        groups = {} if self.groups is None else {"class_groups": self.groups}
        return {"dataset": self.dataset, "backbone": self.backbone, "iterations": self.iterations, **groups}

    @property
    def targets(self) -> dict[str, list[Settings]]:
        """A column for every domain, as the target."""
        return {title: [{"target": domain}] for title, domain in self.domains.items()}


PACS_DOMAINS = {"Photo": "photo", "Art": "art_painting", "Cartoon": "cartoon", "Sketch": "sketch"}
PACS = Stage("pacs", "resnet50", PACS_DOMAINS, "pacs-6-1", 7)
DIGITS_DG = Stage("digits-dg", "convnet", {"MNIST": "mnist", "MNIST-M": "mnist_m", "SVHN": "svhn", "SYN": "syn"})
DOMAINNET_DOMAINS = {
    "clip": "clipart", "info": "infograph", "paint": "painting",
    "quick": "quickdraw", "real": "real", "sketch": "sketch",
}  # fmt: skip
DOMAINNET = Stage("domainnet", "resnet50", DOMAINNET_DOMAINS, iterations=30000, groups=10)
OFFICE_HOME = Stage("office-home", "resnet50", {"Art": "Art"}, "officehome", 65, groups=10)
BUILT_IN = Stage("digits", "convnet", {name: name for name in ("handwritten", "printed", "blended", "street")},
                 "digits-6-4", 10, 100)  # fmt: skip
"""Where `--quick` makes the same tables, in minutes."""

OPEN = {"Acc": Metric("acc"), "H-score": Metric("hscore/oracle-10"), "OSCR": Metric("oscr")}
"""The paper's H-score is at the best of ten thresholds on the target."""
ABLATION = {"Acc": Metric("acc"), "OSCR": Metric("oscr")}
_BOTH: Mapping[str, Any] = {"objective": "ce+ova"}
"""In its ablations the paper trains all systems with the one-vs-all head."""


def _open_set(name: str, title: str, methods: str) -> Callable[[Stage], Reproduction]:
    """A table of methods, each as the paper's main tables have it."""

    def made(stage: Stage) -> Reproduction:
        metrics = OPEN if stage.dataset != "domainnet" else ABLATION
        lines = [line(method) for method in methods.split()]
        return Reproduction(name, title, stage.settings, lines, stage.targets, metrics)

    return made


def _tasks_per_step(stage: Stage) -> Reproduction:
    variants = ("9", "5 4", "3 3 3", "3 2 2 2", "2 2 2 2 1", "2 2 1 1 1 1 1", "1 1 1 1 1 1 1 1 1")
    lines = [line("MEDIC++", variant, steps=[int(size) for size in variant.split()]) for variant in variants]
    title = "MEDIC++ with nine tasks in one to nine steps"
    return Reproduction("tasks-per-step", title, stage.settings, lines, stage.targets, ABLATION)


def _parameter_sharing(stage: Stage) -> Reproduction:
    lines = [line(method, head, head=head) for method in ("MEDIC", "MEDIC++") for head in ("separate", "shared")]
    title = "close-set and one-vs-all head apart, or as one"
    return Reproduction("parameter-sharing", title, stage.settings, lines, stage.targets, ABLATION)


def _classifiers(stage: Stage) -> Reproduction:
    lines = []
    for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++"):
        lines += [
            line(method, "train ce, infer cls", {"OSCR": "oscr_c"}, objective="ce", score="cls"),
            line(method, "train ce+ova, infer cls", {"OSCR": "oscr_c"}, **_BOTH),
            line(method, "train ce+ova, infer bcls", {"OSCR": "oscr_b"}, **_BOTH),
        ]
    title = "which head is trained, and which one ranks"
    return Reproduction("classifiers", title, stage.settings, lines, stage.targets, {"OSCR": Metric("oscr")})


def _partial_classes(stage: Stage) -> Reproduction:
    settings = {**stage.settings, "split": f"{stage.split}-partial"}
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    title = "every source domain lacks some of the known classes"
    return Reproduction("partial-classes", title, settings, lines, stage.targets, ABLATION)


def _single_domain(stage: Stage) -> Reproduction:
    columns = {title: [{"sources": [domain]}] for title, domain in stage.domains.items()}
    lines = [line("ERM", **_BOTH), *(line(method) for method in ("CrossMatch", "MEDIC", "MEDIC++"))]
    note = "columns are the source domain; a cell is the mean over all other domains"
    return Reproduction("single-domain", "one source domain", stage.settings, lines, columns, ABLATION, note=note)


def _confidence(stage: Stage) -> Reproduction:
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    *_, last = stage.targets.items()
    metrics = {"conf_p": Metric("conf_p"), "conf_n": Metric("conf_n")}
    title = "how sure the one-vs-all heads are of their class, and of the others"
    return Reproduction("confidence-sketch", title, stage.settings, lines, dict([last]), metrics)


def _paradigms(stage: Stage) -> Reproduction:
    lines = [
        line("ERM", "dw=no cw=no (i)", **_BOTH),
        line("ERM", "dw=no cw=no (ii)", sampling="balanced", **_BOTH),
        line("ERM", "dw=no cw=no (iii)", penalty="balance", **_BOTH),
    ]
    samplings = {"iv": "informative", "v": "confusable", "vi": "probe"}
    for method in ("MAML", "Reptile"):
        lines += [line(method, f"dw={dw} cw={cw} (i)", **{**_BOTH, **AXES[dw, cw]}) for dw, cw in AXES]
    for option, sampling in samplings.items():
        lines.append(line("Reptile", f"dw=yes cw=yes ({option})", sampling=sampling, **_BOTH, **AXES["yes", "yes"]))
    title = "learning paradigms, what tasks are split by, and how classes are dealt over them"
    return Reproduction("paradigms", title, stage.settings, lines, stage.targets, ABLATION)


AXES: Mapping[tuple[str, str], Settings] = {
    ("no", "no"): {"domain_splits": 0, "class_splits": 0, "repeat": 3},
    ("yes", "no"): {"domain_splits": 3, "class_splits": 1},
    ("no", "yes"): {"domain_splits": 1, "class_splits": 3},
    ("yes", "yes"): {"domain_splits": 3, "class_splits": 3},
}
"""How tasks are split by domains (dw) and by classes (cw)."""


def _openness(stage: Stage) -> Reproduction:
    stem, counts = str(stage.split).split("-")[0], range(10, 61, 10) if stage.classes > 10 else (3, 5, 7)
    targets = ["Art", "Clipart", "Product", "Real World"] if stage.dataset == "office-home" else ["street"]
    columns = {
        f"{count} known": [{"split": f"{stem}-{count}-{stage.classes - count}", "target": target} for target in targets]
        for count in counts
    }
    cw = AXES["no", "yes"]
    lines = [
        *(line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")),
        *(line(method, "cw", **_BOTH, **cw) for method in ("MLDG", "Fish")),
    ]
    title = "OSCR as the share of unknown classes changes"
    return Reproduction(
        "officehome-openness", title, stage.settings, lines, columns, {"OSCR": Metric("oscr")}, figure=True
    )


def _time_memory(stage: Stage) -> Reproduction:
    lines = [line("MEDIC++", f"{steps} steps", steps=steps) for steps in range(1, 10)]
    iterations = min(stage.iterations, 5000)
    settings = {**stage.settings, "batch_size": 8, "iterations": iterations, "evaluate_every": iterations}
    *_, last = stage.targets.items()
    metrics = {"ms an iteration": Metric("step_time", 1000.0), "peak GiB": Metric("mem_gb", 1.0)}
    title = "what an iteration of MEDIC++ costs against the number of steps"
    return Reproduction("time-memory", title, settings, lines, dict([last]), metrics, figure=True)


def _separation(stage: Stage) -> Reproduction:
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    *_, last = stage.targets.items()
    settings = {**stage.settings, "save_features": True}
    metrics = {"AUROC": Metric("auroc"), "FPR95": Metric("fpr95"), "OSCR": Metric("oscr")}
    title = "how known and unknown classes are apart in the target; features are kept for pictures"
    return Reproduction("separation", title, settings, lines, dict([last]), metrics, figure=True)


_DOMAINBED: Mapping[str, tuple[str, Sequence[str], Settings]] = {
    "CMNIST": ("cmnist", ("+90%", "+80%", "-90%"), {}),
    "PACS": ("pacs", tuple(sorted(PACS_DOMAINS.values())), {"split": "pacs-7-0"}),
    "VLCS": ("vlcs", ("Caltech101", "LabelMe", "SUN09", "VOC2007"), {}),
    "OfficeHome": (
        "office-home",
        ("Art", "Clipart", "Product", "Real World"),
        {"split": "officehome-65-0", "class_groups": 10},
    ),
    "TerraIncognita": (
        "terra-incognita",
        ("location_100", "location_38", "location_43", "location_46"),
        {"class_groups": 5},
    ),
    "DomainNet": (
        "domainnet",
        tuple(DOMAINNET_DOMAINS.values()),
        {"split": "domainnet-345-0", "class_groups": 20},
    ),
}
"""The datasets of DomainBed's table, their targets, and what all runs on each share."""
_LIKE_DOMAINBED: Mapping[str, Settings] = {
    **{title: {"lr": 6e-6, "batch_size": 12, "augment": "domainbed"} for title in _DOMAINBED},
    "CMNIST": {"lr": 2e-4, "batch_size": 32},
    "DomainNet": {"lr": 6e-6, "batch_size": 18, "augment": "domainbed", "iterations": 15000},
}
"""What MEDIC++ has beside DomainBed's defaults. With Adam the rate is ε·α: the number of tasks cancels."""
_OWN: Mapping[str, Settings] = {
    "CMNIST": {"weight_decay": 5e-4 / 4},  # it has four tasks, and the benchmark's rate is for as many
    "TerraIncognita": {"iterations": 10000},
    "DomainNet": {"iterations": 30000},
}
"""Where the authors' own settings are not what all other datasets have; the rates are the benchmarks'."""


def _domainbed(stage: Stage) -> Reproduction:
    published = "ERM RSC GroupDRO MLDG V-REx CORAL AND-mask SAND-mask Fish Fishr HGP Hutchinson".split()
    columns: dict[str, list[Settings]] = {
        title: [{"dataset": dataset, "target": target, **settings} for target in targets]
        for title, (dataset, targets, settings) in _DOMAINBED.items()
    }
    settings: dict[str, Any] = {"validation": "domainbed", "iterations": 5000}
    if stage.dataset == "digits":
        columns = {
            "digits": [
                {"dataset": "digits", "target": target, "split": "digits-10-0"} for target in stage.domains.values()
            ]
        }
        settings["iterations"] = stage.iterations
    adam = line(
        "MEDIC++",
        "default hyper-parameters, no binary head",
        objective="ce",
        optimizer="adam",
        schedule="constant",
    )
    sgd = line("MEDIC++", "own hyper-parameters, with binary head", batch_size=16)
    lines = [
        *(Line(method, None) for method in published),
        replace(adam, places=_LIKE_DOMAINBED),
        replace(sgd, places=_OWN),
    ]
    note = "the numbers of all systems but MEDIC++ are published ones; a cell is the mean over the targets of a dataset"
    metrics = {"Acc": Metric("domainbed")}
    title = "DomainBed, all classes known"
    return Reproduction("domainbed", title, settings, lines, columns, metrics, note=note, rule="domainbed")


_MAIN = "OpenMax ARPL MLDG ERM Fish CIRL MixStyle CrossMatch SWAD MVDG MEDIC MEDIC++"
_TABLES: Mapping[str, tuple[Callable[[Stage], Reproduction], Stage]] = {
    "domainbed": (_domainbed, PACS),
    "pacs-resnet50": (_open_set("pacs-resnet50", "PACS, ResNet-50, 6 known and 1 unknown class", _MAIN), PACS),
    "digitsdg-convnet": (
        _open_set(
            "digitsdg-convnet",
            "Digits-DG, ConvNet, 6 known and 4 unknown classes",
            "OpenMax MixStyle ERM ARPL MLDG SWAD Fish CIRL MEDIC MEDIC++",
        ),
        DIGITS_DG,
    ),
    "pacs-gfnet": (
        _open_set(
            "pacs-gfnet",
            "PACS, GFNet-H-Ti, 6 known and 1 unknown class",
            "OneRing CrossMatch ALOFT Fish ERM MLDG ARPL SWAD MEDIC MEDIC++",
        ),
        PACS._replace(backbone="gfnet_h_ti"),
    ),
    "domainnet-resnet50": (
        _open_set(
            "domainnet-resnet50",
            "DomainNet, ResNet-50, 100 known and 245 unknown classes",
            "MIRO MixStyle ERM ARPL CrossMatch MLDG Fish SWAD MEDIC MEDIC++",
        ),
        DOMAINNET,
    ),
    "tasks-per-step": (_tasks_per_step, PACS),
    "parameter-sharing": (_parameter_sharing, PACS),
    "classifiers": (_classifiers, PACS),
    "partial-classes": (_partial_classes, PACS),
    "single-domain": (_single_domain, PACS),
    "paradigms": (_paradigms, PACS),
    "confidence-sketch": (_confidence, PACS),
    "officehome-openness": (_openness, OFFICE_HOME),
    "time-memory": (_time_memory, PACS),
    "separation": (_separation, PACS),
}

NAMES = tuple(_TABLES)
"""The paper's twelve tables, and the figures that are made of runs."""


def reproduction(name: str, quick: bool = False) -> Reproduction:
    """A table or figure of the paper, by name; quick ones are on the built-in benchmark."""
    make, stage = _TABLES[check_choice("table of the paper", name, NAMES)]
    if not quick:
        return make(stage)
    made = make(BUILT_IN)
    # ALOFT works inside GFNet alone, and what is published only has no runs.
    lines = [one for one in made.lines if one.settings and not str(one.settings["method"]).startswith("aloft")]
    return replace(
        made,
        title=f"{name} in small: its rows and metrics on the built-in digits, with a ConvNet",
        lines=lines,
        metrics=make(stage).metrics,
        settings={**made.settings, "images": 48, "evaluate_every": BUILT_IN.iterations},
        note="" if len(lines) < len(made.lines) else made.note,
    )
