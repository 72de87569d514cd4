"""The Poincaré ball of curvature -1: the points of length below 1, where the way to the border is endless."""

import torch
from torch import Tensor

BORDER = 1 - 1e-5
"""The largest length of a point: at 1 every distance is infinite."""


def exp0(u: Tensor) -> Tensor:
    """Where geodesics from the origin with the velocities u (…, F) lead: tanh(‖u‖) u / ‖u‖, within `BORDER`."""
    length: Tensor = u.norm(dim=-1, keepdim=True)
    return u * (length.tanh().clamp(max=BORDER) / length.clamp(min=torch.finfo(u.dtype).tiny))


def distance(a: Tensor, b: Tensor) -> Tensor:
    """All distances (N, M) between points a (N, F) and b (M, F): arcosh(1 + 2 ‖a - b‖² / ((1 - ‖a‖²) (1 - ‖b‖²)))."""
    first, second = a.square().sum(1)[:, None], b.square().sum(1)
    apart = (first + second - 2 * a @ b.T).clamp(min=0)
    excess = 2 * apart / ((1 - first) * (1 - second))
    return (excess + (excess * (excess + 2)).sqrt()).log1p()  # arcosh(1 + t), which keeps its digits at a small t


def mean(points: Tensor) -> Tensor:
    """The mean (…, F) of points (…, N, F): their average in the Klein model, weighted by Lorentz factors.

    a_K = 2a / (1 + ‖a‖²) and γ = 1 / √(1 - ‖a_K‖²); the average m = Σ γ a_K / Σ γ goes back as m / (1 + √(1 - ‖m‖²)).
    """
    squares = points.square().sum(-1, keepdim=True)
    # γ = (1 + ‖a‖²) / (1 - ‖a‖²), and γ a_K = 2a / (1 - ‖a‖²): without the root of a difference near 0.
    average = (2 * points / (1 - squares)).sum(-2) / ((1 + squares) / (1 - squares)).sum(-2)
    return average / (1 + (1 - average.square().sum(-1, keepdim=True)).clamp(min=0).sqrt())
