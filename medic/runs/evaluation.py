"""What a model does on validation and target images: the only place that reads target labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from medic import openset
from medic.data import Dataset, Problem, Samples
from medic.errors import TrainingError
from medic.outputs import Output
from medic.training import Inference


class Seen(NamedTuple):
    """What a model said of N images, with their labels and domains (N,)."""

    output: Output
    label: Tensor
    domain: Tensor

    @classmethod
    def of(cls, output: Output, samples: Samples) -> "Seen":
        """Add what is known of some samples to the outputs for them, where those are."""
        device = output.logits.device
        return cls(output, samples.label.to(device), samples.domain.to(device))

    @classmethod
    def cat(cls, several: "Sequence[Seen]") -> "Seen":
        """Join them."""
        return cls(
            Output.cat([seen.output for seen in several]),
            torch.cat([seen.label for seen in several]),
            torch.cat([seen.domain for seen in several]),
        )

    def where(self, mask: Tensor) -> "Seen":
        """Those that a mask (N,) marks."""
        return Seen(self.output.map(lambda rows: rows[mask]), self.label[mask], self.domain[mask])

    def cpu(self) -> "Seen":
        """The same on the CPU."""
        return Seen(self.output.map(Tensor.cpu), self.label.cpu(), self.domain.cpu())


Outputs = dict[str, Seen]
"""By split: `validation`, `target` and, where there are any, `source-unknown`."""


@dataclass(frozen=True)
class Evaluator:
    """Measures a model on a problem, with one score and one rule for the threshold: on the device the model is on."""

    domains: tuple[str, ...]
    problem: Problem
    inference: Inference
    score: openset.Score
    rule: str

    def infer(self, samples: Samples, features: bool) -> Seen:
        """What the model says of some samples."""
        output = self.inference(samples.indices, features)
        if not bool(output.logits.isfinite().all()) or not (output.ova is None or bool(output.ova.isfinite().all())):
            raise TrainingError("an output of the model became infinite or not a number")
        return Seen.of(output, samples)

    def infer_all(self, features: bool = False) -> Outputs:
        """What the model says of every image that it is measured on, by split."""
        return {split: self.infer(samples, features) for split, samples in measured(self.problem).items()}

    def record(self) -> dict[str, Any]:
        """Everything that is measured at an evaluation, DomainBed's keys among it."""
        problem, features = self.problem, "features" in self.score.needs
        train, outputs = self.infer(problem.train, features), self.infer_all(features)
        target = outputs["target"]
        known, held_out = target.label >= 0, problem.held_out.to(target.label.device)
        source_parts = {"in": train, "out": outputs["validation"]}
        target_parts = {"in": target.where(known & ~held_out), "out": target.where(known & held_out)}
        accuracies = {}
        for domain in sorted(problem.sources + problem.targets):
            for part, seen in (source_parts if domain in problem.sources else target_parts).items():
                here = seen.where(seen.domain == domain)
                if len(here.label):
                    accuracies[f"env{domain}_{part}_acc"] = _accuracy(here)
        return {
            "validation": measure_validation(outputs["validation"]),
            **measure(outputs, self.domains, self.score.fit(train.output, train.label), self.rule),
            **accuracies,
        }

    def fitted_score(self) -> openset.Score:
        """The score, fitted on what the model says of the training images now if it needs that."""
        if self.score.fitter is None:
            return self.score
        train = self.infer(self.problem.train, "features" in self.score.needs)
        return self.score.fit(train.output, train.label)


def measured(problem: Problem) -> dict[str, Samples]:
    """The samples that a run keeps its predictions of, by split."""
    splits = {"validation": problem.validation, "source-unknown": problem.source_unknown, "target": problem.target}
    return {split: samples for split, samples in splits.items() if len(samples)}


def predictions(
    dataset: Dataset, problem: Problem, outputs: Outputs, score: openset.Score, threshold: float
) -> dict[str, Any]:
    """Plain arrays, a row per image: what it is, what the model said of it, and the decision at the threshold."""
    samples = {**measured(problem), "train": problem.train}
    indices = torch.cat([samples[split].indices for split in outputs])
    seen = Seen.cat(list(outputs.values())).cpu()
    confidence = score(seen.output)
    arrays = {
        "path": np.array([dataset.paths[index] for index in indices.tolist()]),
        "split": np.array([split for split, part in outputs.items() for _ in part.label]),
        "domain": np.array([dataset.domains[index] for index in seen.domain.tolist()]),
        "label": seen.label.numpy(),
        "prediction": openset.decide(confidence, openset.predicted_class(seen.output), threshold).numpy(),
        "confidence": confidence.numpy(),
        "logits": seen.output.logits.numpy(),
    }
    if seen.output.ova is not None:
        arrays["ova_logits"] = seen.output.ova.numpy()
    if seen.output.unknown is not None:
        arrays["unknown_logit"] = seen.output.unknown.numpy()
    if seen.output.features is not None:  # asked for, or what the score is computed from
        arrays["features"] = seen.output.features.numpy()
    return arrays


def measure_validation(seen: Seen) -> dict[str, float]:
    """Accuracy and cross-entropy, pooled over the source domains, and the mean of the domains' cross-entropies."""
    losses = functional.cross_entropy(seen.output.logits.double(), seen.label, reduction="none")
    domains = [losses[seen.domain == domain].mean() for domain in seen.domain.unique()]
    return {
        "acc": _accuracy(seen),
        "loss": float(losses.mean()),
        "domain_loss": float(torch.stack(domains).mean()),
    }


def choose_threshold(outputs: Outputs, score: openset.Score, rule: str) -> openset.Threshold:
    """One threshold for a model; an oracle is shown all targets together."""
    target = outputs["target"]
    return openset.threshold(
        rule, score, validation=outputs["validation"].output, target=target.output, label=target.label
    )


def measure(outputs: Outputs, domains: Sequence[str], score: openset.Score, rule: str) -> dict[str, Any]:
    """The metrics on each target, their mean over the targets, and those on the sources, which know the domain.

    `targets` has them by domain and `target` their mean. `source` is plain open-set recognition: validation images
    against those of unknown classes in the source domains. What it lacks is lost to the unknown classes alone; what
    `target` lacks beyond it, to the unknown domain.
    """
    target, validation = outputs["target"], outputs["validation"]
    open_set = bool((target.label < 0).any()) or "source-unknown" in outputs
    threshold = choose_threshold(outputs, score, rule) if open_set else None
    targets = {
        domains[domain]: _measure(target.where(target.domain == domain), score, threshold)
        for domain in target.domain.unique().tolist()
    }
    found = {"target": mean_metrics(list(targets.values())), "targets": targets}
    if "source-unknown" in outputs:
        found["source"] = _measure(Seen.cat([validation, outputs["source-unknown"]]), score, threshold)
    return found


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every number that all have; what is no number must be the same in all."""
    first, *others = metrics
    shared = {key: value for key, value in first.items() if all(key in other for other in others)}
    return {
        key: math.fsum(one[key] for one in metrics) / len(metrics) if isinstance(value, float) else value
        for key, value in shared.items()
    }


def _measure(seen: Seen, score: openset.Score, threshold: openset.Threshold | None) -> dict[str, Any]:
    """Every metric of some images. Without unknown ones among them it is the accuracy alone."""
    output, label = seen.output, seen.label
    prediction = openset.predicted_class(output)
    plain = [entry for entry in openset.SCORES.values() if entry.fitter is None and entry.reads(output)]
    scores = {entry.name: entry(output) for entry in (*plain, score)}
    confidence = scores[score.name]
    if threshold is None or not bool((label < 0).any()):
        return {"acc": openset.acc(confidence, prediction, label)}
    oracle = openset.threshold("oracle-10", score, target=output, label=label)
    h = openset.hscore(confidence, prediction, label, threshold.value)
    areas = {name: openset.oscr(values, prediction, label) for name, values in scores.items()}
    ranked = openset.evaluate(confidence, prediction, label)
    balanced = {} if output.ova is None else _balance(output.ova, label)
    return {
        "acc": ranked.pop("acc"),
        "score": score.name,
        "threshold_rule": threshold.rule,
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


def _accuracy(seen: Seen) -> float:
    return float((seen.output.logits.argmax(1) == seen.label).double().mean())
