"""Print evaluations in the terminal: metrics, and results by domain, class, group and origin."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medic.metrics import DEFAULT, METRICS, find_metric
from medic.reports.terminal import print_blocks, print_rows

if TYPE_CHECKING:  # these import torch
    from medic.evaluation.decisions import ClassResult, Confused, GroupResult
    from medic.runs.spectrum import UnknownImages

MAX_CONFUSIONS = 10
"""Maximum number of confusions to print."""
MAX_GROUPS = 30
"""Maximum number of groups to print."""
CALIBRATION = {"ece": "ECE", "brier": "Brier", "nll": "NLL (nats)"}
"""Metrics of a score's own probability: the beginning of their keys, and their titles."""


def print_metrics(columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one row per metric. `columns` contains the metrics by score."""
    known = dict.fromkeys(key for values in columns.values() for key in values)
    # Other scores are separate columns, and the threshold is not a percentage.
    apart = ("score", "threshold", "threshold_rule", "oscr_c", "oscr_b")
    keys = [key for key in known if "/" not in key and key not in apart]
    rows = [
        {
            "in percent": find_metric(key).title,
            **{title: _text(key, values.get(key)) for title, values in columns.items()},
        }
        for key in keys
    ]
    for family, title in CALIBRATION.items():
        values = {score: entry.get(f"{family}/{score}") for score, entry in columns.items()}
        if any(value is not None for value in values.values()):
            cells = {score: _text(f"{family}/{score}", value) for score, value in values.items()}
            rows.append({"in percent": title, **cells})
    print_blocks(rows, "in percent", list(columns))


def print_domains(parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one row per domain."""
    rows = [
        {
            "domain": domain,
            **{metric.title: _text(metric.key, part.get(metric.key)) for metric in (*DEFAULT, METRICS["auroc"])},
        }
        for domain, part in parts.items()
    ]
    print_rows(rows, numeric=list(rows[0])[1:])


def _text(key: str, value: Any) -> str:
    """Format the value of a metric, usually in percent."""
    if value is None:
        return "–"
    scale = find_metric(key).scale
    return f"{scale * value:.{2 if scale > 1 else 4}f}"


def print_spectrum(unknown: "Sequence[UnknownImages]") -> None:
    """Print how well unknown images are separated from known images in the sources, in the target, and in both."""
    rows = [
        {
            "unknown images from": row.place,
            "images": f"{row.images:,}",
            "known sources": _share(row.sources),
            "known target": _share(row.target),
            "full spectrum": _share(row.full),
            "rejected": _share(row.rejected),
        }
        for row in unknown
    ]
    print_rows(rows, numeric=list(rows[0])[1:])


def print_classes(classes: Sequence["ClassResult"], confusions: Sequence["Confused"], decided: bool) -> None:
    """Print one row per class, and the most frequent confusions. `decided` tells whether there is a threshold."""
    from medic.evaluation.decisions import wilson

    for known, title in ((True, "known classes, in percent"), (False, "unknown classes, in percent")):
        own = [result for result in classes if result.known is known]
        if not own:
            continue
        print(f"\n{title}:")
        rows = []
        for result in own:
            row = {"class": result.name, "images": f"{result.images:,}"}
            if known:
                row |= {"Acc": _share(result.acc), "95%": _interval(*wilson(result.acc or 0.0, result.images))}
                row |= {"acc_k": _share(result.acc_k), "rejected": _share(result.rejected)} if decided else {}
            elif decided:
                row |= {
                    "rejected": _share(result.rejected),
                    "95%": _interval(*wilson(result.rejected or 0.0, result.images)),
                }
            taken = "" if result.taken_for is None else f"{result.taken_for} ({_share(result.share)})"
            rows.append({**row, "most often predicted as": taken})
        print_rows(rows, numeric=[name for name in rows[0] if name not in ("class", "most often predicted as")])
    print(f"\nmost frequent confusions{' of accepted images' if decided else ''}{'' if confusions else ': none'}")
    if confusions:
        rows = [
            {
                "class": confusion.true,
                "kind": "known" if confusion.known else "unknown",
                "predicted as": confusion.taken_for,
                "images": f"{confusion.images:,} of {confusion.of:,}",
                "in percent": _share(confusion.share),
            }
            for confusion in confusions[:MAX_CONFUSIONS]
        ]
        print_rows(rows, numeric=["images", "in percent"])
    if len(confusions) > MAX_CONFUSIONS:
        print(f"and {len(confusions) - MAX_CONFUSIONS} more pairs of classes")


def print_groups(groups: Sequence["GroupResult"], column: str, decided: bool) -> None:
    """Print one row per group of images with the same value in a column."""
    order = "lowest H-score" if all("hscore" in group.metrics for group in groups) else "lowest upper bound"
    print(f"\nby {column}, in percent, {order} first:")
    keys = [
        key
        for key in ("acc", "acc_k", "acc_u", "hscore", "oscr", "auroc")
        if any(key in group.metrics for group in groups)
    ]
    rows = [
        {
            column: group.group,
            "known": f"{group.known:,}",
            "unknown": f"{group.unknown:,}",
            **({"correct": _share(group.correct)} if decided else {}),
            "95%": _interval(group.low, group.high),
            **{METRICS[key].title: _share(group.metrics.get(key)) for key in keys},
        }
        for group in groups[:MAX_GROUPS]
    ]
    print_rows(rows, numeric=list(rows[0])[1:])
    if len(groups) > MAX_GROUPS:
        print(f"and {len(groups) - MAX_GROUPS} better groups; use --json to print all")
    if decided:
        print("correct: known images accepted and classified correctly, and unknown images rejected")
    print(f"95%: Wilson confidence interval of {'correct' if decided else 'Acc'}")


def _share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.0f}–{100 * high:.0f}"
