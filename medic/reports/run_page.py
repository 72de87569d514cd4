"""The report of a run: results, threshold, confusions, and how to reproduce the run."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medic.data import BENCHMARKS
from medic.evaluation.decisions import Decisions
from medic.metrics import METRICS, Metric
from medic.openset.thresholds import RULES, Threshold
from medic.reports.curves import Part, is_probability, make_curves, score_name
from medic.reports.pages import packed, write_page
from medic.reports.thumbnails import thumbnails
from medic.results.wording import short
from medic.runs.layout import config_file
from medic.runs.run import Run

SUMMARY_METRICS = ("acc", "hscore", "acc_k", "acc_u", "oscr", "auroc")
"""Metrics at the top of a report."""
EXAMPLES = 60
"""Target number of gallery images of each kind. It may be exceeded, because every class shows at least one image."""


def write_report(run: Run, path: Path, root: Path | None = None) -> Path:
    """Write the report of a finished run, with images loaded from `root`."""
    config, images, parts = run.config, run.decisions, _parts(run)
    threshold = _threshold(run)
    gallery, bench = _gallery(images, parts), BENCHMARKS.get(config.data.dataset)  # None for a dataset from a plug-in
    items: list[dict[str, Any]] = [
        {"part": part, "label": int(images.label[row]), "prediction": int(images.predicted[row]),
         "path": str(run.predictions["path"][row])}
        for part, row in gallery
    ]  # fmt: skip
    if items and bench is not None and (root is not None or bench.built_in):
        pictures = thumbnails(bench, root, config.run.seed, [item["path"] for item in items])
        items = [{**item, "image": picture} for item, picture in zip(items, pictures, strict=True)]
    data = {
        "classes": images.classes,
        "known": images.known,
        "threshold": None if threshold is None else packed(np.array([threshold.value])),
        "score": score_name(run),
        "probability": is_probability(run),
        "parts": [{"name": part.name, "source": part.source, **_groups(images, part.rows)} for part in parts],
        "gallery": items,
        "confidence": packed(images.confidence[[row for _, row in gallery]]),
        "curves": list(make_curves(run, parts)),
    }
    return write_page(
        path,
        "run",
        f"{run.method} on {config.data.dataset}: {_aim(run)}",
        data,
        failure=run.learning_failure,
        sentences=list(_sentences(run)),
        numbers=_numbers(run.metrics),
        result=_result(run),
        reason=_reason(run),
        threshold=None if threshold is None else _threshold_sentence(threshold),
        unknown=bool((images.label >= images.known).any()),
        compared=any(part.source for part in parts),
        pictures=any(item.get("image") for item in items),
        root=root,
        command_with_images=f"medic report {shlex.quote(str(run.path))} --root DIR",
        provenance=_provenance(run),
        command=_command(run),
    )


def _parts(run: Run) -> list[Part]:
    """Return one part per target domain, and one part for held-out source images, known and unknown.

    Without a target, each part contains the held-out images from one source domain.
    """
    split, domain = run.predictions["split"], run.predictions["domain"]
    parts = [Part(name, (split == "target") & (domain == name), False) for name in _tested(run)]
    if run.config.data.target:
        parts.append(Part("sources", np.isin(split, ["validation", "source-unknown"]), True))
    return [part for part in parts if part.rows.any()]


def _tested(run: Run) -> list[str]:
    """Return the domains on which the run was evaluated."""
    return run.config.data.target or run.config.data.sources


def _threshold(run: Run) -> Threshold | None:
    """Return the selected evaluation's threshold or, if it has none, the model's; None if neither has one."""
    for metrics in (run.record["target"], run.record.get("source", {})):
        if "threshold" in metrics:
            rule = str(metrics.get("threshold_rule", run.config.evaluation.threshold))
            return Threshold.of(float(metrics["threshold"]), rule, is_probability(run))
    threshold = run.description.get("threshold") or {}
    if "value" not in threshold:
        return None
    return Threshold.of(float(threshold["value"]), str(threshold["rule"]), is_probability(run))


def _groups(images: Decisions, rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the confidences of a part, sorted within groups that share a true and a predicted class.

    The script computes all metrics at any threshold from these confidences. A group is (true class, predicted class,
    start, count).
    """
    label, prediction, confidence = images.label[rows], images.predicted[rows], images.confidence[rows]
    order = np.lexsort((confidence, prediction, label))
    pairs, starts, counts = np.unique(
        np.stack([label[order], prediction[order]], axis=1), axis=0, return_index=True, return_counts=True
    )
    return {"groups": np.column_stack([pairs, starts, counts]).tolist(), "confidence": packed(confidence[order])}


def _gallery(images: Decisions, parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return the target images for the gallery as (part, row) pairs, most confident first.

    The gallery shows errors, unknown images, and correct images with a low score, which some thresholds reject. Each
    class gets an equal share of each kind.
    """
    known, right = images.label < images.known, images.label == images.predicted
    examples: list[tuple[int, int]] = []
    for number, part in enumerate(parts):
        if part.source:
            continue
        for kind in (right, known & ~right, ~known):
            rows = part.rows & kind
            labels = np.unique(images.label[rows])
            for label in labels:
                own = np.flatnonzero(rows & (images.label == label))
                own = own[np.argsort(-images.confidence[own], kind="stable")]
                share = max(1, EXAMPLES // len(labels))
                if kind is right:
                    own = own[-max(share, len(own) // 3) :]
                    own = own[np.unique(np.linspace(len(own) - 1, 0, min(share, len(own))).astype(int))]
                examples += [(number, int(row)) for row in own[:share]]
    return sorted(examples, key=lambda one: (one[0], -images.confidence[one[1]], one[1]))


def _aim(run: Run) -> str:
    """Return the target domains for the title, or `all domains`."""
    return f"target {', '.join(run.config.data.target)}" if run.config.data.target else "all domains"


def _sentences(run: Run) -> Iterator[str]:
    """Yield sentences about training, testing and the results."""
    data, target, tested = run.config.data, run.predictions["split"] == "target", _tested(run)
    unknown, several = int((run.predictions["label"][target] < 0).sum()), len(tested) > 1
    images = f"images from {_listed(tested)}, {'domains' if several else 'a domain'} it has never seen"
    if not data.target:
        images = "held-out images from the same domains"
    classes = (
        f"{unknown:,} of these images belong to classes it has never seen"
        if unknown
        else "All of them belong to known classes"
    )
    did = "learned" if run.learned else "was trained on"
    yield (
        f"{run.method} {did} {len(data.known)} classes from {_listed(data.sources)} in "
        f"{run.config.optim.iterations:,} iterations. It was tested on {int(target.sum()):,} {images}. {classes}."
    )
    share = {key: _percent(value) for key, value in run.metrics.items() if isinstance(value, float)}
    if several:
        yield f"All numbers are averages over the {len(tested)} domains."
    if "hscore" not in share:
        yield f"Without rejection, it classifies {share['acc']}% of the known images correctly (Acc)."
        if not unknown:
            yield "This test does not measure how well the model rejects unknown images, because it contains none."
        return
    yield (
        f"Without rejection, it classifies {share['acc']}% of the known images correctly (Acc). At its threshold, it "
        f"classifies {share['acc_k']}% correctly (acc_k) and rejects {share['acc_u']}% of the unknown images (acc_u). "
        f"The harmonic mean of acc_k and acc_u is the H-score, {share['hscore']}."
    )
    yield f"Over all thresholds, OSCR is {share['oscr']} (its upper bound is Acc, {share['acc']})."


def _listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _percent(share: float) -> str:
    """Format a share in percent, without the percent sign."""
    return f"{100 * share:.1f}" if math.isfinite(share) else "–"


def _numbers(metrics: Mapping[str, Any]) -> list[tuple[Metric, str]]:
    return [(METRICS[key], _percent(metrics[key])) for key in SUMMARY_METRICS if key in metrics]


def _threshold_sentence(threshold: Threshold) -> str:
    """Describe the threshold, the rule that chose it, and whether the rule uses the target."""
    value = f"{threshold.display_value:.4g}{' (a probability)' if threshold.probability is not None else ''}"
    rule = RULES.get(threshold.rule)
    if rule is None:
        return f"The run's threshold is {value}, from the rule “{threshold.rule}”."
    validity = "The rule does not use the target."
    if rule.transductive:
        validity = "The rule uses target images without their labels."
    if rule.oracle:
        validity = (
            "The rule uses target labels, which are not available in practice: "
            "H-score, acc_k and acc_u at this threshold are not a valid result."
        )
    return f"The run's threshold is {value}, from the rule “{rule.name}”: {rule.description}. {validity}"


def _result(run: Run) -> str:
    """Describe which weights the final model uses."""
    if run.config.soup:
        return str(run.description["provenance"]["selection"])
    averaging = run.config.optim.averaging
    return f"averaged weights ({averaging})" if run.record.get("averaged") else f"iteration {run.record['iteration']}"


def _reason(run: Run) -> str:
    """Explain why the final model uses these weights, and which images that choice was based on."""
    if not run.config.data.target:
        return (
            f"{_choice(run)} The metrics use the same images, so expect lower numbers on new images, "
            "especially in a new domain."
        )
    return f"{_choice(run)} This choice does not use the target."


def _choice(run: Run) -> str:
    if run.config.soup:
        return "The soup keeps a run if accuracy on held-out source images does not fall."
    if run.record.get("required"):
        return "Averaging is part of the method."
    if run.record.get("averaged"):
        return "On held-out source images, they are not significantly worse than the best evaluation."
    return "It is the best evaluation on held-out source images."


def _command(run: Run) -> str:
    """Return the command that reproduces the model."""
    if run.config.soup:
        paths = [str(trial["path"]) for trial in run.description["provenance"]["soup"]]
        return shlex.join(["medic", "soup", *paths, "--output", "again"])
    return f"medic train --config {shlex.quote(str(run.path / config_file(run.path)))} --output again"


def _provenance(run: Run) -> list[tuple[str, str]]:
    config, data, provenance = run.config, run.config.data, run.description["provenance"]
    environment = run.environment
    commit, packages = environment.get("commit"), environment.get("packages") or {}
    cpu = f"{environment.get('processor')} CPU, threads {environment.get('threads')}" if environment else None
    python = f"Python {environment.get('python')}" if environment else None
    facts = {
        "run": run.path.name,
        "final model": _result(run),
        "method": run.method,
        "dataset": data.dataset,
        "sources": ", ".join(data.sources),
        "target": ", ".join(data.target) or "none",
        "known classes": ", ".join(data.known),
        "unknown classes": ", ".join(data.unknown) or "none",
        "backbone": config.model.backbone,
        "iterations": f"{config.optim.iterations:,}",
        "learning rate": f"{config.optim.lr:g}",
        "score": config.evaluation.score,
        "seed": str(config.run.seed),
        "image list (hash)": provenance["images"][:12],
        "medic": environment.get("medic"),
        "commit": None if commit is None else short(commit),
        "device": environment.get("gpu") or cpu,
        "precision": environment.get("precision"),
        "versions": python and ", ".join([python, *(f"{name} {version}" for name, version in packages.items())]),
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]
