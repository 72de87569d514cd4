"""Maximum likelihood fit of a Weibull distribution, in float64."""

import math

import torch
from torch import Tensor

MAX_SHAPE = 1e10
"""Upper bound on the shape k. If all distances are equal, the likelihood grows with k without limit.

At this bound and OpenMax's default shift, the distribution function is a step 1e-6 wide, and the k-th power of a ratio
near 1 still has six correct digits.
"""


def fit_weibull(distances: Tensor, shift: float) -> tuple[float, float]:
    """Fit a Weibull distribution to s = d − min d + `shift`, for distances d. Return its shape k and scale λ.

    k is the root of Σ s^k ln s / Σ s^k − 1/k − mean ln s, which increases with k, and λ = (mean s^k)^(1/k).
    """
    tail = distances.detach().to("cpu", torch.float64)
    moved = tail - tail.min() + shift
    top = moved.max()
    # ln(s / max s), accurate even if a large shift leaves hardly any variation in s.
    log = torch.where(moved < top / 2, moved.log() - top.log(), ((tail - tail.max()) / top).log1p())
    mean = float(log.mean())
    # At k = 1 / (−mean), the function is Σ s^k ln(s / max s) / Σ s^k ≤ 0, so no root lies below.
    shape = low = 1 / max(-mean, 1 / MAX_SHAPE)
    high, step = MAX_SHAPE, math.inf
    while abs(step) > 1e-13:
        weight = (shape * log).softmax(dim=0)
        centre = weight @ log
        value = float(centre) - mean - 1 / shape
        slope = float(weight @ (log - centre).square()) + 1 / shape**2
        low, high = (shape, high) if value < 0 else (low, shape)
        # Newton's method on ln k, with bisection if a step leaves the bracket or converges too slowly.
        last, step = step, -value / (shape * slope)
        if not math.log(low / shape) <= step <= math.log(high / shape) or abs(step) > abs(last) / 2:
            step = math.log(low / shape) / 2 + math.log(high / shape) / 2
        shape *= math.exp(step)
    return shape, float(top) * math.exp(float((shape * log).exp().mean().log()) / shape)
