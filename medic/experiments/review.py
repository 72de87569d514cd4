"""A finished run, measured again: with another score or threshold, or by running its model once more."""

import dataclasses
from typing import Any

from medic.errors import MedicError, check_choice
from medic.experiments.directory import Run
from medic.experiments.evaluation import RULES, Outputs, Seen, measure, measured
from medic.experiments.resolve import resolve
from medic.openset import SCORES
from medic.training import infer


def review(run: Run, score: str | None, rule: str, outputs: Outputs | None = None) -> dict[str, dict[str, Any]]:
    """The metrics of a run, as in its records, for one score or for all it can have, by name of the score.

    They are computed from the run's predictions, or from `outputs`.
    """
    check_choice("threshold rule", rule, RULES)
    outputs = outputs or {split: run.outputs(split) for split in run.splits}
    ova = outputs["target"].output.ova
    names = [name for name, s in SCORES.items() if ova is not None or not s.needs_ova]
    if score is None:
        names = [name for name in names if rule != "fixed" or SCORES[name].probability]
    elif check_choice("score", score, SCORES) in names:
        names = [score]
    else:
        raise MedicError(f"score {score!r} needs a one-vs-all head, which run {run.path} has not")
    return {name: measure(outputs, run.domains, name, rule) for name in names}


def infer_again(run: Run, device: str) -> Outputs:
    """Run a finished run's model over its images once more."""
    plan = resolve(dataclasses.replace(run.config, device=device, weights=None))
    dataset = plan.data.load(lambda line: None)
    if dataset.hash != run.description["provenance"]["images"]:
        raise MedicError(f"run {run.path} was made from other images of {dataset.name!r} than there are now")
    model = run.model.to(plan.model.device)
    return {
        split: Seen.of(infer(model, dataset.images, samples.indices, run.preprocessing, plan.model.device), samples)
        for split, samples in measured(plan.data.split(dataset)).items()
    }
