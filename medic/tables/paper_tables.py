"""The paper's tables and figures by name, with the authors' settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from medic.data import benchmark
from medic.errors import check_choice
from medic.methods import METHODS
from medic.metrics import METRICS, Metric
from medic.tables.reproduction import Columns, Line, Reproduction, Settings

OURS = {method.paper: name for name, method in METHODS.items() if method.paper is not None}
"""Our names of methods, by the paper's names."""
AS_RUN: Mapping[str, Settings] = {
    "MEDIC++": {"sampling": "probe"},
    "SWAD": {"averaging": "swad", "hparams": {"segments": 60}},  # of 100 iterations, as SWAD's authors
}
"""Settings of the authors that differ from our defaults, by method."""
AS_READ: Mapping[str, Mapping[str, str]] = {name: {"hscore/oracle-10": "hscore"} for name in ("OpenMax", "OneRing")}
"""Systems that reject by themselves: their H-score is of their own decision, not at the best of ten thresholds."""


def line(paper: str, variant: str = "", keys: Mapping[str, str] | None = None, **settings: Any) -> Line:
    """Return a row of one of the paper's methods."""
    own = {"method": OURS[paper], "averaging": "none", **AS_RUN.get(paper, {}), **settings}
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

    def settings(self) -> dict[str, Any]:
        """Return the settings that all runs share."""
        groups = {} if self.groups is None else {"class_groups": self.groups}
        return {"dataset": self.dataset, "backbone": self.backbone, "iterations": self.iterations, **groups}

    def targets(self) -> Columns:
        """Return columns with every domain as the target."""
        return {title: [{"target": domain}] for title, domain in self.domains.items()}

    def last_target(self) -> Columns:
        """Return a single column with the last domain as the target."""
        return dict([list(self.targets().items())[-1]])

    def sources(self) -> Columns:
        """Return columns with every domain as the only source."""
        return {title: [{"sources": [domain]}] for title, domain in self.domains.items()}


PACS_DOMAINS = {"Photo": "photo", "Art": "art_painting", "Cartoon": "cartoon", "Sketch": "sketch"}
PACS = Stage("pacs", "resnet50", PACS_DOMAINS, "pacs-6-1", 7)
DIGITS_DG = Stage("digits-dg", "convnet", {"MNIST": "mnist", "MNIST-M": "mnist_m", "SVHN": "svhn", "SYN": "syn"})
_SHORTENED = dict(
    zip(("clip", "info", "paint", "quick", "real", "sketch"), benchmark("domainnet").domains, strict=True)
)
DOMAINNET = Stage("domainnet", "resnet50", _SHORTENED, iterations=30000, groups=10)
OFFICE_HOME = Stage("office-home", "resnet50", {"Art": "Art"}, "officehome", 65, groups=10)
BUILT_IN = Stage("digits", "convnet", {name: name for name in benchmark("digits").domains}, "digits-6-4", 10, 100)
"""The benchmark of `--quick`, on which every table takes minutes."""


def _metrics(*keys: str) -> tuple[Metric, ...]:
    """Return metrics under the titles that the paper gives them."""
    return tuple(replace(METRICS[key], title=METRICS[key].paper or METRICS[key].title) for key in keys)


OPEN = _metrics("acc", "hscore/oracle-10", "oscr")
"""The paper's H-score is at the best of ten thresholds on the target."""
ABLATION = _metrics("acc", "oscr")
_BOTH: Mapping[str, Any] = {"objective": "ce+ova"}
"""The paper's ablations train all systems with the one-vs-all head."""
_ABLATED = ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")
"""The methods of most ablations."""
_WITH_OVA = [line(method, **_BOTH) for method in _ABLATED]
AXES: Mapping[tuple[str, str], Settings] = {
    ("no", "no"): {"domain_splits": 0, "class_splits": 0, "repeat": 3},
    ("yes", "no"): {"domain_splits": 3, "class_splits": 1},
    ("no", "yes"): {"domain_splits": 1, "class_splits": 3},
    ("yes", "yes"): {"domain_splits": 3, "class_splits": 3},
}
"""Task splits by domains (dw) and by classes (cw)."""


class Plan(NamedTuple):
    """A table or figure of the paper, which can be made on any stage: see `Reproduction`."""

    stage: Stage
    title: str
    lines: Sequence[Line]
    metrics: tuple[Metric, ...] = ABLATION
    columns: Callable[[Stage], Columns] = Stage.targets
    settings: Callable[[Stage], Settings] = Stage.settings
    figure: bool = False
    note: str = ""
    rule: str = "validation"

    def on(self, stage: Stage, name: str) -> Reproduction:
        """Return the table with the runs of a stage."""
        return Reproduction(
            name, self.title, self.settings(stage), self.lines, self.columns(stage), self.metrics, self.figure,
            self.note, self.rule,
        )  # fmt: skip


def _of_methods(names: str) -> list[Line]:
    """Return rows of methods with their settings in the paper's main tables."""
    return [line(name) for name in names.split()]


def _classifiers() -> list[Line]:
    lines = []
    for method in _ABLATED:
        lines += [
            line(method, "train ce, infer cls", {"oscr": "oscr_c"}, objective="ce", score="cls"),
            line(method, "train ce+ova, infer cls", {"oscr": "oscr_c"}, **_BOTH),
            line(method, "train ce+ova, infer bcls", {"oscr": "oscr_b"}, **_BOTH),
        ]
    return lines


def _paradigms() -> list[Line]:
    lines = [
        line("ERM", "dw=no cw=no (i)", **_BOTH),
        line("ERM", "dw=no cw=no (ii)", sampling="balanced", **_BOTH),
        line("ERM", "dw=no cw=no (iii)", penalty="balance", **_BOTH),
    ]
    for method in ("MAML", "Reptile"):
        lines += [line(method, f"dw={dw} cw={cw} (i)", **{**_BOTH, **AXES[dw, cw]}) for dw, cw in AXES]
    for option, sampling in {"iv": "informative", "v": "confusable", "vi": "probe"}.items():
        lines.append(line("Reptile", f"dw=yes cw=yes ({option})", sampling=sampling, **_BOTH, **AXES["yes", "yes"]))
    return lines


def _openness_columns(stage: Stage) -> Columns:
    stem, counts = str(stage.split).split("-")[0], range(10, 61, 10) if stage.classes > 10 else (3, 5, 7)
    targets = ["street"] if stage is BUILT_IN else benchmark(stage.dataset).domains
    return {
        f"{count} known": [{"split": f"{stem}-{count}-{stage.classes - count}", "target": target} for target in targets]
        for count in counts
    }


def _time_settings(stage: Stage) -> Settings:
    iterations = min(stage.iterations, 5000)
    return {**stage.settings(), "batch_size": 8, "iterations": iterations, "evaluate_every": iterations}


_DOMAINBED: Mapping[str, tuple[str, Settings]] = {
    "CMNIST": ("cmnist", {}),
    "PACS": ("pacs", {"split": "pacs-7-0"}),
    "VLCS": ("vlcs", {}),
    "OfficeHome": ("office-home", {"split": "officehome-65-0", "class_groups": 10}),
    "TerraIncognita": ("terra-incognita", {"class_groups": 5}),
    "DomainNet": ("domainnet", {"split": "domainnet-345-0", "class_groups": 20}),
}
"""The datasets of DomainBed's table, with their shared settings; every domain is a target."""
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


def _domainbed_columns(stage: Stage) -> Columns:
    if stage is BUILT_IN:
        shared = {"dataset": stage.dataset, "split": "digits-10-0"}
        return {stage.dataset: [{"target": target, **shared} for target in stage.domains.values()]}
    return {
        title: [{"dataset": dataset, "target": target, **settings} for target in benchmark(dataset).domains]
        for title, (dataset, settings) in _DOMAINBED.items()
    }


def _domainbed_lines() -> list[Line]:
    published = "ERM RSC GroupDRO MLDG V-REx CORAL AND-mask SAND-mask Fish Fishr HGP Hutchinson".split()
    adam: Mapping[str, Any] = {"objective": "ce", "optimizer": "adam", "schedule": "constant"}
    return [
        *(Line(method, None) for method in published),
        replace(line("MEDIC++", "default hyper-parameters, no binary head", **adam), places=_LIKE_DOMAINBED),
        replace(line("MEDIC++", "own hyper-parameters, with binary head", batch_size=16), places=_OWN),
    ]


_STEPS = ("9", "5 4", "3 3 3", "3 2 2 2", "2 2 2 2 1", "2 2 1 1 1 1 1", "1 1 1 1 1 1 1 1 1")
PLANS = {
    "domainbed": Plan(
        PACS._replace(iterations=5000),
        "DomainBed, all classes known",
        _domainbed_lines(),
        _metrics("domainbed"),
        _domainbed_columns,
        lambda stage: {"validation": "domainbed", "iterations": stage.iterations},
        note="all numbers except those of MEDIC++ are published ones; a cell is the mean over the targets of a dataset",
        rule="domainbed",
    ),
    "pacs-resnet50": Plan(
        PACS,
        "PACS, ResNet-50, 6 known and 1 unknown class",
        _of_methods("OpenMax ARPL MLDG ERM Fish CIRL MixStyle CrossMatch SWAD MVDG MEDIC MEDIC++"),
        OPEN,
    ),
    "digitsdg-convnet": Plan(
        DIGITS_DG,
        "Digits-DG, ConvNet, 6 known and 4 unknown classes",
        _of_methods("OpenMax MixStyle ERM ARPL MLDG SWAD Fish CIRL MEDIC MEDIC++"),
        OPEN,
    ),
    "pacs-gfnet": Plan(
        PACS._replace(backbone="gfnet_h_ti"),
        "PACS, GFNet-H-Ti, 6 known and 1 unknown class",
        _of_methods("OneRing CrossMatch ALOFT Fish ERM MLDG ARPL SWAD MEDIC MEDIC++"),
        OPEN,
    ),
    "domainnet-resnet50": Plan(
        DOMAINNET,
        "DomainNet, ResNet-50, 100 known and 245 unknown classes",
        _of_methods("MIRO MixStyle ERM ARPL CrossMatch MLDG Fish SWAD MEDIC MEDIC++"),
    ),
    "tasks-per-step": Plan(
        PACS,
        "MEDIC++ with nine tasks in one to nine steps",
        [line("MEDIC++", steps, steps=[int(size) for size in steps.split()]) for steps in _STEPS],
    ),
    "parameter-sharing": Plan(
        PACS,
        "separate or shared parameters of the close-set and one-vs-all heads",
        [line(method, head, head=head) for method in ("MEDIC", "MEDIC++") for head in ("separate", "shared")],
    ),
    "classifiers": Plan(PACS, "the heads in training and in inference", _classifiers(), _metrics("oscr")),
    "partial-classes": Plan(
        PACS,
        "source domains without some of the known classes",
        _WITH_OVA,
        settings=lambda stage: {**stage.settings(), "split": f"{stage.split}-partial"},
    ),
    "single-domain": Plan(
        PACS,
        "one source domain",
        [line("ERM", **_BOTH), *_of_methods("CrossMatch MEDIC MEDIC++")],
        columns=Stage.sources,
        note="columns are source domains; a cell is the mean over all other domains",
    ),
    "paradigms": Plan(PACS, "learning paradigms, task splits by domain and class, and class samplers", _paradigms()),
    "confidence-sketch": Plan(
        PACS,
        "confidence of the one-vs-all heads for their own class and for other classes",
        _WITH_OVA,
        _metrics("conf_p", "conf_n"),
        Stage.last_target,
    ),
    "officehome-openness": Plan(
        OFFICE_HOME,
        "OSCR against the number of known classes",
        [
            *_WITH_OVA,
            *(line(method, "cw", **_BOTH, **AXES["no", "yes"]) for method in ("MLDG", "Fish")),
        ],
        _metrics("oscr"),
        _openness_columns,
        figure=True,
    ),
    "time-memory": Plan(
        PACS,
        "time and memory of an iteration of MEDIC++ against the number of steps",
        [line("MEDIC++", f"{steps} steps", steps=steps) for steps in range(1, 10)],
        (replace(METRICS["step_time"], title="ms per iteration", scale=1000.0), METRICS["mem_gb"]),
        Stage.last_target,
        _time_settings,
        figure=True,
    ),
    "separation": Plan(
        PACS,
        "separation of known and unknown classes in the target; runs keep features for figures",
        _WITH_OVA,
        _metrics("auroc", "fpr95", "oscr"),
        Stage.last_target,
        lambda stage: {**stage.settings(), "save_features": True},
        figure=True,
    ),
}
"""The paper's twelve tables, and its figures that show results of runs."""

NAMES = tuple(PLANS)


def reproduction(name: str, quick: bool = False) -> Reproduction:
    """Return a table or figure of the paper by name; with `quick`, on the built-in benchmark."""
    plan = PLANS[check_choice("table of the paper", name, NAMES)]
    if not quick:
        return plan.on(plan.stage, name)
    made = plan.on(BUILT_IN, name)
    # ALOFT requires GFNet. Rows that are only published have no runs.
    lines = [one for one in made.lines if one.settings and not str(one.settings["method"]).startswith("aloft")]
    return replace(
        made,
        title=f"{name} in small: its rows and metrics on the built-in digits, with a ConvNet",
        lines=lines,
        settings={**made.settings, "images": 48, "evaluate_every": BUILT_IN.iterations},
        note="" if len(lines) < len(made.lines) else made.note,
    )
