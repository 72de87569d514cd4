"""MLDG and MEDIC: a meta-training step followed by a meta-test step."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from medic.errors import MedicError
from medic.objectives import Risk
from medic.strategies.base import (
    Gradients,
    InnerLoop,
    Measured,
    Objective,
    Update,
    accumulate,
    buffers,
    count_tasks,
    measured_call,
    summarise,
    weights_restored,
)
from medic.strategies.inner import InnerOptimizer, check_inner, first_order, make_optimizer, second_order, sgd, stateful
from medic.tasks import Step
from medic.utils.parts import hyperparameter


@dataclass
class TwoStep(InnerLoop):
    """A meta-training step on risk A and a meta-test step on risk B, to minimise A(θ) + β B(θ - α A'(θ)).

    With more than two steps, the last `meta_test` steps are meta-test steps. Each earlier step is paired with one of
    them in turn, as in DomainBed's MLDG. The two steps of a pair may differ in size, because each risk is a mean over
    the samples of its task. `inner="adam"` takes the inner step with a fresh Adam, which moves every coordinate by
    `lr`. Without `second_order`, gradients do not flow through the inner step.
    """

    beta: float = hyperparameter(1.0)
    second_order: bool = False
    inner: InnerOptimizer = "sgd"
    meta_test: int = hyperparameter(1, least=1)
    decay: float | None = hyperparameter(None)
    """Weight decay for the inner Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.decay)
        if self.second_order and self.inner != "sgd":
            raise MedicError("second_order=True requires inner='sgd'")

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with the gradients of all pairs, summed and divided by the number of tasks, t."""
        measured = measured_call(model, steps, objective)
        self.check_steps(len(steps))
        train, test = steps[: -self.meta_test], steps[-self.meta_test :]
        seen: list[Step] = []
        risks: list[Risk] = []
        with buffers(model, self.bn_buffers, self.bn_rate):
            for pair in zip(train, itertools.cycle(test), strict=False):
                gradients, pair_risks = self._pair(measured, pair)
                accumulate(measured.adapted, gradients, 1 / count_tasks(steps))
                seen += pair
                risks += pair_risks
        return summarise(seen, risks)

    def check_steps(self, count: int) -> None:
        """Raise an error if no step is left for meta-training."""
        if count <= self.meta_test:
            raise MedicError(
                f"expected at least {self.meta_test + 1} steps ({self.meta_test} for meta-testing, the others for "
                f"meta-training), got {count}: use "
                + ("--hparams meta_test=1, " if self.meta_test > 1 and count > 1 else "")
                + "more domains, more splits, --repeat, or another method"
            )

    def _pair(self, measured: Measured, pair: tuple[Step, Step]) -> tuple[Gradients, list[Risk]]:
        weights = (1.0, self.beta)
        if self.second_order:
            return second_order(measured, pair, weights, self.lr)
        if self.inner == "sgd":
            move = sgd(self.lr)
        else:
            move = stateful(make_optimizer(self.inner, measured.adapted, self.lr, self.decay))
        with weights_restored(measured.adapted):
            return first_order(measured, pair, weights, move)
