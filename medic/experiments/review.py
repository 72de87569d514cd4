"""A finished run, measured again: with another score or threshold, or by running its model once more."""

import dataclasses
from typing import Any

from torch import Tensor

from medic.errors import MedicError, check_choice
from medic.experiments.directory import Run
from medic.experiments.evaluation import RULES, measure_target
from medic.experiments.resolve import resolve
from medic.experiments.run import split_data
from medic.openset import SCORES
from medic.outputs import Output
from medic.training import infer

Outputs = dict[str, tuple[Output, Tensor]]
"""Outputs and labels by split, `validation` and `target`."""


def review(run: Run, score: str | None, rule: str, outputs: Outputs | None = None) -> dict[str, dict[str, Any]]:
    """The metrics of a run on its target for one score, or for all it can have, by name of the score.

    They are computed from the run's predictions, or from `outputs`.
    """
    check_choice("threshold rule", rule, RULES)
    outputs = outputs or {split: run.outputs(split) for split in ("validation", "target")}
    (validation, _), (target, label) = outputs["validation"], outputs["target"]
    names = [name for name, s in SCORES.items() if target.ova is not None or not s.needs_ova]
    if score is None:
        names = [name for name in names if rule != "fixed" or SCORES[name].probability]
    elif check_choice("score", score, SCORES) in names:
        names = [score]
    else:
        raise MedicError(f"score {score!r} needs a one-vs-all head, which run {run.path} has not")
    measured = {name: measure_target(validation, target, label, name, rule) for name in names}
    # A key with a slash names another score or rule than the column's.
    return {name: {key: v for key, v in values.items() if "/" not in key} for name, values in measured.items()}


def infer_again(run: Run, device: str) -> Outputs:
    """Run a finished run's model over its images once more."""
    plan = resolve(dataclasses.replace(run.config, device=device, weights=None))
    dataset = plan.data.load(lambda line: None)
    if dataset.hash != run.description["provenance"]["images"]:
        raise MedicError(f"run {run.path} was made from other images of {dataset.name!r} than there are now")
    problem = split_data(plan, dataset)
    model = run.model.to(plan.model.device)
    return {
        split: (infer(model, dataset.images, samples.indices, run.preprocessing, plan.model.device), samples.label)
        for split, samples in (("validation", problem.validation), ("target", problem.target))
    }
