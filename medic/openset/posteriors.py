"""Scores that calibrate the model's probabilities on validation images, which the model was not trained on."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from medic.openset.fitting import Fitted, read_logits, read_training
from medic.openset.scores import AnyOutput, CheckedOutput, Values, conf_bcls, conf_cls

_STEPS = 100
"""Maximum number of Newton steps. Ten are usually enough."""
_LOG_LIMIT = math.log(100)


@dataclass(frozen=True, eq=False)
class Temperature(Fitted):
    """The log-odds of the largest softmax probability, with logits divided by a temperature T (Guo et al. 2017).

    `scale` is 1 / T, chosen to minimise the cross-entropy on validation images.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    exportable: ClassVar[bool] = True
    scale: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Minimise the cross-entropy over log(1 / T) with Newton's method. The cross-entropy is convex in 1 / T."""
        return cls(fit_scale(*read_training(output, label)))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the log-odds of the largest probability, of shape (N,)."""
        return conf_cls(self.scaled(output))

    def scaled(self, output: AnyOutput) -> Tensor:
        """Return the logits divided by the temperature, of shape (N, C). Their softmax is calibrated."""
        logits = CheckedOutput.of(output).logits
        return logits * self.scale.to(logits.device)


@dataclass(frozen=True, eq=False)
class Platt(Fitted):
    """The calibrated log-odds of the closed-set prediction's one-vs-all classifier (Platt 1999).

    `scale` and `shift` map the log-odds of the one-vs-all head to the log-odds that the prediction is correct.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    exportable: ClassVar[bool] = True
    scale: Tensor
    shift: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Fit a logistic regression that predicts correctness. Platt's targets keep the solution finite."""
        output = CheckedOutput.of(output)
        logits, label = read_training(output, label)
        odds, correct = conf_bcls(output).cpu(), (logits.argmax(dim=1) == label).cpu()
        hits = int(correct.sum())
        target = torch.where(correct, (hits + 1) / (hits + 2), 1 / (len(label) - hits + 2))
        scale, shift = _regress(torch.stack((odds, torch.ones_like(odds)), dim=1), torch.zeros_like(odds), target)
        if float(scale) <= 0 or hits == len(label):  # too few mistakes to fit a scale: keep the order of the images
            (shift,) = _regress(torch.ones_like(odds)[:, None], odds, target)
            scale = torch.ones_like(shift)
        return cls(scale.to(logits.device), shift.to(logits.device))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the calibrated log-odds, of shape (N,)."""
        odds = conf_bcls(output)
        own = self.to(odds.device)
        return own.scale * odds + own.shift


@dataclass(frozen=True, eq=False)
class KlMatching(Fitted):
    """The negative KL divergence of the softmax from the nearest class template (Hendrycks et al. 2022).

    `typical`, of shape (K, C), contains the templates: the mean softmax of the validation images predicted as each of
    K classes.
    """

    split: ClassVar[Literal["train", "validation"]] = "validation"
    typical: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values) -> Self:
        """Average the softmax over the samples of each predicted class. The labels are checked but not used."""
        logits, _ = read_training(output, label)
        softmax, predicted = logits.softmax(dim=1), logits.argmax(dim=1)
        return cls(torch.stack([softmax[predicted == c].mean(dim=0) for c in predicted.unique()]))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −min_k KL(p ‖ d_k), of shape (N,), for softmax p and templates d_k."""
        logits = read_logits(output, self.typical.shape[1])
        log_softmax = logits.log_softmax(dim=1)
        softmax = log_softmax.exp()
        # A template probability may underflow to 0. Its logarithm times a probability of 0 would be NaN.
        log_typical = self.typical.to(logits.device).clamp(min=torch.finfo(torch.float64).tiny).log()
        return -((softmax * log_softmax).sum(dim=1, keepdim=True) - softmax @ log_typical.T).amin(dim=1)


def _regress(inputs: Tensor, offset: Tensor, target: Tensor) -> Tensor:
    """Fit a logistic regression of targets on inputs with Newton's method, and return the weights, of shape (K,).

    Targets have shape (N,), inputs have shape (N, K), and `offset`, of shape (N,), is added to the predicted log-odds.
    """
    weights = inputs.new_zeros(inputs.shape[1])
    ridge = 1e-9 * torch.eye(len(weights), dtype=inputs.dtype, device=inputs.device)
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
    """Return the scale for the logits that minimises the cross-entropy with the labels.

    If every image is classified correctly, the cross-entropy decreases without bound. The scale is therefore limited
    to between 1/100 and 100.
    """
    power = logits.new_zeros(())
    for _ in range(_STEPS):
        scale = power.exp()
        softmax = (scale * logits).softmax(dim=1)
        mean = (softmax * logits).sum(dim=1)
        slope = scale * (mean - logits.gather(1, label[:, None]).squeeze(1)).mean()
        spread = (softmax * (logits - mean[:, None]).square()).sum(dim=1).mean()
        curve = slope + scale.square() * spread
        # Where the cross-entropy is not convex in the logarithm, take a bounded step downhill.
        step = -slope / curve if float(curve) > 0 else -slope.sign()
        moved = (power + step.clamp(-1, 1)).clamp(-_LOG_LIMIT, _LOG_LIMIT)
        if torch.equal(moved, power):
            break
        power = moved
    return power.exp()
