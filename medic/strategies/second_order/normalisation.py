"""Batch norm whose gradients are differentiated again at the cost of batch norm."""

from typing import Any

import torch
from torch import Tensor, nn

TINY = 1e-20
"""A factor that can be divided by where there is none."""


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
    """As `torch.nn.functional.batch_norm`; what does not take its statistics from the batch is left to that.

    So is a batch of one value a channel, which it refuses.
    """
    statistics = running_mean, running_var
    if not training or weight is None or bias is None or input.numel() == input.shape[1]:
        return nn.functional.batch_norm(input, *statistics, weight, bias, training, momentum, eps)
    output: Tensor = _Normalise.apply(input, weight, bias, *statistics, momentum, eps)  # type: ignore[no-untyped-call]
    return output


class _Normalise(torch.autograd.Function):
    """y = w x̂ + b,   x̂ = s (x - μ),   μ and 1/s² the mean and the variance (plus ε) of each channel of x."""

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
    """The gradients of ⟨g, y⟩: by x it is w B(g), B(g) = s (g - E[g] - x̂ E[g x̂]); by w it is Σ g x̂, by b Σ g.

    E is the mean and Σ the sum over all of a channel. Of ⟨u, w B(g)⟩ + a Σ g x̂ + c Σ g the gradients are

        by g   w B(u) + a x̂ + c
        by w   M s K,   K = E[u g] - E[u] E[g] - E[u x̂] E[g x̂]
        by x   B(h) - w s² K x̂,   h = p g + q u,   p = a - w s E[u x̂],   q = - w s E[g x̂]

    where M is the number of values of a channel. That is two passes that sum and three that write; torch's own second
    derivative has 89.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mu: Tensor, s: Tensor) -> Any:
        found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mu, s, True, 0.0, [True, True, True]
        )
        ctx.save_for_backward(gradient, x, weight, mu, s, *found[1:])
        return found

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
    """Σ g and Σ g (x - μ) of every channel, of the kind of μ (C,)."""
    if g.is_cuda:
        found = torch.batch_norm_backward_reduce(g, x, mu, torch.ones_like(mu), None, True, False, False)
        return found[0], found[1]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    return g.sum(axes, dtype=mu.dtype), (g * (x - _column(mu, x))).sum(axes, dtype=mu.dtype)


def _combined(g: Tensor, alpha: Tensor, x: Tensor, mu: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
    """α g + β (x - μ) + γ with factors of the channels (C,), of the kind of g (N, C, …)."""
    if g.is_cuda:  # what torch has a kernel for is α (g - γ' - (x - μ) β')
        alpha = torch.where(alpha.abs() < TINY, TINY, alpha)
        once = torch.ones(1, dtype=torch.int32, device=g.device)
        return torch.batch_norm_backward_elemt(
            g, x, mu, torch.ones_like(mu), alpha, -gamma / alpha, -beta / alpha, once
        )
    parts = _column(alpha, g) * g + _column(beta, x) * (x - _column(mu, x)) + _column(gamma, x)
    return parts.to(g)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Values of the channels (C,) in the shape that maps (N, C, …) are multiplied by."""
    return values.view(-1, *[1] * (like.dim() - 2))
