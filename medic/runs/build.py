"""Build the trainer from a plan. Only this module creates state, so a plan can be built any number of times."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from medic.config.plan import Plan
from medic.config.sources import is_live
from medic.data import Dataset, Images, Problem, make_augmentation
from medic.data.cache import cache_directory
from medic.data.images import Resident
from medic.errors import MedicError, first_line
from medic.models import Backbone, Classifier, Ensemble, Preprocessing, assemble, create_backbone, is_custom
from medic.models.backbones import synchronise_batch_norm
from medic.models.channels_last import to_channels_last
from medic.models.classifier import Scaling
from medic.models.recompute import recompute_blocks
from medic.models.tuning import tune_backbone
from medic.objectives import Objective, Setup
from medic.runs.optimizer import make_optimizer, rate_factor
from medic.tasks import Grid
from medic.training import Trainer, derive, generator
from medic.training.frozen import FrozenBackbone, identify_backbone
from medic.utils import distributed
from medic.utils.modules import evaluating, statistics_kept

COMPILED = 250_000
"""Minimum number of images for compiling to pay off, provided that a similar network is in the cache."""


@dataclass(frozen=True)
class Network:
    """An untrained model, its preprocessing and, if any, the frozen backbone that computes its inputs."""

    model: Classifier | Ensemble
    preprocessing: Preprocessing
    frozen: Backbone | None


def build_backbones(plan: Plan) -> list[Backbone]:
    """Create the run's backbones, one per network, with pretrained or freshly drawn weights."""
    torch.manual_seed(derive(plan.seed, "model"))
    model = plan.config.model
    return [
        create_backbone(model.backbone, plan.weights, plan.config.data.image_size, model.pool)
        for _ in range(plan.networks)
    ]


def build_network(plan: Plan) -> Network:
    """Build the model. This requires no images, so invalid settings are reported before images are loaded."""
    network, device = _assembled(plan), plan.device
    model = network.model
    if plan.config.model.batch_norm == "frozen":
        model.norms = "frozen"
    if plan.config.model.batch_norm == "sync":
        if distributed.world() == 1 or device.type != "cuda":
            raise MedicError("batch_norm 'sync' requires several GPU processes: start them with torchrun -m medic")
        model = synchronise_batch_norm(model)
    return replace(network, model=to_channels_last(model, device))


def check_network(plan: Plan) -> Network:
    """Build the model on the CPU to check that it accepts the weights, image size and batch size."""
    with torch.random.fork_rng(devices=[]):
        return _assembled(plan)


def check_objective(plan: Plan, network: Network, dataset: Dataset, problem: Problem) -> None:
    """Prepare the objective to check that it supports the network. With a frozen backbone, all objectives do."""
    if network.frozen is None:
        with torch.random.fork_rng(devices=[]):
            build_objective(plan).prepare(network.model, _setup(plan, problem, dataset.images, network.preprocessing))


def _assembled(plan: Plan) -> Network:
    """Build the model on the CPU, and check it with a forward pass."""
    backbones = build_backbones(plan)
    preprocessing = backbones[0].preprocessing
    frozen = None
    if plan.config.model.head_alone:
        (frozen,) = backbones
        backbones = [replace(frozen, module=nn.Flatten())]
    else:
        for backbone in backbones:
            tune_backbone(backbone.module, plan.config.model.tuning)
            if plan.config.execution.recompute:
                recompute_blocks(backbone.module)
    inputs = torch.zeros(1, len(preprocessing.mean), preprocessing.size, preprocessing.size)
    if plan.parts.layer is not None:
        layer = plan.parts.layer.build()
        for backbone in backbones:
            layer.insert(backbone.module, inputs)
    model = assemble(backbones, len(plan.config.data.classes.known), plan.config.model.head, frozen is not None)
    _check_images(plan, model if frozen is None else frozen.module, preprocessing)
    if frozen is None:
        _check_pass(plan, model, inputs)
    return Network(model, preprocessing, frozen)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore torch's global random generators on exit, on the CPU and the current GPU."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _check_images(plan: Plan, module: nn.Module, preprocessing: Preprocessing) -> None:
    """Raise an error if a network does not accept the image size or number of channels."""
    shape = (plan.benchmark.channels, preprocessing.size, preprocessing.size)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(module):
            module(preprocessing(torch.zeros(1, *shape)))
    except MedicError:
        raise
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        taken = f"backbone {plan.config.model.backbone!r} does not accept images of size {' × '.join(map(str, shape))}"
        raise MedicError(f"{taken} ({first_line(error)}): choose another --image-size or --backbone") from error


def _check_pass(plan: Plan, model: nn.Module, inputs: Tensor) -> None:
    """Raise an error if batch norm would have to estimate statistics from a single image."""
    tasks = 1 if plan.method.forward == "task" else min(plan.grid.sizes)
    if tasks * plan.batch_size > 1 or plan.config.model.batch_norm == "frozen":
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), statistics_kept(model):
            model.train()(inputs)
    except ValueError as error:
        if isinstance(error, MedicError):
            raise
        raise MedicError(
            f"batch norm in {plan.config.model.backbone!r} requires more than one image per batch: raise --batch-size"
        ) from error


def compiles(plan: Plan, device: torch.device) -> bool:
    """Return whether to compile the network; never with second derivatives or hooks inside the network."""
    if plan.parts.inspecting or plan.config.model.head_alone or plan.parts.second_order:
        return False
    if plan.config.execution.recompute:
        return False
    images = plan.config.optim.iterations * plan.batch_size * plan.grid.tasks
    auto = device.type == "cuda" and images >= COMPILED
    return plan.config.execution.compile == "on" or (plan.config.execution.compile == "auto" and auto)


def build_objective(plan: Plan) -> Objective:
    """Build a run's objective."""
    objective = plan.config.objective
    return plan.parts.build_objective(scale=objective.ova_scale, floor=objective.ova_floor)


def build_trainer(plan: Plan, dataset: Dataset, problem: Problem, network: Network | None = None) -> Trainer:
    """Build a trainer and, unless `network` is passed, its model."""
    device = plan.device
    precision, compiled = plan.precision, compiles(plan, device)
    if compiled:  # so that later runs can reuse the compiled network
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "compiled"))
    network = network or build_network(plan)
    model, preprocessing, images = network.model, network.preprocessing, dataset.images
    if network.frozen is not None:
        images = _compute_features(plan, dataset, network.frozen)
        _fit_scaling(model, images, problem)
    objective = build_objective(plan)
    objective.prepare(model, _setup(plan, problem, images, preprocessing))
    objective.to(device)
    sampler = None if plan.parts.sampler is None else plan.parts.sampler.build()
    grid = Grid(plan.grid, seed=derive(plan.seed, "tasks"), sampler=sampler)
    grid.names = {"domain": dataset.domains, "class": problem.known}
    return Trainer(
        model=model,
        images=images,
        samples=problem.train,
        grid=grid,
        strategy=plan.parts.strategy.build(),
        objective=objective,
        optimizer=make_optimizer(plan.config.optim, model, objective.parameter_groups()),
        schedule=partial(rate_factor, plan.config.optim),
        augmentation=make_augmentation(plan.config.data.augment),
        preprocessing=preprocessing,
        batch_size=plan.batch_size,
        generator=generator(plan.seed, "augment"),
        clip_norm=plan.config.optim.clip_norm or None,
        head_first=plan.config.optim.head_first,
        frames=None if plan.config.model.head_alone else dataset.frames,
        device=device,
        precision=precision,
        capture=plan.config.execution.capture,
        compiled=compiled,
        recompute=plan.config.execution.recompute,
        callbacks=[callback.build() for callback in plan.parts.callbacks],
    )


def _compute_features(plan: Plan, dataset: Dataset, backbone: Backbone) -> Resident:
    """Return the frozen backbone's features, which replace the images."""
    model, data = plan.config.model, plan.config.data
    code = sorted(plugin.sha256 for plugin in plan.plugins) if is_custom(model.backbone) else ()
    identity = identify_backbone(model.backbone, model.pool, plan.weights, plan.seed, code)
    frozen = FrozenBackbone(backbone, identity, plan.device, plan.precision, cached=not is_live(model.backbone))
    return frozen.features(dataset, make_augmentation(data.augment), data.train_views)


def _fit_scaling(model: nn.Module, features: Resident, problem: Problem) -> None:
    """Scale the head's input features to zero mean and an average variance of 1 on the training images."""
    positions = problem.train.indices
    for part in model.modules():
        if isinstance(part, Scaling):
            part.fit(features.gather(positions, features.device).flatten(1))


def _setup(plan: Plan, problem: Problem, images: Images, preprocessing: Preprocessing) -> Setup:
    """Return the training setup that the objective prepares for."""
    grid, size = plan.grid, plan.batch_size
    tasks = max(grid.sizes)
    side = preprocessing.size
    shape = images.shape[1:2] if plan.config.model.head_alone else (images.shape[1], side, side)
    epoch = max(1, len(problem.train) // (grid.tasks * size))
    return Setup(
        tasks=tasks,
        images=tasks * size,
        epoch=epoch,
        domains=1 + int(problem.train.domain.max()),
        shape=tuple(shape),
        mean=preprocessing.mean,
        std=preprocessing.std,
    )
