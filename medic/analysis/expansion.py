"""Residual of the gradient-matching expansion against the inner learning rate α, in float64 on a small network.

The inner loop takes n gradient descent steps with losses l_1, …, l_n, and passes `G(α) = Σ_i l_i'(θ_i)` to the outer
optimizer. Let g_i and h_i be the gradient and the Hessian of l_i at θ. Then, for one order of the steps,

    G(α) = Σ_i g_i − α Σ_i h_i Σ_{j<i} g_j + O(α²)

The mean over all orders is

    E[G](α) = Σ_i g_i − (α/2) M + O(α²),   M = Σ_{i<j} (g_i · g_j)' = Σ_{i<j} (h_i g_j + h_j g_i).

The paper states α M for every order, which is twice this coefficient. α M is correct for the derivative of the losses
through the inner steps, `d/dθ Σ_i l_i(θ_i)`. The second-order update computes this derivative, but the paper trains
with the first-order update.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from medic.analysis import style
from medic.analysis.result import Result, number
from medic.objectives import ce, objective
from medic.strategies import MultiStep
from medic.tasks import Step

ALPHAS = tuple(10 ** (exponent / 4) for exponent in range(-16, -3))
"""Inner learning rates from 1e-4 to 1e-1."""
UPDATES = ("half, mean over orders", "paper, mean over orders", "half, one order", "paper, second order")
"""Comparisons: the predicted coefficient of the matching term, and the update to compare with."""


@dataclass(frozen=True)
class Expansion(Result):
    """Residuals of the expansion for A inner learning rates."""

    alpha: NDArray[np.float64]
    """Inner learning rates, of shape (A,)."""
    residual: dict[str, NDArray[np.float64]]
    """‖G − predicted‖ / ‖Σ g_i‖, of shape (A,), for each name in `UPDATES`."""
    slope: dict[str, float]
    """Slope of log residual against log α: 2 if the expansion is correct, 1 if its term in α is wrong."""
    coefficient: dict[str, NDArray[np.float64]]
    """Measured coefficient of M, `(Σ g_i − G) · M / (α M · M)`, of shape (A,), for three updates: first order averaged
    over step orders (→ ½), first order in one order, and second order (→ 1)."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row per comparison."""
        measured = {
            "half, mean over orders": "first order, mean",
            "paper, mean over orders": "first order, mean",
            "half, one order": "first order, one order",
            "paper, second order": "second order",
        }
        return [
            {
                "predicted coefficient": name.partition(",")[0].replace("half", "α/2").replace("paper", "α (paper)"),
                "update": measured[name],
                "slope": number(self.slope[name]),
                "measured coefficient / α": number(float(self.coefficient[measured[name]][0]), 4),
            }
            for name in UPDATES
        ]

    def notes(self) -> list[str]:
        """State the coefficient of each update."""
        return [
            "in the first-order update, the matching term has half the paper's coefficient, and only on average over "
            "step orders; the paper's coefficient α applies to the second-order update"
        ]


def measure(steps: int = 3, alphas: Sequence[float] = ALPHAS, seed: int = 0) -> Expansion:
    """Measure the residuals for `steps` steps of random data, on a tanh network with 67 weights in float64."""
    generator = torch.Generator().manual_seed(seed)
    data = [
        Step(
            torch.randn(8, 4, dtype=torch.float64, generator=generator) + index,
            torch.randint(3, (8,), generator=generator),
            (8,),
        )
        for index in range(steps)
    ]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2)
    return measure_on(model, data, alphas)


def measure_on(model: nn.Module, data: Sequence[Step], alphas: Sequence[float]) -> Expansion:
    """Measure the residuals for a float64 model and steps of one task each, with cross-entropy."""
    loss = objective(ce)
    parameters = list(model.parameters())
    gradients = [_flat(torch.autograd.grad(loss(model, step).total, parameters, create_graph=True)) for step in data]
    products = torch.stack([one @ other for one, other in itertools.combinations(gradients, 2)]).sum()
    matching = _flat(torch.autograd.grad(products, parameters))
    plain = torch.stack(gradients).detach().sum(0)

    def update(order: Sequence[Step], alpha: float, second: bool = False) -> Tensor:
        model.zero_grad()
        MultiStep(lr=alpha, second_order=second)(model, order, loss)
        gradient = _flat([parameter.grad for parameter in parameters if parameter.grad is not None])
        model.zero_grad()
        return len(order) * gradient  # a strategy returns the mean over tasks

    mean, one, second = [], [], []
    for alpha in alphas:
        mean.append(torch.stack([update(order, alpha) for order in itertools.permutations(data)]).mean(0))
        one.append(update(data, alpha))
        second.append(update(data, alpha, second=True))
    updates = {"first order, mean": mean, "first order, one order": one, "second order": second}
    rates = np.array(alphas)

    def residual(update: str, factor: float) -> NDArray[np.float64]:
        off = [
            (gradient - plain + factor * alpha * matching).norm()
            for gradient, alpha in zip(updates[update], alphas, strict=True)
        ]
        return np.array([float(value / plain.norm()) for value in off])

    residuals = {
        "half, mean over orders": residual("first order, mean", 0.5),
        "paper, mean over orders": residual("first order, mean", 1.0),
        "half, one order": residual("first order, one order", 0.5),
        "paper, second order": residual("second order", 1.0),
    }
    small = rates <= 10 * rates.min()  # where both higher orders of α and rounding errors are small
    slopes = {
        name: float(np.polyfit(np.log(rates[small]), np.log(values[small]), 1)[0]) if small.sum() > 1 else float("nan")
        for name, values in residuals.items()
    }
    coefficients = {
        name: np.array(
            [
                float((plain - gradient) @ matching / (alpha * matching @ matching))
                for gradient, alpha in zip(several, alphas, strict=True)
            ]
        )
        for name, several in updates.items()
    }
    return Expansion(rates, residuals, slopes, coefficients)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@style.styled
def draw(result: Expansion) -> Figure:
    """Draw the residuals against α on logarithmic axes."""
    figure = style.new_figure(2.9)
    axes = figure.subplots()
    medic, erm = style.FIXED["medic++"], style.FIXED["erm"]
    looks = {
        "half, mean over orders": (r"first order, mean over orders: $\alpha/2$", medic, "o-"),
        "paper, mean over orders": (r"first order, mean over orders: $\alpha$ (paper)", erm, "s-"),
        "half, one order": (r"first order, one order: $\alpha/2$", style.PALETTE[3], "^--"),
        "paper, second order": (r"second order: $\alpha$ (paper)", style.PALETTE[0], "d--"),
    }
    for name, (label, colour, look) in looks.items():
        axes.loglog(
            result.alpha, result.residual[name], look, color=colour, label=f"{label}, slope {result.slope[name]:.1f}"
        )
    axes.set_xlabel(r"inner learning rate $\alpha$")
    axes.set_ylabel("relative residual")
    axes.set_title("Residual of the gradient-matching expansion:\nthe first-order update has half the paper's\n"
                   "coefficient, and only on average over orders", loc="left")  # fmt: skip
    figure.legend(loc="outside lower left")
    return figure
