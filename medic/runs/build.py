"""From a recipe to a trainer: the only place that makes state, and a recipe can be built any number of times."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from medic.config.recipe import Recipe
from medic.data import Dataset, Images, Problem
from medic.data.cache import cache_directory
from medic.errors import MedicError, first_line
from medic.models import Backbone, Classifier, Ensemble, Preprocessing, assemble, create_backbone
from medic.objectives import Objective, Setup
from medic.tasks import Grid
from medic.training import Trainer, derive, generator
from medic.training.frozen import frozen_features, weights_identity
from medic.utils import distributed
from medic.utils.modules import evaluating, statistics_kept


@dataclass(frozen=True)
class Network:
    """A model before training, its preprocessing, and the frozen backbone that computes its inputs, if any."""

    model: Classifier | Ensemble
    preprocessing: Preprocessing
    frozen: Backbone | None


def build_backbones(recipe: Recipe) -> list[Backbone]:
    """Make the backbones of a run, one per network; weights that no file gives are drawn for each."""
    assert recipe.model.backbone is not None
    torch.manual_seed(derive(recipe.seed, "model"))
    return [
        create_backbone(recipe.model.backbone, recipe.weights, recipe.data.image_size) for _ in range(recipe.networks)
    ]


def build_network(recipe: Recipe) -> Network:
    """Make the model. It needs no images, so that a mistake is found before they are read."""
    network, device = _assembled(recipe), recipe.execution.pick_device()
    model = network.model
    if recipe.model.batch_norm == "frozen":
        model.norms = "frozen"
    if recipe.model.batch_norm == "sync":
        if distributed.world() == 1 or device.type != "cuda":
            raise MedicError("batch_norm 'sync' needs several processes on GPUs: use torchrun -m medic")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    # Convolutions are faster with channels last, on a CPU and on a GPU; trainer and inference use this format.
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return replace(network, model=model)


def check_network(recipe: Recipe) -> None:
    """Refuse weights, an image size or a batch size that the network does not take; make it on the CPU to find out."""
    with torch.random.fork_rng(devices=[]):
        _assembled(recipe)


def _assembled(recipe: Recipe) -> Network:
    """Make the model on the CPU, and try it."""
    assert recipe.model.head is not None
    backbones = build_backbones(recipe)
    preprocessing = backbones[0].preprocessing
    frozen = None
    if recipe.model.freeze:
        (frozen,) = backbones
        backbones = [replace(frozen, module=nn.Flatten())]
    inputs = torch.zeros(1, len(preprocessing.mean), preprocessing.size, preprocessing.size)
    if recipe.parts.layer is not None:
        layer = recipe.parts.layer.build()
        for backbone in backbones:
            layer.insert(backbone.module, inputs)
    model = assemble(backbones, len(recipe.data.classes.known), recipe.model.head)
    _check_images(recipe, model if frozen is None else frozen.module, preprocessing)
    if frozen is None:
        _check_pass(recipe, model, inputs)
    return Network(model, preprocessing, frozen)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global random generators of torch as they were, on the CPU and on the GPU in use."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _check_images(recipe: Recipe, module: nn.Module, preprocessing: Preprocessing) -> None:
    """Refuse images of a size or with channels that a network does not take."""
    shape = (recipe.data.benchmark.channels, preprocessing.size, preprocessing.size)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(module):
            module(preprocessing(torch.zeros(1, *shape)))
    except MedicError:
        raise
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        taken = f"backbone {recipe.model.backbone!r} does not take images of {' × '.join(map(str, shape))}"
        raise MedicError(f"{taken} ({first_line(error)}): choose another --image-size or --backbone") from error


def _check_pass(recipe: Recipe, model: nn.Module, inputs: Tensor) -> None:
    """Refuse forward passes of one image, from which batch norm cannot take statistics."""
    tasks = 1 if recipe.method.forward == "task" else min(recipe.grid.sizes)
    if tasks * recipe.batch_size > 1 or recipe.model.batch_norm == "frozen":
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), statistics_kept(model):
            model.train()(inputs)
    except ValueError as error:
        if isinstance(error, MedicError):
            raise
        raise MedicError(
            f"batch norm of {recipe.model.backbone!r} cannot learn from one image at a time: raise --batch-size"
        ) from error


def build_objective(recipe: Recipe) -> Objective:
    """Make the objective with its losses, penalty and change."""
    parts = recipe.parts
    ova = {"scale": recipe.objective.ova_scale, "floor": recipe.objective.ova_floor}
    return parts.objective.build(
        losses=[loss.build(**(ova if loss.name == "ova" else {})) for loss in parts.losses],
        penalties=[] if parts.penalty is None else [parts.penalty.build()],
        change=None if parts.change is None else parts.change.build(),
    )


def build_trainer(recipe: Recipe, dataset: Dataset, problem: Problem, network: Network | None = None) -> Trainer:
    """Make a trainer, and its model unless it is given."""
    device = recipe.execution.pick_device()
    precision, compiled = recipe.execution.pick_precision(device), recipe.compiles(device)
    if compiled:  # later runs then find the compiled network
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "compiled"))
    network = network or build_network(recipe)
    model, preprocessing, images = network.model, network.preprocessing, dataset.images
    if network.frozen is not None:
        identity = weights_identity(str(recipe.model.backbone), recipe.weights, recipe.seed)
        images = frozen_features(dataset, network.frozen, preprocessing, identity, device, precision)
    objective = build_objective(recipe)
    objective.prepare(model, _setup(recipe, problem, images, preprocessing))
    objective.to(device)
    sampler = None if recipe.parts.sampler is None else recipe.parts.sampler.build()
    grid = Grid(recipe.grid, seed=derive(recipe.seed, "tasks"), sampler=sampler)
    grid.names = {"domain": dataset.domains, "class": problem.known}
    body = [parameter for parameter in model.body() if parameter.requires_grad]
    return Trainer(
        model=model,
        images=images,
        samples=problem.train,
        grid=grid,
        strategy=recipe.parts.strategy.build(),
        objective=objective,
        optimizer=recipe.optim.make_optimizer(body, model.heads(), objective.parameter_groups()),
        schedule=recipe.optim.rate_factor,
        augmentation=recipe.data.augmentation,
        preprocessing=preprocessing,
        batch_size=recipe.batch_size,
        generator=generator(recipe.seed, "augment"),
        clip_norm=recipe.optim.clip_norm,
        frames=None if recipe.model.freeze else dataset.frames,
        device=device,
        precision=precision,
        capture=recipe.execution.capture,  # type: ignore[arg-type]
        compiled=compiled,
        callbacks=[callback.build() for callback in recipe.parts.callbacks],
    )


def _setup(recipe: Recipe, problem: Problem, images: Images, preprocessing: Preprocessing) -> Setup:
    """Return the training that the objective is prepared for."""
    grid, size = recipe.grid, recipe.batch_size
    tasks = max(grid.sizes)
    side = preprocessing.size
    shape = images.shape[1:2] if recipe.model.freeze else (images.shape[1], side, side)
    epoch = max(1, len(problem.train) // (grid.tasks * size))
    return Setup(tasks, tasks * size, epoch, tuple(shape), preprocessing.mean, preprocessing.std)
