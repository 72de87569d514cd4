"""Runs for analyses: short labels, saved outputs, and replayed training."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from medic.config.plan import Plan
from medic.data import Dataset, Problem
from medic.errors import MedicError, check_choice
from medic.evaluation.evaluator import LabelledOutputs
from medic.methods import METHODS
from medic.runs.build import build_trainer, generators_kept
from medic.runs.data import divide_images
from medic.runs.reevaluate import load_run_images, recompute_outputs
from medic.runs.run import Run
from medic.training import Trainer

_TELLING = ("steps", "sampling", "objective", "head", "known", "dataset", "target", "backbone", "lr", "seed")
"""Settings that distinguish runs of the same method, in order of preference."""


def method_title(method: str) -> str:
    """Return the paper's name for a method, or the method's own name."""
    entry = METHODS.get(method)
    return method if entry is None or entry.paper is None else entry.paper


def run_labels(settings: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a short label for each run: its method, and the settings that distinguish it from other runs."""
    labels = [method_title(str(one["method"])) for one in settings]
    for setting in _TELLING:
        again = [label for label in set(labels) if labels.count(label) > 1]
        for label in again:
            rows = [row for row, other in enumerate(labels) if other == label]
            if len({str(settings[row].get(setting)) for row in rows}) > 1:
                for row in rows:
                    labels[row] = f"{label}, {_short(setting, settings[row].get(setting))}"
    return [f"{label}, {name}" if labels.count(label) > 1 else label for label, name in zip(labels, names, strict=True)]


def _short(setting: str, value: Any) -> str:
    if setting == "steps":
        return f"{len(value)} steps" if len(value) > 1 else "1 step"
    if setting == "known":
        return f"{len(value)} known"
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if setting in ("target", "dataset", "backbone", "sampling", "objective") else f"{setting} {text}"


def labels_of(runs: Sequence[Run]) -> list[str]:
    """Return a short label for each run."""
    return run_labels([run.settings for run in runs], [run.path.name for run in runs])


def with_features(
    run: Run, split: str, rerun: bool = False, root: str | None = None, device: str = "auto"
) -> LabelledOutputs:
    """Return a run's outputs for a split, with features of shape (N, F). `rerun` recomputes the outputs."""
    if rerun:
        outputs = recompute_outputs(run, device, root)
        return outputs[check_choice("split", split, outputs, f"of run {run.path}")]
    check_choice("split", split, run.splits, f"of run {run.path}")
    kept = run.outputs(split)
    if kept.output.features is None:
        raise MedicError(
            f"run {run.path} saved no features: add --rerun to compute them, or train with --save-features"
        )
    return kept


@dataclass(frozen=True)
class Repeated:
    """The training of a run, ready to be replayed."""

    plan: Plan
    dataset: Dataset
    problem: Problem
    trainer: Trainer

    def iterate(self, iterations: int | None = None) -> Iterator[int]:
        """Train, and yield the iteration number after each step, when the weights equal those of the original run.

        `iterations` limits the number of iterations. Learning rates still follow the whole run's schedule.
        """
        trainer = self.trainer
        trainer.model.train()
        for iteration in range(1, self.last(iterations) + 1):
            trainer.step()
            yield iteration
        trainer.wait()

    def last(self, iterations: int | None) -> int:
        """Return the last iteration to replay."""
        whole = self.plan.config.optim.iterations
        if iterations is not None and not 1 <= iterations <= whole:
            raise MedicError(
                f"--iterations must be from 1 to {whole}, the number of iterations of the run, got {iterations}"
            )
        return whole if iterations is None else iterations


@contextmanager
def repeated(run: Run, root: str | None = None, device: str = "auto") -> Iterator[Repeated]:
    """Rebuild the trainer of a finished run from its settings, images and initial weights.

    `root` replaces the image folder. Global random generators are restored on exit.
    """
    if run.config.soup:
        raise MedicError(f"run {run.path} is a soup, whose training cannot be replayed: pass one of its runs")
    if run.config.run.extend:
        raise MedicError(f"run {run.path} extends another run, so its training cannot be replayed: pass that run")
    with generators_kept():
        plan, dataset = load_run_images(run, device, root)
        problem = divide_images(plan, dataset)
        yield Repeated(plan, dataset, problem, build_trainer(plan, dataset, problem))


def moments_of(iterations: int, moments: int) -> list[int]:
    """Return `moments` evenly spaced iterations, including the last. Returns fewer if there are fewer iterations."""
    if moments < 1:
        raise MedicError(f"--moments must be at least 1, got {moments}")
    return sorted({round(iterations * (index + 1) / moments) for index in range(moments)} - {0})
