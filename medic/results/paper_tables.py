"""The paper's tables and figures by name: their rows, columns, and settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from medic.data import benchmark
from medic.errors import check_choice
from medic.methods import METHODS
from medic.metrics import METRICS, Metric
from medic.results.reproduction import Columns, Line, Reproduction, Settings

OURS = {method.paper: name for name, method in METHODS.items() if method.paper is not None}
"""Our method names, keyed by the paper's names."""
AS_RUN: Mapping[str, Settings] = {
    "SWAD": {"averaging": "swad", "hparams": {"segments": 60}},  # of 100 iterations each, as used by SWAD's authors
}
"""Additional settings for methods, in all tables."""
AS_READ: Mapping[str, Mapping[str, str]] = {name: {"hscore/oracle-10": "hscore"} for name in ("OpenMax", "OneRing")}
"""Systems with their own rejection rule: their H-score uses that rule instead of the best of ten thresholds."""


def line(paper: str, variant: str = "", keys: Mapping[str, str] | None = None, **settings: Any) -> Line:
    """Return a row for one of the paper's methods."""
    own = {"method": OURS[paper], **AS_RUN.get(paper, {}), **settings}
    return Line(paper, own, variant, keys or AS_READ.get(paper, {}))


class Stage(NamedTuple):
    """Benchmark behind a table: a dataset, a backbone, titles for the domains, and the split name."""

    dataset: str
    backbone: str
    domains: Mapping[str, str]
    split: str | None = None
    classes: int = 0

    def settings(self) -> dict[str, Any]:
        """Return the settings shared by all runs."""
        return {"dataset": self.dataset, "backbone": self.backbone}

    def targets(self) -> Columns:
        """Return one column per domain, with that domain as the target."""
        return {title: [{"target": domain}] for title, domain in self.domains.items()}

    def last_target(self) -> Columns:
        """Return a single column with the last domain as the target."""
        return dict([list(self.targets().items())[-1]])

    def sources(self) -> Columns:
        """Return one column per domain, with that domain as the only source."""
        return {title: [{"sources": [domain]}] for title, domain in self.domains.items()}


PACS_DOMAINS = {"Photo": "photo", "Art": "art_painting", "Cartoon": "cartoon", "Sketch": "sketch"}
PACS = Stage("pacs", "resnet50", PACS_DOMAINS, "pacs-6-1", 7)
DIGITS_DG = Stage("digits-dg", "convnet", {"MNIST": "mnist", "MNIST-M": "mnist_m", "SVHN": "svhn", "SYN": "syn"})
_SHORTENED = dict(
    zip(("clip", "info", "paint", "quick", "real", "sketch"), benchmark("domainnet").domains, strict=True)
)
DOMAINNET = Stage("domainnet", "resnet50", _SHORTENED)
OFFICE_HOME = Stage("office-home", "resnet50", {"Art": "Art"}, "officehome", 65)
BUILT_IN = Stage("digits", "convnet", {name: name for name in benchmark("digits").domains}, "digits-6-4", 10)
"""The benchmark for `--quick`, on which every table takes minutes."""
QUICK = {"images": 48, "iterations": 100, "evaluate_every": 100}


def _metrics(*keys: str) -> tuple[Metric, ...]:
    """Return metrics with the titles used in the paper."""
    return tuple(replace(METRICS[key], title=METRICS[key].paper or METRICS[key].title) for key in keys)


OPEN = _metrics("acc", "hscore/oracle-10", "oscr")
"""Metrics of open-set tables. H-score uses the best of ten target thresholds, as in MEDIC's code (ICCV 2023)."""
ABLATION = _metrics("acc", "oscr")
_BOTH: Mapping[str, Any] = {"objective": "ce+ova"}
"""Settings of the paper's ablations, which train all systems with the one-vs-all head."""
_ABLATED = ("ERM", "MLDG", "Fish", "MEDIC", "MEDIC++")
"""Methods in most ablations."""
_WITH_OVA = [line(method, **_BOTH) for method in _ABLATED]
AXES: Mapping[tuple[str, str], Settings] = {
    ("no", "no"): {"domain_splits": 0, "class_splits": 0, "repeat": 3},
    ("yes", "no"): {"domain_splits": 3, "class_splits": 0},
    ("no", "yes"): {"domain_splits": 1, "class_splits": 3},
    ("yes", "yes"): {"domain_splits": 3, "class_splits": 3},
}
"""Settings for task splits by domain (dw) and by class (cw)."""


class Plan(NamedTuple):
    """A table or figure of the paper, which can be reproduced on any stage: see `Reproduction`."""

    stage: Stage
    title: str
    lines: Sequence[Line] | Callable[[str], Sequence[Line]]
    """Rows, or a function of the protocol that returns the rows."""
    metrics: tuple[Metric, ...] = ABLATION
    columns: Callable[[Stage], Columns] = Stage.targets
    settings: Callable[[Stage], Settings] = Stage.settings
    figure: bool = False
    note: str = ""
    rule: str = "validation"

    def on(self, stage: Stage, name: str, protocol: str) -> Reproduction:
        """Return the table for a stage."""
        lines = self.lines(protocol) if callable(self.lines) else self.lines
        return Reproduction(
            name, self.title, {**self.settings(stage), "protocol": protocol}, lines, self.columns(stage), self.metrics,
            self.figure, self.note, self.rule,
        )  # fmt: skip


def _of_methods(names: str) -> list[Line]:
    """Return one row per method, with its settings in the paper's main tables."""
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
        for dw, cw in AXES:
            # Reptile over domains is Fish, and the paper reports Fish's numbers for it.
            fish = method == "Reptile" and (dw, cw) == ("yes", "no")
            own = {"method": "fish"} if fish else AXES[dw, cw]
            lines.append(line(method, f"dw={dw} cw={cw} (i)", **{**_BOTH, **own}))
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
    return {**stage.settings(), "images": 72, "iterations": 5000, "evaluate_every": 5000}


_DOMAINBED: Mapping[str, tuple[str, Settings]] = {
    "CMNIST": ("cmnist", {}),
    "PACS": ("pacs", {"split": "pacs-7-0"}),
    "VLCS": ("vlcs", {}),
    "OfficeHome": ("office-home", {"split": "officehome-65-0"}),
    "TerraIncognita": ("terra-incognita", {}),
    "DomainNet": ("domainnet", {"split": "domainnet-345-0"}),
}
"""Datasets in the DomainBed table, with their shared settings; every domain serves as a target."""
_BATCHES = {"CMNIST": (128, 32), "DomainNet": (160, 18)}
"""Images per iteration in DomainBed, and per task in MEDIC++; (96, 12) for the other datasets."""
_ADAM_RATES = {"paper": (5.4e-5, 8e-4), "authors": (6e-6, 2e-4)}
"""Learning rates of MEDIC++ with Adam, for photographs and CMNIST: ε·α·t in the text, ε·α in the code. Adam ignores
the gradient's scale, so the code's steps are nine and four times smaller."""
_ADAM_SETTINGS: Mapping[str, Settings] = {
    "paper": {"iterations": 5000, "batch_norm": "frozen"},
    "authors": {"iterations": 5100, "batch_norm": "local"},
}
_EVALUATED = {"CMNIST": 100, "DomainNet": 1000}
"""Iterations between evaluations in DomainBed; 300 for the other datasets."""


def _domainbed_columns(stage: Stage) -> Columns:
    if stage is BUILT_IN:
        shared = {"dataset": stage.dataset, "split": "digits-10-0"}
        return {stage.dataset: [{"target": target, **shared} for target in stage.domains.values()]}
    return {
        title: [{"dataset": dataset, "target": target, **settings} for target in benchmark(dataset).domains]
        for title, (dataset, settings) in _DOMAINBED.items()
    }


_BASELINES = "ERM RSC GroupDRO MLDG V-REx CORAL AND-mask SAND-mask Fish Fishr HGP Hutchinson"


def _domainbed_lines(protocol: str) -> list[Line]:
    adam: Mapping[str, Any] = {"objective": "ce", "optimizer": "adam", "schedule": "constant"}
    lines = []
    for name in _BASELINES.split():
        form = f"{OURS[name]}-domainbed"
        # DomainBed's own variants set their optimizers. If a method does not split domains, balance them.
        own: Mapping[str, Any] = {"method": form} if form in METHODS else adam
        pooled = {} if METHODS[OURS[name]].grid.domains else {"domain_splits": 1}
        common = {**own, **pooled, "batch_norm": "frozen", "iterations": 5000}
        places = {title: _like_domainbed(title, images=_batches(title)[0], **_evaluated(title)) for title in _DOMAINBED}
        if name == "MLDG":  # with two sources, one remains for meta-testing
            places["CMNIST"]["hparams"] = {"meta_test": 1}
        lines.append(replace(line(name, **common), places=places))
    places = {
        title: _like_domainbed(title, batch_size=_batches(title)[1], lr=_ADAM_RATES[protocol][title == "CMNIST"])
        | (_evaluated(title) if protocol == "paper" else {})  # the authors use one interval for all datasets
        for title in _DOMAINBED
    }
    places["DomainNet"]["iterations"] = 15000
    default = line("MEDIC++", "default hyper-parameters, no binary head", **adam, **_ADAM_SETTINGS[protocol])
    tuned = line("MEDIC++", "own hyper-parameters, with binary head", batch_size=16)
    of_four_tasks = {"CMNIST": {"weight_decay": 5e-4 / 4}}
    return [*lines, replace(default, places=places), replace(tuned, places=of_four_tasks, tuned=True)]


def _batches(title: str) -> tuple[int, int]:
    return _BATCHES.get(title, (96, 12))


def _evaluated(title: str) -> dict[str, int]:
    return {"evaluate_every": _EVALUATED[title]} if title in _EVALUATED else {}


def _like_domainbed(title: str, **settings: Any) -> dict[str, Any]:
    """Return a column's settings with DomainBed's augmentation, except for CMNIST, which uses none."""
    return settings if title == "CMNIST" else {**settings, "augment": "domainbed"}


_STEPS = ("9", "5 4", "3 3 3", "3 2 2 2", "2 2 2 2 1", "2 2 1 1 1 1 1", "1 1 1 1 1 1 1 1 1")
PLANS = {
    "domainbed": Plan(
        PACS,
        "DomainBed, all classes known",
        _domainbed_lines,
        _metrics("domainbed"),
        _domainbed_columns,
        lambda stage: {"validation": "domainbed"},
        note="each cell is the mean over the targets of a dataset",
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
        "separate or shared parameters for the closed-set and one-vs-all heads",
        [line(method, head, head=head) for method in ("MEDIC", "MEDIC++") for head in ("separate", "shared")],
    ),
    "classifiers": Plan(PACS, "heads used in training and in inference", _classifiers(), _metrics("oscr")),
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
        note="columns are source domains; each cell is the mean over all other domains",
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
            line("MLDG", "cw", **_BOTH, domain_splits=1, class_splits=2),  # one for meta-training, one for meta-testing
            line("Fish", "cw", **_BOTH, **AXES["no", "yes"]),
        ],
        _metrics("oscr"),
        _openness_columns,
        figure=True,
    ),
    "time-memory": Plan(
        PACS,
        "time and memory per iteration: MEDIC++ by number of steps, and ERM",
        # The paper measures training passes only, without extra passes from adaptive sampling.
        [line("ERM", **_BOTH), *(line("MEDIC++", f"{n} steps", steps=n, sampling="random") for n in range(1, 10))],
        (replace(METRICS["step_time"], title="ms per iteration", scale=1000.0), METRICS["mem_gb"]),
        Stage.last_target,
        _time_settings,
        figure=True,
    ),
    "separation": Plan(
        PACS,
        "separation of known and unknown classes in the target; runs save features for figures",
        _WITH_OVA,
        _metrics("auroc", "fpr95", "oscr"),
        Stage.last_target,
        lambda stage: {**stage.settings(), "save_features": True},
        figure=True,
    ),
}
"""The paper's twelve tables, and its figures that show run results."""

NAMES = tuple(PLANS)


def reproduction(name: str, quick: bool = False, protocol: str = "authors") -> Reproduction:
    """Return one of the paper's tables or figures by name or, with `quick`, its version on the built-in benchmark."""
    plan = PLANS[check_choice("table of the paper", name, NAMES)]
    if not quick:
        return plan.on(plan.stage, name, protocol)
    made = plan.on(BUILT_IN, name, protocol)
    lines = [one for one in made.lines if not str(one.settings["method"]).startswith("aloft")]  # ALOFT requires GFNet
    return replace(
        made,
        title=f"quick version of {name}: the same rows and metrics on the built-in digits with a ConvNet",
        lines=[replace(one, settings={**one.settings, **_shorter(one.settings)}) for one in lines],
        settings={**made.settings, **QUICK},
    )


def _shorter(settings: Settings) -> Settings:
    """Return the `QUICK` values for settings that a row sets itself."""
    return {name: QUICK[name] for name in settings if name in QUICK}


def list_tables() -> list[dict[str, str]]:
    """Return the name, title and number of runs per seed of each of the paper's tables."""
    rows = []
    for name in NAMES:
        table = reproduction(name)
        runs = len({repr(run) for several in table.runs().values() for run in several})
        rows.append({"name": name, "content": table.title, "runs per seed": str(runs)})
    return rows
