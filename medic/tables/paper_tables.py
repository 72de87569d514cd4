"""The paper's tables and figures by name, with the authors' settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from medic.errors import check_choice
from medic.methods import METHODS
from medic.metrics import METRICS, Metric
from medic.tables.reproduction import Line, Reproduction, Settings

OURS = {method.paper: name for name, method in METHODS.items() if method.paper is not None}
"""Our names of methods, by the paper's names."""
AS_RUN: Mapping[str, Settings] = {"MEDIC++": {"sampling": "probe"}}
"""Settings of the authors that differ from our defaults, by method."""
AS_READ: Mapping[str, Mapping[str, str]] = {name: {"hscore/oracle-10": "hscore"} for name in ("OpenMax", "OneRing")}
"""Systems that reject by themselves: their H-score is of their own decision, not at the best of ten thresholds."""


def line(paper: str, variant: str = "", keys: Mapping[str, str] | None = None, **settings: Any) -> Line:
    """Return a row of one of the paper's methods."""
    own = {"method": OURS[paper], **AS_RUN.get(paper, {}), **settings}
    return Line(paper, own, variant, keys or AS_READ.get(paper, {}))


class Stage(NamedTuple):
    """The benchmark of a table: a dataset with a backbone, the titles of its domains, and the name of its split."""

    dataset: str
    backbone: str
    domains: Mapping[str, str]
    split: str | None = None
    classes: int = 0
    iterations: int = 6000
    """The default of the authors' code where the paper gives no number."""
    groups: int | None = None
    """Number of class groups that the authors split; None if they split single classes."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all runs share."""
        groups = {} if self.groups is None else {"class_groups": self.groups}
        return {"dataset": self.dataset, "backbone": self.backbone, "iterations": self.iterations, **groups}

    @property
    def targets(self) -> dict[str, list[Settings]]:
        """The columns of a table with every domain as the target."""
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
"""The benchmark of `--quick`, on which every table takes minutes."""


def _metrics(*keys: str) -> tuple[Metric, ...]:
    """Return metrics under the titles that the paper gives them."""
    return tuple(replace(METRICS[key], title=METRICS[key].paper or METRICS[key].title) for key in keys)


OPEN = _metrics("acc", "hscore/oracle-10", "oscr")
"""The paper's H-score is at the best of ten thresholds on the target."""
ABLATION = _metrics("acc", "oscr")
_BOTH: Mapping[str, Any] = {"objective": "ce+ova"}
"""The paper's ablations train all systems with the one-vs-all head."""


def _open_set(name: str, title: str, methods: str) -> Callable[[Stage], Reproduction]:
    """Return a table of methods with their settings in the paper's main tables."""

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
    title = "separate or shared parameters of the close-set and one-vs-all heads"
    return Reproduction("parameter-sharing", title, stage.settings, lines, stage.targets, ABLATION)


def _classifiers(stage: Stage) -> Reproduction:
    lines = []
    for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++"):
        lines += [
            line(method, "train ce, infer cls", {"oscr": "oscr_c"}, objective="ce", score="cls"),
            line(method, "train ce+ova, infer cls", {"oscr": "oscr_c"}, **_BOTH),
            line(method, "train ce+ova, infer bcls", {"oscr": "oscr_b"}, **_BOTH),
        ]
    title = "the heads in training and in inference"
    return Reproduction("classifiers", title, stage.settings, lines, stage.targets, _metrics("oscr"))


def _partial_classes(stage: Stage) -> Reproduction:
    settings = {**stage.settings, "split": f"{stage.split}-partial"}
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    title = "source domains without some of the known classes"
    return Reproduction("partial-classes", title, settings, lines, stage.targets, ABLATION)


def _single_domain(stage: Stage) -> Reproduction:
    columns = {title: [{"sources": [domain]}] for title, domain in stage.domains.items()}
    lines = [line("ERM", **_BOTH), *(line(method) for method in ("CrossMatch", "MEDIC", "MEDIC++"))]
    note = "columns are source domains; a cell is the mean over all other domains"
    return Reproduction("single-domain", "one source domain", stage.settings, lines, columns, ABLATION, note=note)


def _confidence(stage: Stage) -> Reproduction:
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    *_, last = stage.targets.items()
    metrics = _metrics("conf_p", "conf_n")
    title = "confidence of the one-vs-all heads for their own class and for other classes"
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
    title = "learning paradigms, task splits by domain and class, and class samplers"
    return Reproduction("paradigms", title, stage.settings, lines, stage.targets, ABLATION)


AXES: Mapping[tuple[str, str], Settings] = {
    ("no", "no"): {"domain_splits": 0, "class_splits": 0, "repeat": 3},
    ("yes", "no"): {"domain_splits": 3, "class_splits": 1},
    ("no", "yes"): {"domain_splits": 1, "class_splits": 3},
    ("yes", "yes"): {"domain_splits": 3, "class_splits": 3},
}
"""Task splits by domains (dw) and by classes (cw)."""


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
    title = "OSCR against the number of known classes"
    return Reproduction("officehome-openness", title, stage.settings, lines, columns, _metrics("oscr"), figure=True)


def _time_memory(stage: Stage) -> Reproduction:
    lines = [line("MEDIC++", f"{steps} steps", steps=steps) for steps in range(1, 10)]
    iterations = min(stage.iterations, 5000)
    settings = {**stage.settings, "batch_size": 8, "iterations": iterations, "evaluate_every": iterations}
    *_, last = stage.targets.items()
    metrics = (replace(METRICS["step_time"], title="ms per iteration", scale=1000.0), METRICS["mem_gb"])
    title = "time and memory of an iteration of MEDIC++ against the number of steps"
    return Reproduction("time-memory", title, settings, lines, dict([last]), metrics, figure=True)


def _separation(stage: Stage) -> Reproduction:
    lines = [line(method, **_BOTH) for method in ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")]
    *_, last = stage.targets.items()
    settings = {**stage.settings, "save_features": True}
    metrics = _metrics("auroc", "fpr95", "oscr")
    title = "separation of known and unknown classes in the target; runs keep features for figures"
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
"""The datasets of DomainBed's table, with their targets and shared settings."""
_LIKE_DOMAINBED: Mapping[str, Settings] = {
    **{title: {"lr": 6e-6, "batch_size": 12, "augment": "domainbed"} for title in _DOMAINBED},
    "CMNIST": {"lr": 2e-4, "batch_size": 32},
    "DomainNet": {"lr": 6e-6, "batch_size": 18, "augment": "domainbed", "iterations": 15000},
}
"""Settings of MEDIC++ with DomainBed's defaults. Adam's learning rate is ε·α: the number of tasks cancels."""
_OWN: Mapping[str, Settings] = {
    "CMNIST": {"weight_decay": 5e-4 / 4},  # this benchmark has four tasks
    "TerraIncognita": {"iterations": 10000},
    "DomainNet": {"iterations": 30000},
}
"""The authors' settings for single datasets. Learning rates are the benchmarks'."""


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
    note = "all numbers except those of MEDIC++ are published ones; a cell is the mean over the targets of a dataset"
    metrics = _metrics("domainbed")
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
"""The paper's twelve tables, and its figures that show results of runs."""


def reproduction(name: str, quick: bool = False) -> Reproduction:
    """Return a table or figure of the paper by name; with `quick`, on the built-in benchmark."""
    make, stage = _TABLES[check_choice("table of the paper", name, NAMES)]
    if not quick:
        return make(stage)
    made = make(BUILT_IN)
    # ALOFT requires GFNet. Rows that are only published have no runs.
    lines = [one for one in made.lines if one.settings and not str(one.settings["method"]).startswith("aloft")]
    return replace(
        made,
        title=f"{name} in small: its rows and metrics on the built-in digits, with a ConvNet",
        lines=lines,
        metrics=make(stage).metrics,
        settings={**made.settings, "images": 48, "evaluate_every": BUILT_IN.iterations},
        note="" if len(lines) < len(made.lines) else made.note,
    )
