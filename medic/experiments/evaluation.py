"""What a model does on validation and target images: the only place that reads target labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic import openset
from medic.data import Dataset, Problem, Samples
from medic.errors import TrainingError
from medic.models import Preprocessing
from medic.outputs import Output
from medic.training import infer

RULES = [name for name in openset.RULES if name != "hard"]
"""The rules that a run can choose its threshold by; no method here has an output for unknown."""


@dataclass(frozen=True)
class Evaluator:
    """Measures a model on a problem, with one score and one rule for the threshold."""

    dataset: Dataset
    problem: Problem
    preprocessing: Preprocessing
    device: torch.device
    score: str
    rule: str

    def infer(self, model: nn.Module, samples: Samples) -> Output:
        """The outputs of the model for some samples."""
        output = infer(model, self.dataset.images, samples.indices, self.preprocessing, self.device)
        if not bool(output.logits.isfinite().all()) or not (output.ova is None or bool(output.ova.isfinite().all())):
            raise TrainingError("an output of the model became infinite or not a number")
        return output

    def record(self, model: nn.Module) -> dict[str, Any]:
        """Everything that is measured at an evaluation, DomainBed's keys among it."""
        problem = self.problem
        train, validation, target = (self.infer(model, s) for s in (problem.train, problem.validation, problem.target))
        known = problem.target.label >= 0
        parts = [
            *((domain, "in", train, problem.train, problem.train.domain == domain) for domain in problem.sources),
            *((domain, "out", validation, problem.validation, problem.validation.domain == domain)
              for domain in problem.sources),
            (problem.target_domain, "in", target, problem.target, known & ~problem.held_out),
            (problem.target_domain, "out", target, problem.target, known & problem.held_out),
        ]  # fmt: skip
        return {
            "validation": measure_validation(validation, problem.validation.label),
            "target": measure_target(validation, target, problem.target.label, self.score, self.rule),
            **{
                f"env{domain}_{split}_acc": _accuracy(output.logits[mask], samples.label[mask])
                for domain, split, output, samples, mask in sorted(parts, key=lambda part: part[:2])
            },
        }


def measure_validation(output: Output, label: Tensor) -> dict[str, float]:
    """Accuracy and cross-entropy, pooled over the source domains."""
    return {
        "acc": _accuracy(output.logits, label),
        "loss": float(functional.cross_entropy(output.logits.double(), label)),
    }


def measure_target(validation: Output, target: Output, label: Tensor, score: str, rule: str) -> dict[str, Any]:
    """Every metric on the target. Without unknown samples there it is the accuracy alone."""
    prediction = openset.predicted_class(target)
    scores = {name: s(target) for name, s in openset.SCORES.items() if target.ova is not None or not s.needs_ova}
    confidence = scores[score]
    if not bool((label < 0).any()):
        return {"acc": openset.acc(confidence, prediction, label)}
    known: dict[str, Any] = {"validation": validation, "target": target, "label": label}
    threshold, oracle = (openset.threshold(name, score, **known) for name in (rule, "oracle-10"))
    h = openset.hscore(confidence, prediction, label, threshold.value)
    areas = {name: openset.oscr(values, prediction, label) for name, values in scores.items()}
    ranked = openset.evaluate(confidence, prediction, label)
    balanced = {} if target.ova is None else _balance(target.ova, label)
    return {
        "acc": ranked.pop("acc"),
        "score": score,
        "threshold_rule": rule,
        "threshold": threshold.value,
        **h._asdict(),
        "hscore/oracle-10": openset.hscore(confidence, prediction, label, oracle.value).hscore,
        **{f"oscr/{name}": area for name, area in areas.items()},
        "oscr_c": areas["cls"],
        **({"oscr_b": areas["bcls"]} if "bcls" in areas else {}),
        **ranked,
        **balanced,
    }


def _balance(ova: Tensor, label: Tensor) -> dict[str, float]:
    return {
        "conf_p": openset.conf_p(ova, label),
        "conf_n": openset.conf_n(ova, label),
        "balance": float(openset.balance(ova, label).nanmean()),
    }


def _accuracy(logits: Tensor, label: Tensor) -> float:
    return float((logits.argmax(1) == label).double().mean()) if len(label) else float("nan")
