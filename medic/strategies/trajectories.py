"""Several trajectories from the same weights, averaged: MVDG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from medic.errors import MedicError, check_range
from medic.objectives import Risk
from medic.strategies.base import (
    InnerLoop,
    Objective,
    Update,
    accumulate,
    buffers,
    summarise,
    trainable,
    weights_restored,
)
from medic.strategies.inner import Kept, first_order, make_optimizer, stateful
from medic.tasks import Step


@dataclass
class Trajectories(InnerLoop):
    """MVDG (Zhang et al. 2022): sequences of steps, each from θ with a fresh Adam; go to the mean of their ends.

    The steps of an iteration are dealt to `count` trajectories, in order. `p.grad` is θ minus the mean of where they
    end, so that an outer SGD of rate ε makes θ + ε (mean φ - θ). `lr` is Adam's.
    """

    count: int = 3
    decay: float = 5e-4
    """Adam's weight decay."""
    persist_inner_state: int = 0
    """1 for one Adam that every trajectory goes on with, in this iteration and the next, instead of fresh ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("MVDG", 1, count=self.count)
        check_range("MVDG", decay=self.decay)
        check_range("MVDG", most=1, persist_inner_state=self.persist_inner_state)
        self._kept = Kept()

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with θ - mean_t φ_t."""
        self.check_steps(len(steps))
        parameters = list(trainable(model, objective).values())
        length = len(steps) // self.count
        risks: list[Risk] = []
        with buffers(model, self.bn_buffers, self.bn_rate):
            for start in range(0, len(steps), length):
                make = self._kept.get if self.persist_inner_state else make_optimizer
                adam = make("adam", parameters, self.lr, self.decay)
                with weights_restored(parameters) as before:
                    part = steps[start : start + length]
                    reached, found = first_order(model, part, objective, [1.0] * length, stateful(adam), to_end=True)
                    went = torch._foreach_sub(before, [parameter.detach() for parameter in parameters])
                gone = [d if g is not None else None for d, g in zip(went, reached, strict=True)]
                accumulate(parameters, gone, 1 / self.count)
                risks += found
        return summarise(steps, risks)

    def check_steps(self, count: int) -> None:
        """Every trajectory has as many steps."""
        if count % self.count:
            raise MedicError(
                f"{count} steps cannot be dealt evenly to {self.count} trajectories: "
                "use a --repeat of a multiple of --hparams count"
            )

    def share(self, rate: float, tasks: int) -> float:
        """The outer rate itself: `p.grad` is how far the weights went."""
        return min(1.0, rate)

    def state_dict(self) -> dict[str, Any]:
        """The state of the inner Adam, if it is kept."""
        return {"inner": self._kept.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off."""
        self._kept.load_state_dict(state["inner"])
