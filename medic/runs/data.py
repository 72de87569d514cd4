"""Load a run's images and split them into training, validation and evaluation sets."""

import hashlib
from dataclasses import replace
from typing import Literal

import torch

from medic.config.data import DataConfig
from medic.config.plan import Plan
from medic.data import Dataset, Problem, Storage, make_parts, make_problem
from medic.data.problem import draw_shots, mislabelled
from medic.errors import MedicError
from medic.training import derive, generator


def load_images(plan: Plan, device: torch.device) -> Dataset:
    """Load a run's images, decoding them unless they are already in the cache."""
    return plan.dataset.load(_storage(plan.config.data, device))


def peek_images(plan: Plan) -> Dataset:
    """Return a run's dataset without writing anything. Images are decoded only when they are used."""
    return plan.dataset.look(_storage(plan.config.data, torch.device("cpu")))


def _storage(data: DataConfig, device: torch.device) -> Storage:
    return Storage(data.store_size, data.store, device, data.on_bad_image)


def divide_images(plan: Plan, dataset: Dataset) -> Problem:
    """Split the images into training, validation and evaluation sets, and apply label noise and shots if requested."""
    data = plan.config.data
    trial = plan.seed if data.trial_seed is None else data.trial_seed
    drawn = trial if data.validation == "domainbed" else derive(trial, "split")
    parts = make_parts(dataset, data.validation, data.holdout or 0.2, drawn)
    on_empty: Literal["warn", "error"] = "warn" if data.on_bad_image == "skip" else "error"
    problem = make_problem(dataset, data.sources, data.target, data.classes, parts, on_empty)
    if data.validation == "official":
        held_out = set(problem.validation.domain.tolist())
        for source in problem.sources:
            if source not in held_out:
                name = dataset.domains[source]
                raise MedicError(f"validation 'official' requires a list or folder of held-out images for {name!r}")
    if data.label_noise:
        problem = _with_noise(problem, data, dataset, trial)
    return problem if data.shots is None else _with_shots(problem, data.shots, trial)


def _with_noise(problem: Problem, data: DataConfig, dataset: Dataset, trial: int) -> Problem:
    """Corrupt some labels of training and validation images alike, because clean labels would not be available."""
    known = {
        source: [problem.known.index(name) for name in data.classes.of_source(dataset.domains[source])]
        for source in problem.sources
    }
    draws = generator(trial, "label noise")
    train, validation = (
        mislabelled(samples, data.label_noise or 0.0, known, draws) for samples in (problem.train, problem.validation)
    )
    return replace(problem, train=train, validation=validation)


def _with_shots(problem: Problem, shots: int, trial: int) -> Problem:
    """Keep `shots` images per class and source domain, for training and for validation."""
    draws = generator(trial, "shots")
    train, validation = (draw_shots(samples, shots, draws) for samples in (problem.train, problem.validation))
    return replace(problem, train=train, validation=validation)


def fingerprint(plan: Plan, dataset: Dataset) -> str:
    """Return a hash of the images and of everything else in the data that affects the result."""
    axes = sorted(plan.config.tasks.axes or ())
    used = [dataset.hash, *(f"{axis}={dataset.attributes[axis].tolist()}" for axis in axes)]
    used += [str(dataset.parts)] if plan.config.data.validation == "official" else []
    return dataset.hash if len(used) == 1 else hashlib.sha256("\0".join(used).encode()).hexdigest()
