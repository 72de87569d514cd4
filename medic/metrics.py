"""Registry of metrics: key in a record, title, scale, direction and function. Everything that shows a metric reads it.

A record is a line of a run's results.jsonl. Metrics are stored as fractions and shown in percent. This module does not
import torch: functions name a method of `medic.openset.Ranking`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number of a record and the way to show it."""

    key: str
    title: str
    of_ranking: Callable[[Any], float] | None = None
    """Function of a `medic.openset.Ranking`, if the metric needs no threshold. Every run records it under its key."""
    scale: float = 100.0
    """Factor from the stored to the shown value: 100 for percent."""
    higher_is_better: bool = True
    ideal: float | None = None
    """The best value, if neither the highest nor the lowest is."""
    paper: str = ""
    """Title of the metric in the paper's tables; empty if they do not have it."""
    meaning: str = ""
    """What it says, for somebody who meets it for the first time."""


METRICS = {
    metric.key: metric
    for metric in (
        Metric(
            "acc",
            "Acc",
            methodcaller("acc"),
            paper="Acc",
            meaning="Share of known images classified correctly when nothing is rejected.",
        ),
        Metric(
            "hscore",
            "H-score",
            meaning="Harmonic mean of acc_k and acc_u at the run's threshold. It is high only if both are.",
        ),
        Metric(
            "oscr",
            "OSCR",
            methodcaller("oscr"),
            paper="OSCR",
            meaning="Probability that, in a random pair of a known and an unknown image, the known image is classified "
            "correctly and scores higher. It needs no threshold and is at most Acc.",
        ),
        Metric("acc_k", "acc_k", meaning="Share of known images accepted at the threshold and classified correctly."),
        Metric("acc_u", "acc_u", meaning="Share of unknown images rejected at the threshold."),
        Metric(
            "hscore/oracle-10",
            "H-score oracle-10",
            paper="H-score",
            meaning="H-score at the best of ten thresholds, chosen with target labels, as in the paper. "
            "Target labels are not available in practice.",
        ),
        Metric("oscr_c", "OSCR cls", meaning="OSCR with the largest softmax probability as the score."),
        Metric(
            "oscr_b", "OSCR bcls", meaning="OSCR with the one-vs-all probability of the predicted class as the score."
        ),
        Metric(
            "auroc",
            "AUROC",
            methodcaller("auroc"),
            meaning="Probability that a random known image scores higher than a random unknown one.",
        ),
        Metric("aupr_in", "AUPR in", methodcaller("aupr", positive="known")),
        Metric("aupr_out", "AUPR out", methodcaller("aupr", positive="unknown")),
        Metric("fpr95", "FPR95", methodcaller("fpr95"), higher_is_better=False),
        Metric("ccr@fpr=0.01", "CCR@FPR=0.01", methodcaller("ccr_at_fpr", 0.01)),
        Metric("ccr@fpr=0.1", "CCR@FPR=0.1", methodcaller("ccr_at_fpr", 0.1)),
        Metric(
            "aurc",
            "AURC",
            higher_is_better=False,
            meaning="Mean share of wrong images among the most confident ones, over all shares of the images. Every "
            "unknown image counts as wrong.",
        ),
        Metric(
            "domain_auroc",
            "domain sensitivity",
            ideal=0.5,
            meaning="Probability that a known image of the sources scores higher than a known image of the target. "
            "50 is ideal: the score does not react to the domain.",
        ),
        Metric(
            "fs_auroc",
            "full-spectrum AUROC",
            meaning="AUROC of all known images, of the sources and of the target, against all unknown ones.",
        ),
        Metric("fs_fpr95", "full-spectrum FPR95", higher_is_better=False),
        Metric("conf_p", "conf_p", paper="conf_p"),
        Metric("conf_n", "conf_n", paper="conf_n"),
        Metric("balance", "balance"),
        Metric("threshold", "threshold", scale=1.0),
        # DomainBed's test accuracy. A table computes it from the accuracies of the domains.
        Metric("domainbed", "DomainBed Acc", paper="Acc"),
        Metric("iteration", "iteration", scale=1.0),
        Metric("step", "step", scale=1.0),
        Metric("epoch", "epoch", scale=1.0),
        Metric("loss", "loss", scale=1.0, higher_is_better=False),
        Metric("domain_loss", "domain loss", scale=1.0, higher_is_better=False),
        Metric("lr", "learning rate", scale=1.0),
        Metric("step_time", "seconds per iteration", scale=1.0, higher_is_better=False),
        Metric("mem_gb", "peak GiB", scale=1.0, higher_is_better=False),
    )
}
"""Every metric by its key."""

DEFAULT = tuple(METRICS[key] for key in ("acc", "hscore", "oscr"))
"""Metrics shown unless others are requested."""

_FAMILIES = {"oscr/": "OSCR ", "hscore/": "H-score ", "ccr@fpr=": "CCR@FPR=", "ece/": "ECE ", "brier/": "Brier "}
"""Prefixes of keys that end in a score, a threshold rule or a rate, and the prefixes of their titles."""


def find_metric(key: str) -> Metric:
    """Return the metric of a key. A key without an entry is shown under its own name, in percent."""
    if key in METRICS:
        return METRICS[key]
    for prefix, title in _FAMILIES.items():
        if key.startswith(prefix):
            return Metric(key, title + key.removeprefix(prefix), higher_is_better=prefix not in ("ece/", "brier/"))
    return Metric(key, key)
