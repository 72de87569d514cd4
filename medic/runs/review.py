"""A finished run, measured again: with another score or threshold, or by running its model once more."""

from typing import Any

from medic.errors import MedicError, check_choice
from medic.openset import RULES, SCORES, Score
from medic.runs.directory import Run
from medic.runs.evaluation import LabelledOutputs, Outputs, measure, measured
from medic.runs.recipe import make_recipe
from medic.runs.settings import SETTINGS
from medic.training import infer


def review(run: Run, score: str | None, rule: str, outputs: Outputs | None = None) -> dict[str, dict[str, Any]]:
    """The metrics of a run, as in its records, for one score or for all it can have, by name of the score.

    They are computed from the run's predictions, or from `outputs`.
    """
    check_choice("threshold rule", rule, RULES)
    outputs = outputs or {split: run.outputs(split) for split in run.splits}
    if score is not None:
        chosen = [_ready(run, SCORES[check_choice("score", score, SCORES)], outputs)]
    else:
        fits = [entry for entry in SCORES.values() if RULES[rule].goes_with(entry) and _is_there(run, entry, outputs)]
        if not fits:
            raise MedicError(f"no score of run {run.path} goes with threshold {rule!r}: use source, or oracle-10")
        chosen = [_ready(run, entry, outputs) for entry in fits]
    measured_on = {split: seen for split, seen in outputs.items() if split != "train"}
    return {entry.name: measure(measured_on, run.domains, entry, rule) for entry in chosen}


def _is_there(run: Run, score: Score, outputs: Outputs) -> bool:
    """Whether all that a score needs is there: parts of the outputs, and what it was or can be fitted on."""
    fitted = score.fitter is None or run.settings["score"] == score.name or "train" in outputs
    return score.reads(outputs["target"].output) and fitted


def _ready(run: Run, score: Score, outputs: Outputs) -> Score:
    """A score that can be used on a run's outputs."""
    if not score.reads(outputs["target"].output) and score.needs != ("features",):
        part = {"ova": "a one-vs-all head", "unknown": "an output for unknown"}[score.needs[0]]
        raise MedicError(f"score {score.name!r} needs {part}, which run {run.path} has not")
    if not _is_there(run, score, outputs):
        raise MedicError(
            f"score {score.name!r} is fitted on the training images: add --rerun, or train with --save-features"
        )
    if score.fitter is None:
        return score
    if run.settings["score"] == score.name:
        return run.score
    return score.fit(outputs["train"].output, outputs["train"].label)


def infer_again(run: Run, device: str) -> Outputs:
    """Run a finished run's model over its images once more, those that it was trained on among them."""
    settings = {name: value for name, value in run.settings.items() if name in SETTINGS}
    recipe, opened = make_recipe({**settings, "device": device, "weights": None})
    place = recipe.execution.pick_device()
    dataset = recipe.data.load(opened, place)
    if dataset.hash != run.description["provenance"]["images"]:
        raise MedicError(f"run {run.path} was made from other images of {dataset.name!r} than there are now")
    model, problem = run.model.to(place), recipe.data.divide(dataset, recipe.seed)
    given = (run.preprocessing, place, recipe.evaluation.views)
    return {
        split: LabelledOutputs.of(infer(model, dataset.images, samples.indices, *given), samples)
        for split, samples in {**measured(problem), "train": problem.train}.items()
    }
