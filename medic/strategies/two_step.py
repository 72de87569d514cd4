"""Meta-train, then meta-test: MLDG and MEDIC."""

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
    """Descends A(θ) + β B(θ - α A'(θ)): B is evaluated where a step on A leads.

    With more than two steps, the last `meta_test` are meta-test and each of the others is paired with one of them in
    turn, as DomainBed's MLDG does. The two may differ in size: every risk is a mean over all samples of its task.
    `inner="adam"` takes the virtual step with a fresh Adam, a step of size `lr` in every coordinate. To first order the
    step itself is not differentiated.
    """

    beta: float = hyperparameter(1.0)
    second_order: bool = False
    inner: InnerOptimizer = "sgd"
    meta_test: int = hyperparameter(1, least=1)
    decay: float | None = hyperparameter(None)
    """The weight decay of an inner Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner, self.decay)
        if self.second_order and self.inner != "sgd":
            raise MedicError("second order requires plain inner SGD: use inner='sgd'")

    def __call__(self, model: nn.Module, steps: Sequence[Step], objective: Objective) -> Update:
        """Fill `p.grad` with the sum over pairs, divided by the number t of tasks."""
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
        """Refuse steps that leave none for meta-training."""
        if count <= self.meta_test:
            leave = "1 step leaves" if count == 1 else f"{count} steps leave"
            raise MedicError(
                f"{leave} none for meta-training beside {self.meta_test} for meta-testing: use "
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
