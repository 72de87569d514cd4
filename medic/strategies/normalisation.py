"""Batch norm whose gradients are differentiated again at the cost of batch norm."""

from typing import Any

import torch
from torch import Tensor, nn


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
    """As `torch.nn.functional.batch_norm`; what does not take its statistics from the batch is left to that."""
    statistics = running_mean, running_var
    if not training or weight is None or bias is None:
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
        by x   B(h) - w s² K x̂,   h = a g - w s (E[g x̂] u + E[u x̂] g)

    where M is the number of values of a channel: B twice, which torch has a kernel for, and little else. That is 15
    operations on maps; torch's own second derivative has 89, counted alike.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor, mu: Tensor, s: Tensor) -> Any:
        by_x, by_weight, by_bias = _backward(gradient, x, weight, mu, s)
        ctx.save_for_backward(gradient, x, weight, mu, s, by_weight, by_bias)
        return by_x, by_weight, by_bias

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, u: Tensor, a: Tensor, c: Tensor) -> Any:
        g, x, weight, mu, s, by_weight, by_bias = ctx.saved_tensors
        count = x.numel() // len(mu)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        w, a, c = weight.to(mu), a.to(mu), c.to(mu)
        by_g, sum_ux, sum_u = _backward(u, x, weight, mu, s)
        gx, ux = by_weight.to(mu) / count, sum_ux.to(mu) / count
        k = (u * g).sum(axes, dtype=mu.dtype) / count - sum_u.to(mu) * by_bias.to(mu) / count**2 - ux * gx
        h = _scaled(u, -w * s * gx).addcmul_(g, _column(a - w * s * ux, g))
        by_x, _, _ = _backward(h, x, torch.ones_like(weight), mu, s)
        _add_normalised(by_g, x, mu, s, a).add_(_column(c, x))
        _add_normalised(by_x, x, mu, s, -w * s.square() * k)
        return by_g, by_x, (count * s * k).to(weight), None, None


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, mu: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """The gradients w B(g), Σ g x̂ and Σ g."""
    found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, None, None, mu, s, True, 0.0, [True, True, True]
    )
    return found


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Values of the channels (C,) in the shape that maps (N, C, …) are multiplied by."""
    return values.view(-1, *[1] * (like.dim() - 2))


def _scaled(maps: Tensor, factors: Tensor) -> Tensor:
    """Maps (N, C, …) times the factors of the channels (C,), of the maps' kind."""
    return torch.mul(maps, _column(factors, maps), out=torch.empty_like(maps))


def _add_normalised(to: Tensor, x: Tensor, mu: Tensor, s: Tensor, factors: Tensor) -> Tensor:
    """Add factors (C,) times x̂ in place."""
    return to.addcmul_(x, _column(factors * s, x)).sub_(_column(factors * s * mu, x))
