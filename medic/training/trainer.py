"""The one training loop's body: an iteration, for any method."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from medic.data import Images, Recipe, Samples
from medic.errors import TrainingError
from medic.models import Preprocessing
from medic.strategies import Strategy
from medic.strategies.base import Objective
from medic.tasks import Cells, Grid, Step, Task, gather
from medic.training.optim import RateSchedule


@dataclass
class Trainer:
    """A model in training, with all that its next iteration depends on.

    It is given the training samples and nothing else of the data's labels.
    """

    model: nn.Module
    images: Images
    samples: Samples
    grid: Grid
    strategy: Strategy
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: RateSchedule
    recipe: Recipe
    preprocessing: Preprocessing
    batch_size: int
    generator: torch.Generator
    clip_norm: float | None = None
    frames: Tensor | None = None
    """The heights and widths (N, 2) of the images before they were squashed, if they were."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.iteration = 0
        self._drawn: deque[list[list[Task]]] = deque()
        self.cells: Cells = self.grid.index(self.samples.label, self.samples.domain, **self.samples.attributes)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> float:
        """Do one iteration; returns the mean risk of its tasks."""
        steps = [self._load(tasks) for tasks in self._next()]
        factor = self.schedule.factor(self.iteration)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad()
        update = self.strategy(self.model, steps, self.objective)
        loss = float(update.loss)
        if not torch.isfinite(update.risks).all():
            raise TrainingError(f"the loss became {loss} at iteration {self.iteration + 1}")
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        self.grid.observe(update.logits, update.y, update.domain)
        self.iteration += 1
        return loss

    def _next(self) -> list[list[Task]]:
        """The tasks of the next iteration, drawn as early as it helps the images to be there."""
        while len(self._drawn) <= self.images.ahead:
            steps = self.grid.draw(self.cells, self.batch_size, ahead=len(self._drawn))
            self.images.expect(self.samples.indices[torch.cat([task.indices for step in steps for task in step])])
            self._drawn.append(steps)
        return self._drawn.popleft()

    def _load(self, tasks: list[Task]) -> Step:
        """Gather, augment and normalise the images of a step."""
        labels = {"domain": self.samples.domain, **self.samples.attributes}
        rows = gather(tasks, self.samples.indices, self.samples.label, labels)
        pixels = self.images.gather(rows.x, self.device).float() / 255
        frames = None if self.frames is None else self.frames[rows.x]
        varied = self.recipe(pixels, self.generator, self.preprocessing.size, frames)
        inputs = self.preprocessing(varied).contiguous(memory_format=torch.channels_last)
        attributes = {name: labels.to(self.device) for name, labels in rows.attributes.items()}
        return Step(inputs, rows.y.to(self.device), rows.sizes, attributes)

    def check_finite(self) -> None:
        """Refuse weights that are not numbers, so that no checkpoint holds them."""
        tensors = (tensor for tensor in self.model.state_dict().values() if tensor.is_floating_point())
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise TrainingError(f"a weight became infinite or not a number at iteration {self.iteration}")

    def state_dict(self) -> dict[str, Any]:
        """Everything the rest of the run depends on."""
        return {
            "iteration": self.iteration,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "strategy": self.strategy.state_dict(),
            "grid": self.grid.state_dict(),
            "cells": self.cells.state_dict(),
            "drawn": [[[tuple(task) for task in step] for step in steps] for steps in self._drawn],
            "generator": self.generator.get_state(),
            "global_generators": self._global_generators(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""
        self.iteration = state["iteration"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.strategy.load_state_dict(state["strategy"])
        self.grid.load_state_dict(state["grid"])
        self.cells.load_state_dict(state["cells"])
        self._drawn = deque([[[Task(*task) for task in step] for step in steps] for steps in state["drawn"]])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["global_generators"][0])
        if self.device.type == "cuda" and len(state["global_generators"]) > 1:
            torch.cuda.set_rng_state(state["global_generators"][1], self.device)

    def _global_generators(self) -> list[Tensor]:
        """Torch's own generators, which dropout and the like draw from: the CPU's, and a GPU's where there is one."""
        on_gpu = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        return [torch.get_rng_state(), *on_gpu]
