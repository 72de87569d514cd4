"""From a resolved configuration to what is trained, with its images."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from medic import distributed
from medic.data import Dataset, Images, Problem
from medic.data.cache import cache_directory
from medic.errors import MedicError
from medic.runs.frozen import frozen_features, weights_identity
from medic.runs.resolve import Resolved
from medic.models import Backbone, Classifier, Ensemble, Preprocessing, assemble, create_backbone
from medic.modes import statistics_kept
from medic.objectives import Setup
from medic.training import Trainer, derive, generator


def make_backbones(plan: Resolved) -> list[Backbone]:
    """The backbones of a run, one a network, as they are before training: what no file gives is drawn for each."""
    torch.manual_seed(derive(plan.config.seed, "model"))
    name, weights, size = plan.model.backbone, plan.model.weights, plan.data.size
    return [create_backbone(name, weights, size) for _ in range(plan.model.networks)]


@dataclass(frozen=True)
class Network:
    """A model as it is before training, how it wants its inputs, and the frozen backbone that computes them, if any."""

    model: Classifier | Ensemble
    preprocessing: Preprocessing
    frozen: Backbone | None


def make_network(plan: Resolved) -> Network:
    """Build what is trained; no images are needed for it, so that a mistake is found before they are read."""
    backbones = make_backbones(plan)
    preprocessing = replace(backbones[0].preprocessing, size=plan.data.size)
    frozen = None
    if plan.model.frozen:
        (frozen,) = backbones
        backbones = [replace(frozen, module=nn.Flatten())]
    inputs = torch.zeros(1, len(preprocessing.mean), preprocessing.size, preprocessing.size)
    if plan.model.layer is not None:
        for backbone in backbones:
            plan.model.layer.insert(backbone.module, inputs)
    model = assemble(backbones, len(plan.data.classes.known), plan.model.head)
    if frozen is None:
        _check_pass(plan, model, inputs)
    if plan.model.batch_norm == "frozen":
        model.norms = "frozen"
    if plan.model.batch_norm == "sync":
        if distributed.world() == 1 or plan.model.device.type != "cuda":
            raise MedicError(
                "batch_norm 'sync' needs several processes on GPUs: torchrun --nproc-per-node N -m medic …"
            )
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    # Convolutions are faster with the channels last, on a CPU as on a GPU; trainer and inference feed them so.
    model = model.to(plan.model.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Network(model, preprocessing, frozen)


def _check_pass(plan: Resolved, model: nn.Module, inputs: Tensor) -> None:
    """Refuse passes of one image, where batch norm would have a single value of a channel to learn from."""
    tasks = 1 if plan.model.objective.passes == "task" else min(plan.training.grid.sizes)
    if tasks * plan.training.batch_size > 1 or plan.model.batch_norm == "frozen":
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(), statistics_kept(model):
            model.train()(inputs)
    except ValueError as error:
        if isinstance(error, MedicError):
            raise
        raise MedicError(
            f"batch norm of {plan.model.backbone!r} cannot learn from one image at a time: raise --batch-size"
        ) from error


def make_trainer(
    plan: Resolved,
    dataset: Dataset,
    problem: Problem,
    say: Callable[[str], None] = lambda line: None,
    network: Network | None = None,
) -> Trainer:
    """Build what is trained, unless it is there, and how, from a resolved configuration."""
    seed = plan.config.seed
    if plan.model.compiled:  # so that the next run finds what this one compiled
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "compiled"))
    network = network or make_network(plan)
    model, preprocessing = network.model, network.preprocessing
    images: Images = dataset.images
    if network.frozen is not None:
        identity = weights_identity(plan.model.backbone, plan.model.weights, seed)
        device, precision = plan.model.device, plan.model.precision
        images = frozen_features(dataset, network.frozen, preprocessing, identity, device, precision, say)
    body = [p for p in model.body() if p.requires_grad]
    objective = plan.model.objective
    objective.prepare(model, _setup(plan, problem, images, preprocessing))
    objective.to(plan.model.device)
    plan.training.grid.names = {"domain": dataset.domains, "class": problem.known}
    return Trainer(
        model=model,
        images=images,
        samples=problem.train,
        grid=plan.training.grid,
        strategy=plan.training.strategy,
        objective=objective,
        optimizer=plan.training.optimizer.make(body, model.heads(), objective.own_parameters()),
        schedule=plan.training.schedule,
        recipe=plan.data.recipe,
        preprocessing=preprocessing,
        batch_size=plan.training.batch_size,
        generator=generator(seed, "augment"),
        clip_norm=plan.config.clip_norm,
        frames=None if plan.model.frozen else dataset.frames,
        device=plan.model.device,
        precision=plan.model.precision,
        capture=plan.model.capture,
        compiled=plan.model.compiled,
        advisors=plan.training.advisors,
        say=say,
    )


def _setup(plan: Resolved, problem: Problem, images: Images, preprocessing: Preprocessing) -> Setup:
    """What the objective of a run is prepared for."""
    grid, size = plan.training.grid, plan.training.batch_size
    tasks = max(grid.sizes)
    shape = images.shape[1:2] if plan.model.frozen else (images.shape[1], preprocessing.size, preprocessing.size)
    return Setup(
        tasks,
        tasks * size,
        max(1, len(problem.train) // (grid.tasks * size)),
        tuple(shape),
        preprocessing.mean,
        preprocessing.std,
    )
