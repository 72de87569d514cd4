"""Model soups: averaged weights of finished runs, selected by source validation (Wortsman et al. 2022)."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from medic.errors import MedicError, memory_checked
from medic.evaluation.selection import validation_accuracy
from medic.models.tuning import merge_adapters
from medic.runs.build import build_network, generators_kept
from medic.runs.reevaluate import load_run_images
from medic.runs.run import Run
from medic.runs.unfinished import UnfinishedRun, divide, find_directory, finished_run
from medic.training.averaging import RunningMean
from medic.training.trainer import find_trained
from medic.utils.files import file_hash, writing
from medic.utils.logs import log_output

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARED = ("dataset", "sources", "target", "known", "unknown", "partial", "backbone", "pool", "objective",
          "head", "tune", "batch_norm", "image_size", "store_size", "score", "views")  # fmt: skip
"""Model and image settings that all runs must share."""
SPLIT = ("validation", "holdout", "trial_seed", "label_noise", "shots")
"""Validation and label settings that all runs must share."""


class Trial(NamedTuple):
    """Result of trying a run: the soup's validation accuracy with the run, and whether the run is kept."""

    accuracy: float
    kept: bool


def choose(runs: Iterable[T], accuracy_with: Callable[[T], float], keep: Callable[[], None]) -> list[Trial]:
    """Try the runs in order, and keep each run that does not lower the accuracy; the first run is always kept.

    `keep` adds the run that `accuracy_with` tried last.
    """
    trials, best = list[Trial](), float("-inf")
    for run in runs:
        accuracy = accuracy_with(run)
        trials.append(Trial(accuracy, accuracy >= best))
        if trials[-1].kept:
            best = accuracy
            keep()
    return trials


def soup(
    runs: Iterable[Run | Path | str],
    *,
    output: Path | str = "runs",
    name: str | None = None,
    root: Path | str | None = None,
    weights: Path | str | None = None,
    device: str = "auto",
    imports: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Average the weights of finished runs that start from the same pretrained weights, and return the soup as a run.

    Runs are tried from best to worst. A run is kept if adding it does not lower the accuracy on source validation. The
    soup has the settings of the best run. If a soup of the same runs already exists, it is returned.

    Args:
        runs: At least two run directories. The runs must share images, classes, network and validation images.
        output: Directory in which to create the soup's run directory.
        name: Name of the run directory (default: a hash).
        root: Image folder, if it has moved since the runs were trained.
        weights: File with the pretrained weights, if it has moved.
        device: `auto`, `cpu` or `cuda`.
        imports: Python files or modules that the runs were trained with. They are executed first.
        quiet: Whether to log warnings only.
    """
    began = time.monotonic()
    with memory_checked(), generators_kept(), log_output(quiet):
        candidates = [run if isinstance(run, Run) else Run(run) for run in runs]
        _check(candidates)
        ordered = sorted(candidates, key=lambda run: -validation_accuracy(run.record))  # stable: first on ties
        best, hashes = ordered[0], [run.hash for run in ordered]
        changes: dict[str, Any] = {"output": str(output), "name": name, "imports": list(imports) or None}
        if weights is not None:
            changes["weights"] = str(weights)
        if best.config.model.batch_norm == "sync":
            changes["batch_norm"] = "local"  # equivalent in a single process
        plan, dataset = load_run_images(best, device, None if root is None else str(root), **changes)
        if plan.weights is None or file_hash(plan.weights) != best.environment["weights"]:
            raise MedicError(
                f"run {best.path} did not start from the weights {plan.weights}: pass the original file with --weights"
            )
        plan = replace(
            plan,
            config=replace(plan.config, soup=tuple(hashes)),
            user_settings={**_shared_settings(ordered), "soup": hashes},
        )
        run, directory = find_directory(plan, dataset)
        with directory.locked(), writing("run", directory.path):
            directory.check_named(plan, run)  # again, because another process may have taken the name in the meantime
            if directory.done:
                return finished_run(directory)
            problem = divide(plan, dataset)
            Soup(plan, dataset, problem, build_network(plan), directory, run, len(ordered), began).make(ordered)
        made = Run(directory.path)
        if made.learning_failure:
            logger.warning("soup %s learned nothing: %s", made.path, made.learning_failure)
        return made


class Soup(UnfinishedRun):
    """A soup in progress. `_kept` is the average of the kept runs, `_tried` the average with one more run."""

    def make(self, runs: Sequence[Run]) -> None:
        """Try the runs, best first, and write the soup."""
        merge_adapters(self.trainer.model)  # as in the runs' model files
        self.trainer.trained = find_trained(self.trainer.model)
        self._kept = self._tried = RunningMean()
        trials = choose(runs, self._accuracy_with, self._keep)
        self.trainer.model.load_state_dict(self.best)
        metrics, iterations = self.evaluator.record(), self.plan.config.optim.iterations
        self.directory.write_environment(self.plan, self.dataset, self.hash)  # first: it contains the run's hash
        self.directory.write_start(self.plan)
        self.add_record({"iteration": iterations, "step": iterations, **metrics, "averaged": True, "required": True})
        ingredients = [
            {"run": run.hash, "path": str(run.path), "acc": validation_accuracy(run.record), "soup_acc": trial.accuracy,
             "kept": trial.kept}
            for run, trial in zip(runs, trials, strict=True)
        ]  # fmt: skip
        kept = sum(trial.kept for trial in trials)
        selection = f"greedy soup of {kept} of {len(runs)} runs by source validation"
        self.finish(nullcontext(), selection=selection, soup=ingredients)

    def _accuracy_with(self, run: Run) -> float:
        """Load the average of the kept runs and `run`, and return its accuracy on source validation.

        The first run keeps its own batch-norm statistics. For an average, batch-norm statistics are re-estimated.
        """
        model = self.trainer.model
        tensors = Run(run.path).model.state_dict()  # a new object, so that the network is freed
        model.load_state_dict({name: tensors[name] for name in model.state_dict()})
        self._tried = self._kept.copy()
        self._tried.add([parameter.detach().double() for parameter in self.trainer.trained])
        if self._tried.count > 1:
            self.load_average(self._tried.tensors)
        accuracy = self.evaluator.validation()["acc"]
        own = validation_accuracy(run.record)
        logger.info("%s: validation Acc %.1f; soup with this run %.1f", run.path, 100 * own, 100 * accuracy)
        return accuracy

    def _keep(self) -> None:
        """Keep the run that was tried last."""
        self._kept = self._tried
        self.best = {name: tensor.detach().clone() for name, tensor in self.trainer.model.state_dict().items()}


def _check(runs: Sequence[Run]) -> None:
    """Raise an error if the weights cannot be averaged, or if one run trained on another's validation images."""
    if len(runs) < 2:
        raise MedicError(f"a soup requires at least two runs, got {len(runs)}: pass more run directories")
    seen: dict[str, Run] = {}
    for run in runs:
        if (same := seen.setdefault(run.hash, run)) is not run:
            raise MedicError(f"{same.path} and {run.path} contain the same run: pass or keep only one of them")
    for run in runs:
        if run.config.model.head_alone and not run.description["model"].get("scaled"):
            raise MedicError(
                f"run {run.path} trained its head on features from version 0.3, which have changed: train it again"
            )
    first, *others = runs
    for other in others:
        _check_pair(first, other)


def _check_pair(first: Run, second: Run) -> None:
    """Raise an error if two runs differ in required settings, images or pretrained weights."""
    pair = f"runs {first.path} and {second.path}"
    weights = [run.environment.get("weights") for run in (first, second)]
    if None in weights or weights[0] != weights[1]:
        starts = " and ".join("random weights" if digest is None else digest[:8] for digest in weights)
        raise MedicError(f"{pair} start from {starts}: a soup requires the same pretrained --weights for all runs")
    for name in (*SHARED, *SPLIT):
        values = [run.settings.get(name) for run in (first, second)]
        if values[0] == values[1]:
            continue
        difference = f"{name} {_text(values[0])} and {_text(values[1])}"
        if name in SPLIT:
            option = f"--{name.replace('_', '-')}"
            leak = "hold out different validation images, so one run trained on images used to validate the other"
            raise MedicError(f"{pair} {leak} ({difference}): train both with the same {option}")
        raise MedicError(f"{pair} have different settings ({difference}): a soup requires the same {name} for all runs")
    images = [run.description["provenance"]["images"] for run in (first, second)]
    if images[0] != images[1]:
        raise MedicError(
            f"{pair} were trained on different images of {first.config.data.dataset!r}: "
            "a soup requires the same images for all runs"
        )


def _shared_settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the user settings that all runs share. The remaining settings do not distinguish soups."""
    first, *others = (run.user_settings for run in runs)
    identity = runs[0].identity
    return {
        name: value
        for name, value in first.items()
        if name in identity and all(other.get(name) == value for other in others)
    }


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
