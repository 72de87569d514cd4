"""Batch norm with cheap second derivatives."""

from typing import Any

import torch
from torch import Tensor, nn

TINY = 1e-20
"""Replacement for zero factors in a division."""


def normalise(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `torch.nn.functional.batch_norm`, with a cheap second derivative.

    Falls back to torch in evaluation mode, without weight or bias, and for one value per channel.
    """
    statistics = running_mean, running_var
    if not training or weight is None or bias is None or input.numel() == input.shape[1]:
        return nn.functional.batch_norm(input, *statistics, weight, bias, training, momentum, eps)
    output: Tensor = _Normalise.apply(input, weight, bias, *statistics, momentum, eps)  # type: ignore[no-untyped-call]
    return output


class _Normalise(torch.autograd.Function):
    """y = w x̂ + b with x̂ = s (x - μ), where μ and 1/s² are the mean and the variance (plus ε) of each channel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        y, mu, s = torch.native_batch_norm(x, weight, bias, mean, variance, True, momentum, eps)
        ctx.save_for_backward(x, weight, mu, s)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return *_Gradients.apply(gradient, *ctx.saved_tensors), None, None, None, None  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """The gradients of ⟨g, y⟩ with respect to x, w and b.

    They are w B(g) for x, with B(g) = s (g - E[g] - x̂ E[g x̂]), Σ g x̂ for w, and Σ g for b. E and Σ are the mean and
    the sum over one channel. The second derivatives are the gradients of ⟨u, w B(g)⟩ + a Σ g x̂ + c Σ g:

        for g   w B(u) + a x̂ + c
        for w   M s K,   K = E[u g] - E[u] E[g] - E[u x̂] E[g x̂]
        for x   B(h) - w s² K x̂,   h = p g + q u,   p = a - w s E[u x̂],   q = - w s E[g x̂]

    M is the number of values per channel. This takes two passes that sum and three that write. Torch takes 89 passes
    for the same derivatives.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mu: Tensor, s: Tensor) -> Any:
        gradients: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mu, s, True, 0.0, [True, True, True]
        )
        ctx.save_for_backward(gradient, x, weight, mu, s, *gradients[1:])
        return gradients

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, u: Tensor, a: Tensor, c: Tensor) -> Any:
        g, x, weight, mu, s, by_weight, by_bias = ctx.saved_tensors
        count = x.numel() // len(mu)
        zero = torch.zeros_like(mu)
        w, a, c = weight.to(mu), a.to(mu), c.to(mu)
        mean_u, mean_ux = (total / count for total in _sums(u, x, mu))
        mean_ug = _sums(u, g, zero)[1] / count
        mean_g, gx, ux = by_bias.to(mu) / count, by_weight.to(mu) / count, s * mean_ux
        k = mean_ug - mean_u * mean_g - ux * gx
        p, q = a - w * s * ux, -w * s * gx
        h = _combined(g, p, u, zero, q, zero)
        mean_h, hx = p * mean_g + q * mean_u, p * gx + q * ux
        by_g = _combined(u, w * s, x, mu, p * s, c - w * s * mean_u)
        by_x = _combined(h, s, x, mu, -s.square() * (hx + w * s * k), -s * mean_h)
        return by_g, by_x, (count * s * k).to(weight), None, None


def _sums(g: Tensor, x: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ g and Σ g (x - μ) per channel, with the dtype and shape (C,) of μ."""
    if g.is_cuda:
        sums = torch.batch_norm_backward_reduce(g, x, mu, torch.ones_like(mu), None, True, False, False)
        return sums[0], sums[1]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    return g.sum(axes, dtype=mu.dtype), (g * (x - _column(mu, x))).sum(axes, dtype=mu.dtype)


def _combined(g: Tensor, alpha: Tensor, x: Tensor, mu: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    """Return α g + β (x - μ) + γ, with the dtype and shape (N, C, …) of g. Factors have shape (C,)."""
    if g.is_cuda:  # torch has a kernel for α (g - γ' - (x - μ) β')
        alpha = torch.where(alpha.abs() < TINY, TINY, alpha)
        once = torch.ones(1, dtype=torch.int32, device=g.device)
        return torch.batch_norm_backward_elemt(
            g, x, mu, torch.ones_like(mu), alpha, -gamma / alpha, -beta / alpha, once
        )
    parts = _column(alpha, g) * g + _column(beta, x) * (x - _column(mu, x)) + _column(gamma, x)
    return parts.to(g)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape per-channel values of shape (C,) to broadcast over maps of shape (N, C, …)."""
    return values.view(-1, *[1] * (like.dim() - 2))
