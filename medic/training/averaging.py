"""Weight averages of a run: over its last part, exponentially weighted, or SWAD (Cha et al. 2021)."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medic.errors import MedicError, TrainingError
from medic.utils.parts import Part, check_hyperparameters, hyperparameter

ROUNDING = 1e-12
"""Tolerance for rounding errors in 1 - share. In floating point, 1 - 0.9 is less than 1 / 10."""


SHORTEST = 5
"""Minimum number of iterations in a segment of SWAD: a validation can take as long as several iterations."""


class RunningMean:
    """The mean of all added lists of tensors. Before the first list is added, the list passed to the constructor."""

    def __init__(self, tensors: list[Tensor] | None = None, count: int = 0) -> None:
        self.tensors, self.count = tensors or [], count

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor], weight: float | None = None) -> None:
        """Add a list of tensors: mean ← mean + weight (tensors - mean).

        All lists must have the same shapes. By default, every list has the same weight. The first list always replaces
        the initial mean.
        """
        if self.count == 0:
            self.tensors = [tensor.clone() for tensor in tensors]
        else:
            torch._foreach_lerp_(self.tensors, list(tensors), weight or 1 / (self.count + 1))
        self.count += 1

    def copy(self) -> "RunningMean":
        """Return a copy with separate tensors."""
        return RunningMean([tensor.clone() for tensor in self.tensors], self.count)


class WeightAverage:
    """Base class for parameter averages over iterations. Subclasses are dataclasses that declare hyperparameters."""

    converged: bool = True
    """Whether the average is valid. If not, the run is too short for the method."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def update(self, parameters: Sequence[Tensor], progress: float) -> None:
        """Record the parameters after an iteration. `progress` is the completed fraction of the run."""
        raise NotImplementedError

    def close_due(self, iteration: int, iterations: int) -> bool:
        """Return whether `close` is due after an iteration, counted from 1."""
        return False

    def close(self, loss: float, iteration: int) -> None:
        """Record the validation loss, averaged over source domains."""

    def result(self) -> list[Tensor]:
        """Return copies of the current averaged parameters."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state in plain containers. Tensors that change in place are copied."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Restore the state, and move its tensors to `device` if one is passed."""
        raise NotImplementedError


class _OneMean(WeightAverage):
    """Base class for averages that store one copy of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mean = RunningMean()

    def result(self) -> list[Tensor]:
        return self._mean.copy().tensors

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self._mean.copy().tensors, "count": self._mean.count}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        self._mean = RunningMean([tensor.to(device=device) for tensor in state["parameters"]], state["count"]).copy()


@dataclass
class Tail(_OneMean):
    """The mean of the parameters over the last `share` of a run.

    With n iterations, the mean covers the last ⌈share · n⌉: for example, 9 of 10 for a share of 0.9.
    """

    share: float = hyperparameter(0.5, most=1, above=True)

    def update(self, parameters: Sequence[Tensor], progress: float) -> None:
        """Add the parameters to the mean if the last part of the run has started."""
        if progress > 1 - self.share + ROUNDING:
            self._mean.add(parameters)


@dataclass
class Ema(_OneMean):
    """An exponential moving average of the parameters: mean ← d mean + (1 - d) parameters after each iteration.

    d is `decay`, limited to t / (t + 9) after t iterations so that the initial parameters are forgotten quickly.
    """

    decay: float = hyperparameter(0.99, most=1, below=True)

    def update(self, parameters: Sequence[Tensor], progress: float) -> None:
        """Move the mean towards the parameters."""
        count = self._mean.count
        self._mean.add(parameters, max(1 - self.decay, 9 / (count + 9)))


class Segment(NamedTuple):
    """The iterations between two evaluations: mean parameters, final validation loss and last iteration."""

    parameters: list[Tensor]
    loss: float
    end: int


class Valley(NamedTuple):
    """The iteration at which the validation loss stopped falling, and the loss threshold that ends the valley."""

    start: int
    threshold: float


@dataclass
class Swad(WeightAverage):
    """SWAD: the mean of the parameters over the valley of the validation loss.

    The run is divided into `segments` of at least `SHORTEST` iterations. Parameters are averaged over each segment, and
    all segments in the valley have equal weights. The validation loss is measured at the end of each segment.

    The valley starts when the first of `converge` successive segments has the lowest loss. It ends when the loss stays
    above a threshold for `tolerance` segments. The threshold is (1 + `ratio`) times the mean loss of the segments that
    showed convergence.
    """

    converge: int = hyperparameter(3, least=1)
    tolerance: int = hyperparameter(6, least=1)
    ratio: float = hyperparameter(0.3, on={"vlcs": 0.2})
    segments: int = hyperparameter(20, least=1)
    needs = ("validate",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.valley: Valley | None = None
        self.dead = False  # whether the valley has ended, after which iterations have no effect
        self._segment, self._final = RunningMean(), RunningMean()
        # Both queues of the method end with the newest segment, so one queue suffices. Its tensors never change.
        self._queue: deque[Segment] = deque(maxlen=max(self.converge, self.tolerance))

    @property
    def converged(self) -> bool:  # type: ignore[override]
        """Whether the valley has started."""
        return self.valley is not None

    def close_due(self, iteration: int, iterations: int) -> bool:
        """Return whether a segment ends after an iteration, counted from 1, and has not been closed."""
        if self.dead or iteration <= (self._queue[-1].end if self._queue else 0):
            return False
        segments = min(self.segments, max(1, iterations // SHORTEST))
        return iteration * segments // iterations > (iteration - 1) * segments // iterations

    def update(self, parameters: Sequence[Tensor], progress: float = 1.0) -> None:
        """Add the parameters to the current segment. Call this after every iteration."""
        if not self.dead:
            self._segment.add(parameters)

    def close(self, loss: float, iteration: int) -> None:
        """End the segment with a validation loss, averaged over source domains. This may end the valley."""
        if self.dead:
            return
        if self._segment.count == 0:
            raise MedicError(f"SWAD received no parameters by iteration {iteration}: call update() every iteration")
        if not math.isfinite(loss):
            raise TrainingError(f"the validation loss became {loss} at iteration {iteration}")
        self._queue.append(Segment(self._segment.tensors, loss, iteration))
        self._segment = RunningMean()
        if self.valley is None:
            self._find_valley()
        else:
            self._follow_valley(self.valley)

    def result(self) -> list[Tensor]:
        """Return copies of the current averaged parameters, or of the last segment before convergence.

        Unfinished segments are ignored, except for the first one.
        """
        if self.valley is None:
            last = self._queue[-1].parameters if self._queue else self._segment.tensors
            if not last:
                raise MedicError("SWAD requires at least one iteration: call update() before result()")
            return [tensor.clone() for tensor in last]
        final = self._final.copy()
        if not self.dead:
            remaining = self._newest(self.tolerance)[1:]
            while remaining and min(segment.loss for segment in remaining) <= self.valley.threshold:
                final.add(remaining.pop(0).parameters)
        return final.tensors

    def state_dict(self) -> dict[str, Any]:
        """Return the state in plain containers. Each set of parameters is stored once; mutable ones are copied."""
        copies = [segment.parameters for segment in self._queue]
        final = next((i for i, copy in enumerate(copies) if copy is self._final.tensors), len(copies))
        if final == len(copies):
            copies.append(self._final.copy().tensors)
        return {
            "numbers": [self.converge, self.tolerance, self.ratio],
            "copies": copies,
            "losses": [segment.loss for segment in self._queue],
            "ends": [segment.end for segment in self._queue],
            "final": {"copy": final, "count": self._final.count},
            "segment": {"parameters": self._segment.copy().tensors, "count": self._segment.count},
            "valley": None if self.valley is None else list(self.valley),
            "dead": self.dead,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Restore the state, and move its tensors to `device` if one is passed."""
        numbers = [self.converge, self.tolerance, self.ratio]
        if state["numbers"] != numbers:
            raise MedicError(f"SWAD state does not match: expected hyperparameters {numbers}, got {state['numbers']}")

        def placed(tensors: list[Tensor]) -> list[Tensor]:
            return [tensor.to(device=device) for tensor in tensors]

        copies = [placed(copy) for copy in state["copies"]]
        self._queue.clear()
        self._queue.extend(map(Segment, copies, state["losses"], state["ends"]))  # `copies` may end with the final mean
        # Copy tensors that change in place. The final mean does once segments have been added.
        self._segment = RunningMean(placed(state["segment"]["parameters"]), state["segment"]["count"]).copy()
        final = RunningMean(copies[state["final"]["copy"]], state["final"]["count"])
        self._final = final.copy() if final.count else final
        self.valley = None if state["valley"] is None else Valley(*state["valley"])
        self.dead = state["dead"]

    def _newest(self, count: int) -> list[Segment]:
        """Return up to `count` of the newest segments, oldest first."""
        return list(self._queue)[-count:]

    def _find_valley(self) -> None:
        """Start the average if the oldest of the last `converge` segments has the lowest loss."""
        latest = self._newest(self.converge)
        losses = [segment.loss for segment in latest]
        if len(latest) < self.converge or losses[0] > min(losses):
            return
        self.valley = Valley(latest[0].end, (1 + self.ratio) * fmean(losses))
        # With weight 0: this is the result only if the loss rises at once and no segment is added.
        self._final = RunningMean(latest[0].parameters)
        if self.tolerance > self.converge:
            queue = self._newest(self.tolerance)[: self.tolerance - self.converge + 1]
            start = next((i + 1 for i in reversed(range(len(queue))) if queue[i].loss > self.valley.threshold), 0)
            # The method also skips the first segment below the threshold.
            inside = queue[start + 1 :]
        else:
            inside = latest[1 : 1 + self.converge - self.tolerance]
        for segment in inside:
            self._final.add(segment.parameters)

    def _follow_valley(self, valley: Valley) -> None:
        """Continue after convergence: add the oldest segment, or end the valley if the loss has risen."""
        queue = self._newest(self.tolerance)
        if queue[0].end < valley.start:
            return
        if min(segment.loss for segment in queue) > valley.threshold:
            self.dead = True
        else:
            self._final.add(queue[0].parameters)


AVERAGES: dict[str, Part[WeightAverage]] = {
    "tail": Part("tail", Tail), "ema": Part("ema", Ema), "swad": Part("swad", Swad)
}  # fmt: skip
"""Weight averages by their `--averaging` name."""
