"""Re-evaluate a finished run with another score or threshold, or with recomputed model outputs."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medic.config.imports import LOCAL, executed
from medic.config.plan import Plan
from medic.config.resolve import resolve
from medic.config.settings import SETTINGS
from medic.config.sources import allow_sources
from medic.data import Dataset
from medic.data.decode import BadImage
from medic.data.inputs import AnyImage
from medic.deploy.calibration import Calibration, Labelled, label_images
from medic.deploy.predictor import Predictor
from medic.errors import MedicError, check_choice, counted, warn
from medic.evaluation.decisions import Decisions
from medic.evaluation.evaluator import (
    LabelledOutputs,
    Outputs,
    choose_threshold,
    find_linear_head,
    fit_score,
    measure,
    measured,
)
from medic.evaluation.prediction_files import read_labels
from medic.openset import RULES, SCORES, Score, get_score
from medic.runs.data import divide_images, load_images
from medic.runs.left_out import score_left_out
from medic.runs.run import Run
from medic.training import infer
from medic.utils.outputs import LinearHead

logger = logging.getLogger(__name__)


def review(run: Run, score: str | None, rule: str | float, outputs: Outputs | None = None) -> dict[str, dict[str, Any]]:
    """Return a run's metrics for one score or for all available scores, keyed by score name.

    The metrics have the same keys as a record. They are computed from `outputs`, or by default from the run's saved
    predictions. `rule` is a threshold rule, or a number on the scale of `score` (default: the run's own score).
    """
    score = _score_for(run, score, rule)
    outputs = outputs or {split: run.outputs(split) for split in run.splits}
    if score is not None:
        chosen = [ready_score(run, score, outputs)]
    else:
        goes = RULES[str(rule)].goes_with
        fits = [entry for entry in SCORES.values() if goes(entry) and _available(run, entry, outputs)]
        if not fits:
            raise MedicError(f"no score of run {run.path} supports --threshold {rule}: use source or oracle-10")
        chosen = [ready_score(run, entry.name, outputs) for entry in fits]
    measured_on = {split: seen for split, seen in outputs.items() if split != "train"}
    return {entry.name: measure(measured_on, run.domains, entry, rule) for entry in chosen}


def make_decisions(run: Run, score: str | None, rule: str | float, sources: bool = False) -> tuple[Decisions, str]:
    """Return the decisions on target images at a threshold, and the name of the score.

    `score` defaults to the run's own, and `rule` is a threshold rule or a number. The threshold is None if no image
    belongs to an unknown class. With `sources`, the decisions include held-out source images.
    """
    score = _score_for(run, score, rule)
    predictions, outputs = run.predictions, {split: run.outputs(split) for split in run.splits}
    chosen = ready_score(run, score or run.config.evaluation.score, outputs)
    confidence = np.empty(len(predictions["label"]))
    for split, seen in outputs.items():
        confidence[predictions["split"] == split] = chosen(seen.output).numpy()
    threshold = choose_threshold(outputs, chosen, rule).value if (predictions["label"] < 0).any() else None
    decisions = replace(run.decisions, confidence=confidence, threshold=threshold)
    # Without a target, the held-out images are the target images.
    others = ["validation", "source-unknown"] if sources and run.config.data.target else []
    return decisions.where(np.isin(predictions["split"], ["target", *others])), chosen.name


def _score_for(run: Run, score: str | None, rule: str | float) -> str | None:
    """Check the threshold rule, and return the score to use; a numeric threshold defaults to the run's own score."""
    if isinstance(rule, str):
        check_choice("threshold rule", rule, RULES)
        return score
    return score or run.config.evaluation.score


def _available(run: Run, score: Score, outputs: Outputs) -> bool:
    """Return whether a run has the outputs that a score reads and, for a fitted score, its state or fitting data."""
    fitted = score.fitter is None or run.config.evaluation.score == score.name or score.split in outputs
    return fitted and score.reads(outputs["target"].output, _head(run, score))


def _head(run: Run, score: Score) -> LinearHead | None:
    """Return the linear head of a run's model, if the score needs it and the model has one."""
    return find_linear_head(run.model) if "head" in score.needs else None


def ready_score(run: Run, name: str, outputs: Outputs) -> Score:
    """Return a score by name, fitted to the run if necessary."""
    score = get_score(name)
    parts = {"ova": "a one-vs-all head", "unknown": "an output for the unknown class", "head": "a linear head"}
    has = outputs["target"].output._asdict() | {"head": _head(run, score)}
    if lacking := [parts[part] for part in score.needs if part in parts and has[part] is None]:
        raise MedicError(f"score {score.name!r} requires {lacking[0]}, but run {run.path} has none: use another score")
    if not _available(run, score, outputs):
        raise MedicError(
            f"score {score.name!r} must be fitted on the training images: add --rerun, or train with --save-features"
        )
    if score.fitter is None:
        return score
    if run.config.evaluation.score == score.name:
        return run.score
    return fit_score(score, outputs, _head(run, score))


def held_out(run: Run) -> Labelled:
    """Return the labelled outputs for a run's held-out source images: validation images and unknown classes."""
    parts = [run.outputs(split) for split in ("validation", "source-unknown") if split in run.splits]
    joined = LabelledOutputs.cat(parts)
    return Labelled(
        joined.output, joined.label, "the held-out images of the sources", tested=bool(run.config.data.target)
    )


def make_calibration(
    predictor: Predictor,
    run: Run | None,
    labels: Sequence[tuple[str, str]] | Path | str | None = None,
    images: Iterable[AnyImage] | None = None,
    left_out: bool = False,
) -> Calibration:
    """Return a model together with the outputs needed to choose its threshold; unreadable images are skipped.

    The labelled images are the user's or, without `labels`, the run's held-out images. With `left_out`, one run per
    source domain is trained without that domain, unless the run already exists.
    """
    if left_out and run is None:
        raise MedicError("leaving out source domains requires the run, not just its model: pass the run directory")
    if labels is not None:
        rows = read_labels(Path(labels)) if isinstance(labels, Path | str) else labels
        labelled: Labelled | None = label_images(predictor, rows, "labelled images")
    else:
        labelled = None if run is None else held_out(run)
    unreadable: list[BadImage] = []
    unlabelled = None if images is None else predictor.infer(images, unreadable)
    if unreadable:
        logger.warning("skipped %s; first error: %s", counted(len(unreadable), "unreadable image"), unreadable[0])
    scored = None if run is None or not left_out else score_left_out(run)
    return Calibration(predictor, labelled, unlabelled, scored)


def target_pixels(run: Run, count: int, root: str | None = None) -> Tensor:
    """Return the pixels of at most `count` evenly spaced target images, as a CPU tensor of shape (n, C, H, W)."""
    plan, dataset = load_run_images(run, "cpu", root, weights=None)
    indices = divide_images(plan, dataset).target.indices
    chosen = torch.linspace(0, len(indices) - 1, min(count, len(indices))).long()
    return dataset.images.gather(indices[chosen], torch.device("cpu"))


def resolve_run(run: Run, device: str, root: str | None, **changes: Any) -> Plan:
    """Resolve a finished run's settings again, for a given device; `root` replaces the image folder.

    Custom code named in the run's settings is not executed: the user must pass it again.
    """
    settings = {name: value for name, value in run.settings.items() if name in SETTINGS}
    names, moved = settings.pop("imports", None) or [], {} if root is None else {"root": root}
    allow_sources(settings, f"run {run.path}")
    ran = executed()
    recorded = {plugin.name: plugin.sha256 for plugin in run.plugins}
    try:
        plan = resolve({**settings, "device": device, **changes, **moved})
    except MedicError as error:
        missing = [name for name in names if name not in ran and recorded.get(name) not in ran.values()]
        if not missing:
            raise
        options = " ".join(f"--import {name}" for name in missing)
        raise MedicError(
            f"run {run.path} was trained with custom code, which medic executes only on request: add {options}"
        ) from error
    used = {*ran.values(), *(plugin.sha256 for plugin in plan.plugins)}
    for name, digest in recorded.items():
        if used and digest not in used and name != LOCAL:
            warn(f"{name} has changed since run {run.path} was trained: results may differ")
    return plan


def load_run_images(run: Run, device: str, root: str | None, **changes: Any) -> tuple[Plan, Dataset]:
    """Return a finished run's plan for a device, and its images; `root` replaces the image folder."""
    plan = resolve_run(run, device, root, **changes)
    dataset = load_images(plan, plan.device)
    if dataset.hash != run.description["provenance"]["images"]:
        raise MedicError(
            f"run {run.path} was trained on different images of {dataset.name!r}: restore the original images"
        )
    return plan, dataset


def recompute_outputs(run: Run, device: str, root: str | None = None) -> Outputs:
    """Run a finished run's model on all its images, including training images; `root` replaces the image folder."""
    plan, dataset = load_run_images(run, device, root, weights=None)
    place = plan.device
    model, problem = run.predictor.to(place).network, divide_images(plan, dataset)
    arguments = (run.preprocessing, place, plan.config.evaluation.views)
    return {
        split: LabelledOutputs.of(infer(model, dataset.images, samples.indices, *arguments), samples)
        for split, samples in {**measured(problem), "train": problem.train}.items()
    }
