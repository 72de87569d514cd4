"""What two evidential branches are trained by: how surely they know a class, and how differently they see it."""

import torch
from torch import Tensor

SCALES = (-2, -1, 0, 1, 2)
"""The bandwidths of the kernels are the mean squared distance times 2 to these powers."""

LEAST = 1e-6
"""The least mean squared distance."""


def evidential_loss(logits: Tensor, y: Tensor) -> Tensor:
    """log Σ_k α_k - log α_y per sample (N,), of the evidence α_k = exp(z_k) + 1 in logits z (N, C) cut off at ±10."""
    evidence = logits.clamp(-10, 10).exp() + 1
    return evidence.sum(1).log() - evidence.gather(1, y[:, None]).squeeze(1).log()


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """The maximum mean discrepancy between samples (N, F) and as many others: mean(K_aa + K_bb - K_ab - K_ba).

    K is the sum of five Gaussian kernels exp(-‖·‖² / h); the h are 1/4 … 4 times the mean squared distance between two
    of all 2N samples, which is a constant for the gradient.
    """
    count, samples = len(first), torch.cat([first, second])
    squares = samples.square().sum(1)
    distance = (squares[:, None] + squares - 2 * samples @ samples.T).clamp(min=0)
    mean = distance.detach().sum() / (2 * count * (2 * count - 1))
    mean = mean.clamp(min=LEAST)  # where all samples are the same
    kernel = torch.stack([(-distance / (mean * 2**scale)).exp() for scale in SCALES]).sum(0)
    within = kernel[:count, :count] + kernel[count:, count:]
    return (within - kernel[:count, count:] - kernel[count:, :count]).mean()
