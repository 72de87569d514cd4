"""Registry of metrics, with the record key, title, scale, direction and function of each metric.

A record is a line of a run's results.jsonl. Metrics are stored as fractions and shown in percent. This module does not
import torch: each function calls a method of `medic.openset.Ranking` by name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A number in a record, and how to display it."""

    key: str
    title: str
    of_ranking: Callable[[Any], float] | None = None
    """Computes the metric from a `medic.openset.Ranking` if it needs no threshold. Every run records such metrics."""
    scale: float = 100.0
    """Factor from the stored to the displayed value: 100 for percent."""
    higher_is_better: bool = True
    ideal: float | None = None
    """The ideal value, for metrics where neither the highest nor the lowest value is best."""
    paper: str = ""
    """Title in the paper's tables. Empty if the paper does not report the metric."""
    meaning: str = ""
    """Explanation for readers who are new to the metric."""


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
            meaning="Harmonic mean of acc_k and acc_u at the run's threshold. It is high only if both are high.",
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
            meaning="Area under the risk-coverage curve: the error rate among the most confident images, averaged over "
            "all coverages. Every unknown image counts as an error.",
        ),
        Metric(
            "domain_auroc",
            "domain sensitivity",
            ideal=0.5,
            meaning="Probability that a known source image scores higher than a known target image. 50 is ideal: the "
            "score does not depend on the domain.",
        ),
        Metric(
            "fs_auroc",
            "full-spectrum AUROC",
            meaning="AUROC of all known images, from sources and target, against all unknown images.",
        ),
        Metric("fs_fpr95", "full-spectrum FPR95", higher_is_better=False),
        Metric("conf_p", "conf_p", paper="conf_p"),
        Metric("conf_n", "conf_n", paper="conf_n"),
        Metric("balance", "balance"),
        Metric("threshold", "threshold", scale=1.0),
        # DomainBed's test accuracy, which a table computes from the accuracies of the domains.
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
"""All metrics by key."""

DEFAULT = tuple(METRICS[key] for key in ("acc", "hscore", "oscr"))
"""Metrics shown unless others are requested."""

_FAMILIES = (
    Metric("oscr/", "OSCR "),
    Metric("hscore/", "H-score "),
    Metric("ccr@fpr=", "CCR@FPR="),
    Metric("ece/", "ECE ", higher_is_better=False),
    Metric("brier/", "Brier ", higher_is_better=False),
    Metric("nll/", "NLL ", scale=1.0, higher_is_better=False),
)
"""Metrics whose key and title continue with a score, a threshold rule or a rate."""


def find_metric(key: str) -> Metric:
    """Return the metric for a key. Unregistered keys are displayed under their own name, in percent."""
    if key in METRICS:
        return METRICS[key]
    for family in _FAMILIES:
        if key.startswith(family.key):
            return replace(family, key=key, title=family.title + key.removeprefix(family.key))
    return Metric(key, key)
