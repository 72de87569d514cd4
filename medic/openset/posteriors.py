"""Scores by the softmax, fitted on validation images: how sure the model is of images that it was not trained on."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from medic.openset.fitting import Fitted, read_logits, read_training
from medic.openset.scores import AnyOutput, CheckedOutput, Values, conf_bcls, conf_cls

_STEPS = 100
"""Newton steps for the temperature; ten are enough as a rule."""


@dataclass(frozen=True, eq=False)
class Temperature(Fitted):
    """The largest softmax probability of the logits divided by a temperature T (Guo et al. 2017), as log-odds.

    `scale` () is 1 / T, at which the cross-entropy on validation images is smallest.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    scale: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Minimise the cross-entropy, which is convex in 1 / T, by Newton's method in the logarithm of 1 / T."""
        return cls(fit_scale(*read_training(output, label)))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the log-odds (N,) of the largest probability."""
        logits = read_logits(output)
        return conf_cls(logits * self.scale.to(logits.device))


@dataclass(frozen=True, eq=False)
class Platt(Fitted):
    """The one-vs-all probability of the closed-set prediction, calibrated (Platt 1999), as log-odds.

    `scale` () and `shift` () map the log-odds of the one-vs-all head to those of a correct prediction.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    scale: Tensor
    shift: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Fit a logistic regression of the correct predictions, with Platt's targets, which keep it finite."""
        output = CheckedOutput.of(output)
        logits, label = read_training(output, label)
        odds, correct = conf_bcls(output).cpu(), (logits.argmax(dim=1) == label).cpu()
        hits = int(correct.sum())
        target = torch.where(correct, (hits + 1) / (hits + 2), 1 / (len(label) - hits + 2))
        scale, shift = _regress(torch.stack((odds, torch.ones_like(odds)), dim=1), torch.zeros_like(odds), target)
        if float(scale) <= 0 or hits == len(label):  # without mistakes to learn it from, the order of images stays
            (shift,) = _regress(torch.ones_like(odds)[:, None], odds, target)
            scale = torch.ones_like(shift)
        return cls(scale.to(logits.device), shift.to(logits.device))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the calibrated log-odds (N,)."""
        odds = conf_bcls(output)
        own = self.to(odds.device)
        return own.scale * odds + own.shift


@dataclass(frozen=True, eq=False)
class KlMatching(Fitted):
    """The negative divergence of the softmax from the nearest typical one (Hendrycks et al. 2022).

    `typical` (K, C) is the mean softmax of the validation images that are predicted as each of K classes.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    typical: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Average the softmax by predicted class. The labels are checked but not used."""
        logits, _ = read_training(output, label)
        softmax, predicted = logits.softmax(dim=1), logits.argmax(dim=1)
        return cls(torch.stack([softmax[predicted == c].mean(dim=0) for c in predicted.unique()]))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −min_k KL(p ‖ d_k) (N,) of the softmax p and the typical ones d_k."""
        logits = read_logits(output, self.typical.shape[1])
        log_softmax = logits.log_softmax(dim=1)
        softmax = log_softmax.exp()
        # A typical probability may underflow to 0, whose logarithm must not meet a probability of 0.
        log_typical = self.typical.to(logits.device).clamp(min=torch.finfo(torch.float64).tiny).log()
        return -((softmax * log_softmax).sum(dim=1, keepdim=True) - softmax @ log_typical.T).amin(dim=1)


def _regress(inputs: Tensor, offset: Tensor, target: Tensor) -> Tensor:
    """Return the weights (K,) of a logistic regression of targets (N,) on inputs (N, K), by Newton's method."""
    weights = inputs.new_zeros(inputs.shape[1])
    ridge = 1e-9 * torch.eye(len(weights), dtype=inputs.dtype)
    for _ in range(_STEPS):
        predicted = (inputs @ weights + offset).sigmoid()
        slope = inputs.T @ (predicted - target)
        curve = (inputs * (predicted * (1 - predicted))[:, None]).T @ inputs
        step = torch.linalg.solve(curve + ridge, slope).clamp(-1, 1)
        weights = weights - step
        if float(step.abs().max()) < 1e-12:
            break
    return weights


def fit_scale(logits: Tensor, label: Tensor) -> Tensor:
    """Return the scale s () of logits (N, C) at which the cross-entropy with labels (N,) is smallest.

    If every image is classified correctly, the cross-entropy falls without end; the scale is then at most 100.
    """
    power = logits.new_zeros(())
    for _ in range(_STEPS):
        scale = power.exp()
        softmax = (scale * logits).softmax(dim=1)
        mean = (softmax * logits).sum(dim=1)
        slope = scale * (mean - logits.gather(1, label[:, None]).squeeze(1)).mean()
        spread = (softmax * (logits - mean[:, None]).square()).sum(dim=1).mean()
        curve = slope + scale.square() * spread
        # Where the cross-entropy is not convex in the logarithm, a step of bounded length goes down.
        step = -slope / curve if float(curve) > 0 else -slope.sign()
        moved = (power + step.clamp(-1, 1)).clamp(-torch.tensor(100.0).log(), torch.tensor(100.0).log())
        if torch.equal(moved, power):
            break
        power = moved
    return power.exp()
