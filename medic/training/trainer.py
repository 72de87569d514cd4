"""The body of the training loop, for any method."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from medic.data import Augmentation, Images, Samples
from medic.errors import MedicError, TrainingError
from medic.models import Classifier, Ensemble, Preprocessing
from medic.objectives import Objective
from medic.strategies import Strategy, Update
from medic.strategies.optimizers import reset_optimizer, set_rates
from medic.tasks import Cells, Grid, Task
from medic.training.callbacks.base import Callback
from medic.training.capture import Capture, Captured
from medic.training.inference import Inference
from medic.training.iteration import Batch, Iteration
from medic.training.precision import Bf16Weights, Precision, arithmetic
from medic.training.updater import Updater
from medic.utils import distributed
from medic.utils.modules import statistics_estimated

logger = logging.getLogger(__name__)


class _InFlight(NamedTuple):
    """An iteration that the device may still be computing, with its results."""

    iteration: int
    risks: Tensor
    summary: Tensor | None
    done: torch.cuda.Event | None


def find_trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a model."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@dataclass
class Trainer:
    """A model in training, with everything that the next iteration depends on.

    The trainer holds the labels of training samples only. On a GPU, the host runs ahead of the device by as many
    iterations as the sampler allows. This does not change the result.
    """

    model: Classifier | Ensemble
    images: Images
    samples: Samples
    grid: Grid
    strategy: Strategy
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    """Maps an iteration, counted from 0, to a factor for the learning rates."""
    augmentation: Augmentation
    preprocessing: Preprocessing
    batch_size: int
    generator: torch.Generator
    clip_norm: float | None = None
    head_first: int = 0
    """Number of initial iterations that train only the head."""
    frames: Tensor | None = None
    """Original heights and widths, of shape (N, 2), of images that were resized to a square."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    capture: Capture = "auto"
    compiled: bool = False
    recompute: bool = False
    """Whether the backward pass recomputes the activations of network blocks, to save memory."""
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        self.iteration = 0
        self.domains = 1 + int(self.samples.domain.max())
        for callback in self.callbacks:
            callback.start(self)
        self.relabel(self.samples)
        self.trained = find_trained(self.model)
        """Parameters that the run trains at any time."""
        self._body = [parameter for parameter in self.model.body() if parameter.requires_grad]
        self._frozen = False
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._drawn: deque[list[list[Task]]] = deque()
        self._in_flight: deque[_InFlight] = deque()
        self._losses: list[float] = []
        self._called_at = -1
        self._restarts = self.objective.restart_iterations(len(self.grid.sizes))
        self.updater = Updater(
            model=self.model,
            network=self._network(),
            strategy=self.strategy,
            objective=self.objective,
            optimizer=self.optimizer,
            grid=self.grid,
            domains=self.domains,
            device=self.device,
            precision=self.precision,
            clip_norm=self.clip_norm,
        )
        inputs = (self.images, self.augmentation, self.preprocessing)
        self._iteration = Iteration(self.updater, *inputs, self.probes, self.compiled)
        self._run: Callable[[Batch], Update] = self._iteration
        if distributed.world() > 1:
            self._check_distributed()
        elif self.device.type == "cuda":
            self._run = Captured(self._iteration, self.capture)

    def _network(self) -> nn.Module:
        """Return the network used for training. Compiling it takes about half a minute."""
        # A recomputed block would not see the bf16 copies of its weights.
        if self.precision == "bf16" and isinstance(self.model, Classifier) and not self.recompute:
            return Bf16Weights(self.model, self.model.backbone, self.compiled)
        return cast(nn.Module, torch.compile(self.model, dynamic=False)) if self.compiled else self.model

    @property
    def probes(self) -> bool:
        """Whether every iteration ends with a forward pass over fresh images for the sampler."""
        return self.grid.spec.classes is not None and self.grid.sampler.probes

    @property
    def captured(self) -> bool:
        """Whether iterations are replayed as CUDA graphs. Becomes False if a capture fails."""
        return isinstance(self._run, Captured) and self._run.mode != "off"

    def _check_distributed(self) -> None:
        """Raise an error if a part does not support distributed training."""
        if self.batch_size < distributed.world():
            raise MedicError(
                f"batch_size must be at least the number of processes, {distributed.world()}, got {self.batch_size}: "
                "raise --batch-size"
            )
        whole = None if type(self.objective) is Objective else self.objective
        for part in (*self.objective.penalties, self.objective.change, whole):
            if part is not None:
                name = getattr(part, "__name__", type(part).__name__)
                raise MedicError(
                    f"{name} needs all samples of a task, so it does not support distributed training: use one process"
                )
        for callback in self.callbacks:
            if callback.single_process is not None:
                raise MedicError(
                    f"{callback.single_process}, so it does not support distributed training: use one process"
                )
        if self.capture == "on":
            raise MedicError("capture 'on' does not support distributed training: use --capture auto")
        logger.info("training on %d processes, which share every task; CUDA graph capture is off", distributed.world())

    def inference(self, compiled: bool = False, views: int = 1) -> Inference:
        """Return an `Inference` for the model in training, with the same precision."""
        on_gpu = self.device.type == "cuda" and self.images.device == self.device
        captured = on_gpu and self.capture != "off"
        model, images, device = self.model, self.images, self.device
        return Inference(model, images, self.preprocessing, device, self.precision, captured, compiled, views)

    @torch.no_grad()
    def refresh_statistics(self, iterations: int) -> None:
        """Re-estimate batch-norm statistics for averaged weights, as means over this number of iterations."""
        self.model.train()
        with statistics_estimated(self.model) as tracked:
            if not tracked:
                return
            for _ in range(iterations):
                steps, _ = self._iteration.load(self._batch(self._next()).to(self.device))
                with arithmetic(self.precision, self.device):
                    for step in steps:
                        self.objective.outputs(self.model, step)
        distributed.broadcast(list(self.model.buffers()))

    def relabel(self, samples: Samples) -> None:
        """Replace the training samples, whose labels may have changed, starting with the next draw."""
        self.samples = samples
        self.cells: Cells = self.grid.index(samples.label, samples.domain, **samples.attributes)

    def step(self) -> list[float]:
        """Start one iteration, and return the mean task risk of each iteration that finished since the last call."""
        self._freeze(self.iteration < self.head_first)
        batch = self._batch(self._next())
        if self.iteration in self._restarts:
            reset_optimizer(self.optimizer)
        set_rates(self.optimizer, self.rates, self.schedule(self.iteration))
        update = self._run(batch)
        self.iteration += 1
        self._in_flight.append(self._launched(update))
        self._collect(self.grid.sampler.ahead if self.device.type == "cuda" else 0)
        return self._take_losses()

    def _freeze(self, frozen: bool) -> None:
        """Freeze or unfreeze the backbone. A change discards captured iterations."""
        if frozen == self._frozen:
            return
        self._frozen = frozen
        for parameter in self._body:
            parameter.requires_grad_(not frozen)
            parameter.grad = None
        if isinstance(self._run, Captured):
            self._run.reset()

    def wait(self) -> list[float]:
        """Wait for the device, and return the mean task risk of each iteration that finished since the last call.

        In distributed training, all processes then use the batch-norm statistics of the first process.
        """
        self._collect(0)
        distributed.broadcast(list(self.model.buffers()))
        return self._take_losses()

    def _take_losses(self) -> list[float]:
        losses, self._losses = self._losses, []
        return losses

    def _next(self) -> list[list[Task]]:
        """Return the tasks for the next iteration. Draws ahead so that images can be prefetched."""
        sampler = self.grid.sampler
        if not self._drawn and self._called_at != self.iteration:  # refresh_statistics draws several times
            self._called_at = self.iteration
            for callback in self.callbacks:
                if self.iteration % callback.every == 0:
                    self._collect(0)
                    callback.on_iteration(self)
        free = min(
            (callback.every - self.iteration % callback.every - 1 for callback in self.callbacks), default=sampler.ahead
        )
        while len(self._drawn) <= min(self.images.ahead, sampler.ahead, free):
            self._collect(sampler.ahead - len(self._drawn))
            steps = self.grid.draw(self.cells, self.batch_size, ahead=len(self._drawn) + len(self._in_flight))
            if self.probes:
                steps = [*steps, [self.grid.probe(self.cells, self.batch_size)]]
            self.images.expect(self.samples.indices[torch.cat([task.indices for step in steps for task in step])])
            self._drawn.append(steps)
        return self._drawn.popleft()

    def _batch(self, steps: list[list[Task]]) -> Batch:
        """Look up the labels of all samples in the tasks, and draw their augmentation.

        Every process draws for all samples and keeps its share of each task.
        """
        totals = tuple(tuple(len(task.indices) for task in step) for step in steps)
        sizes = tuple(tuple(len(range(total)[distributed.share(total)]) for total in step) for step in totals)
        drawn = torch.cat([task.indices for step in steps for task in step])
        frames = None if self.frames is None else self.frames[self.samples.indices[drawn]]
        draws = self.augmentation.draw(len(drawn), *self.images.shape[2:], self.generator, frames)
        rows = torch.arange(len(drawn)).split([total for step in totals for total in step])
        mine = torch.cat([task[distributed.share(len(task))] for task in rows])
        chosen = drawn[mine]
        positions = self.images.draw_views(self.samples.indices[drawn], self.generator)[mine]
        y = self.samples.label[chosen]
        labels = {"domain": self.samples.domain, **self.samples.attributes}
        attributes = {name: values[chosen] for name, values in labels.items()}
        on_device = self.images.device == self.device
        pixels = None if on_device else self.images.gather(positions, torch.device("cpu"))
        return Batch(positions, draws[mine], y, attributes, sizes, totals, pixels)

    def _launched(self, update: Update) -> _InFlight:
        """Copy the results of an iteration to the host without synchronising."""
        risks = update.risks.to("cpu", non_blocking=True)
        summary = None if update.summary is None else update.summary.to("cpu", non_blocking=True)
        done = torch.cuda.Event() if self.device.type == "cuda" else None
        if done is not None:
            done.record()
        return _InFlight(self.iteration, risks, summary, done)

    def _collect(self, leave: int) -> None:
        """Collect results until at most `leave` iterations are in flight."""
        while len(self._in_flight) > leave:
            pending = self._in_flight.popleft()
            if pending.done is not None:
                pending.done.synchronize()
            loss = float(pending.risks.mean())
            if not bool(pending.risks.isfinite().all()):
                self._in_flight.clear()
                raise TrainingError(f"the loss became {loss} at iteration {pending.iteration}")
            self._losses.append(loss)
            if pending.summary is not None:
                self.grid.sampler.observe(pending.summary)

    def check_finite(self) -> None:
        """Raise an error if a weight is not finite, so that no checkpoint contains it."""
        tensors = (tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point())
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise TrainingError(f"a weight became infinite or NaN at iteration {self.iteration}")

    def state_dict(self) -> dict[str, Any]:
        """Return the complete training state. Call `wait()` first."""
        return {
            "iteration": self.iteration,
            **self.updater.state_dict(),
            "grid": self.grid.state_dict(),
            "cells": self.cells.state_dict(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
            "drawn": [[[tuple(task) for task in step] for step in steps] for steps in self._drawn],
            "generator": self.generator.get_state(),
            "global_generators": self._global_generators(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the complete training state."""
        self.iteration = state["iteration"]
        self.updater.load_state_dict(state)
        for callback, own in zip(self.callbacks, state["callbacks"], strict=True):
            callback.load_state_dict(self, own)
        self.grid.load_state_dict(state["grid"])
        self.cells.load_state_dict(state["cells"])
        self._drawn = deque([[[Task(*task) for task in step] for step in steps] for steps in state["drawn"]])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["global_generators"][0])
        if self.device.type == "cuda" and len(state["global_generators"]) > 1:
            torch.cuda.set_rng_state(state["global_generators"][1], self.device)

    def _global_generators(self) -> list[Tensor]:
        """Return the states of torch's global generators, which dropout uses, for the CPU and for the GPU if used."""
        on_gpu = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *on_gpu]
