"""Penalties on the gradients of the closed-set head: Fishr, HGP and Hutchinson.

All three require a linear head. With z̃ = (z, 1), p = softmax(logits) and e = p - onehot(y), the gradient of a sample's
cross-entropy with respect to weights and bias is e z̃ᵀ, of shape (C, F + 1). This closed form makes per-sample backward
passes unnecessary.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.objectives.needs import lacks
from medic.objectives.objective import Penalty, Setup, split_features
from medic.tasks import Step
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter, log10, uniform


def _samples(output: Output, step: Step) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return p and e of shape (N, C), and z̃ of shape (N, F + 1), for each task."""
    p = output.logits.softmax(1)
    e = p - functional.one_hot(step.y, p.shape[1])
    extended = [functional.pad(z, (0, 1), value=1.0) for z in split_features(output, step)]
    return list(zip(p.split(step.sizes), e.split(step.sizes), extended, strict=True))


@dataclass(eq=False)
class Fishr(Penalty, name="fishr"):
    """Fishr (Rame et al. 2022): λ times the variance, across domains, of the head's gradient variances.

    The gradient variances v are averaged over iterations, E ← γ E + (1 - γ) v, and used as E / (1 - γ), without bias
    correction. The penalty starts at step `anneal`.
    """

    weight: float = hyperparameter(1000.0, search=log10("lambda", 1, 4))
    anneal: int = hyperparameter(1500, search=uniform("penalty_anneal_iters", 0, 5000, whole=True), run_length=5000)
    ema: float = hyperparameter(0.95, most=1, below=True, search=uniform("ema", 0.90, 0.99))
    updates: Tensor = field(init=False)
    variances: Tensor | None = field(init=False)
    compares_tasks = fixed_order = needs_linear_head = True
    needs = ("features",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("variances", None)

    @property
    def restart_step(self) -> int | None:
        """The step at which the penalty starts."""
        return self.anneal or None

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Initialise the averages to 0. If the model's sizes are unknown, the first step initialises them instead."""
        if not lacks(model, "sizes"):
            self.variances = torch.zeros(setup.tasks, model.classes, model.features + 1)  # type: ignore[call-overload, operator]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Allocate the averages before loading them, if they are part of the state."""
        if self.variances is None and f"{prefix}variances" in state:
            self.variances = torch.zeros_like(state[f"{prefix}variances"])
        super()._load_from_state_dict(state, prefix, *arguments)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare the gradient variances of the tasks. Tasks must keep their order."""
        variances = torch.stack([self._variance(e, z) for _, e, z in _samples(output, step)])
        if self.variances is None:
            self.variances = torch.zeros_like(variances)
        average = self.ema * self.variances.to(tasks) + (1 - self.ema) * variances
        self.variances.copy_(average.detach())
        weight = torch.where(self.updates >= self.anneal, self.weight, 0.0)
        self.updates += 1
        return weight * (average / (1 - self.ema)).var(0, correction=0).mean()

    @staticmethod
    def _variance(e: Tensor, z: Tensor) -> Tensor:
        """Return mean_n (g_n - mean g)², of shape (C, F + 1), for g_n = e_n z_nᵀ."""
        return (e.square().T @ z.square() - (e.T @ z).square() / len(z)) / len(z)


class _HessianAlignment(Penalty):
    """α mean_d ‖h_d - h̄‖² + β mean_d ‖g_d - ḡ‖², with the head's gradients g and a function h of its Hessian.

    ḡ and h̄ are computed from the mean risk and are treated as constants.
    """

    alpha: float
    beta: float
    compares_tasks = needs_linear_head = True
    needs = ("features",)

    def forward(self, tasks: Tensor, output: Output, step: Step) -> Tensor:
        """Compare each task with the mean of all tasks."""
        samples = _samples(output, step)
        gradients = [e.T @ z / len(z) for _, e, z in samples]
        mean = torch.stack(gradients).mean(0)
        curvatures = [self.curvature([sample], gradient) for sample, gradient in zip(samples, gradients, strict=True)]
        curvature = self.curvature(samples, mean).detach()
        return (
            self.alpha * torch.stack([(h - curvature).square().sum() for h in curvatures]).mean()
            + self.beta * torch.stack([(g - mean.detach()).square().sum() for g in gradients]).mean()
        )

    def curvature(self, samples: list[tuple[Tensor, Tensor, Tensor]], gradient: Tensor) -> Tensor:
        """Return h, of shape (C, F + 1), for the mean risk of these samples and its gradient."""
        raise NotImplementedError


@dataclass(eq=False)
class Hgp(_HessianAlignment, name="hgp"):
    """HGP (Hemati et al. 2023): h is the Hessian times the gradient."""

    alpha: float = hyperparameter(1e-4, search=log10("penalty_alpha", -5, -3))
    beta: float = hyperparameter(5e-3, search=log10("penalty_beta", -3, -1))

    def curvature(self, samples: list[tuple[Tensor, Tensor, Tensor]], gradient: Tensor) -> Tensor:
        """Return H g = mean_n r_n z̃_nᵀ, with a_n = g z̃_n and r_n = p_n ∘ a_n - p_n (p_n · a_n)."""
        return torch.stack([_hessian_product(p, z, gradient) for p, _, z in samples]).mean(0)


def _hessian_product(p: Tensor, z: Tensor, direction: Tensor) -> Tensor:
    along = z @ direction.T
    return (p * along - p * (p * along).sum(1, keepdim=True)).T @ z / len(z)


@dataclass(eq=False)
class Hutchinson(_HessianAlignment, name="hutchinson"):
    """Hutchinson (Hemati et al. 2023): h is the diagonal of the Hessian, exact or estimated with random signs.

    `probes` is the number R of random sign vectors ξ in the estimate mean_r ξ_r ∘ H ξ_r, whose error has variance
    Σ_{j≠i} H_ij² / R. The authors use 300. With `probes=0`, the diagonal is exact, which is possible for a linear
    head: mean_n p (1 - p) z̃².
    """

    alpha: float = hyperparameter(1e-3, search=log10("penalty_alpha", 1, 4))
    beta: float = hyperparameter(5e-3, search=log10("penalty_beta", 2, 6))
    probes: int = hyperparameter(0)

    def curvature(self, samples: list[tuple[Tensor, Tensor, Tensor]], gradient: Tensor) -> Tensor:
        """Return the diagonal of the Hessian, of shape (C, F + 1)."""
        if not self.probes:
            return torch.stack([(p * (1 - p)).T @ z.square() / len(z) for p, _, z in samples]).mean(0)
        total = torch.zeros_like(gradient)
        for _ in range(self.probes):
            signs = 1 - 2 * torch.randint_like(gradient, 2)
            products = torch.stack([_hessian_product(p, z, signs) for p, _, z in samples])
            total = total + signs * products.mean(0)
        return total / self.probes
