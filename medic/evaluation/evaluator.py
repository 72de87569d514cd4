"""Evaluate a model on validation and target images. Training never reads the labels of target images."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from medic import openset
from medic.data import Dataset, Problem, Samples
from medic.errors import TrainingError
from medic.evaluation.selection import pack
from medic.models import Classifier
from medic.openset.metrics import OVA_METRICS, KnownOdds, Outcomes
from medic.openset.scores import CheckedOutput
from medic.openset.shift import FEWEST
from medic.openset.thresholds import best_of_ten
from medic.training import Inference
from medic.utils.outputs import LinearHead, Output


class LabelledOutputs(NamedTuple):
    """Model outputs for N images, with labels and domains of shape (N,)."""

    output: Output
    label: Tensor
    domain: Tensor

    @classmethod
    def of(cls, output: Output, samples: Samples) -> "LabelledOutputs":
        """Attach labels and domains to the outputs, on the outputs' device."""
        device = output.logits.device
        return cls(output, samples.label.to(device), samples.domain.to(device))

    @classmethod
    def cat(cls, several: "Sequence[LabelledOutputs]") -> "LabelledOutputs":
        """Concatenate labelled outputs."""
        outputs, labels, domains = zip(*several, strict=True)
        return cls(Output.cat(outputs), torch.cat(labels), torch.cat(domains))

    def where(self, mask: Tensor) -> "LabelledOutputs":
        """Return the images selected by a mask of shape (N,)."""
        return LabelledOutputs(self.output.map(lambda rows: rows[mask]), self.label[mask], self.domain[mask])

    def cpu(self) -> "LabelledOutputs":
        """Return a copy on the CPU."""
        return LabelledOutputs(self.output.map(Tensor.cpu), self.label.cpu(), self.domain.cpu())

    @property
    def correct(self) -> Tensor:
        """Whether each image's largest logit belongs to its label, of shape (N,)."""
        return self.output.logits.argmax(1) == self.label

    @property
    def accuracy(self) -> float:
        """The share of correctly classified images."""
        return float(self.correct.double().mean())


Outputs = dict[str, LabelledOutputs]
"""Labelled outputs by split: `validation`, `target` and, if the sources contain unknown classes, `source-unknown`."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluator for a model on one problem, with one score and one threshold rule, on the model's device."""

    domains: tuple[str, ...]
    problem: Problem
    inference: Inference
    score: openset.Score
    rule: str

    @property
    def images(self) -> int:
        """The number of images that `record` evaluates."""
        return len(self.problem.train) + sum(map(len, measured(self.problem).values()))

    def infer(self, samples: Samples, features: bool) -> LabelledOutputs:
        """Return the model's outputs for samples, with backbone features if requested."""
        output = self.inference(samples.indices, features)
        if not bool(output.logits.isfinite().all()) or not (output.ova is None or bool(output.ova.isfinite().all())):
            raise TrainingError("the model's output became infinite or NaN")
        return LabelledOutputs.of(output, samples)

    def infer_all(self, features: bool = False) -> Outputs:
        """Return the model's outputs for every evaluated split."""
        return {split: self.infer(samples, features) for split, samples in measured(self.problem).items()}

    def validation(self) -> dict[str, float]:
        """Return the metrics on source validation only."""
        return measure_validation(self.infer(self.problem.validation, features=False))

    def record(self) -> dict[str, Any]:
        """Return the metrics of one evaluation, including DomainBed's keys (`env0_in_acc`, …)."""
        features = "features" in self.score.needs
        train, outputs = self.infer(self.problem.train, features), self.infer_all(features)
        score = fit_score(self.score, {**outputs, "train": train}, self.head)
        return {
            "validation": {
                **measure_validation(outputs["validation"]),
                **measure_calibration(outputs["validation"], find_confidences(outputs["validation"].output, score)),
            },
            **measure(outputs, self.domains, score, self.rule),
            **self._by_domain(train, outputs["validation"], outputs["target"]),
        }

    def _by_domain(
        self, train: LabelledOutputs, validation: LabelledOutputs, target: LabelledOutputs
    ) -> dict[str, float | str]:
        """Return the accuracy on known classes by domain, for DomainBed's `in` (training) and `out` parts.

        For held-out and target images, also return which images are classified correctly, so that two evaluations can
        be compared image by image.
        """
        known, held_out = target.label >= 0, self.problem.held_out.to(target.label.device)
        source_parts = {"in": train, "out": validation}
        target_parts = {"in": target.where(known & ~held_out), "out": target.where(known & held_out)}
        by_domain: dict[str, float | str] = {}
        for domain in sorted(self.problem.sources + self.problem.targets):
            for part, outputs in (source_parts if domain in self.problem.sources else target_parts).items():
                here = outputs.where(outputs.domain == domain)
                if len(here.label):
                    by_domain[f"env{domain}_{part}_acc"] = here.accuracy
                if len(here.label) and outputs is not train:
                    by_domain[f"env{domain}_{part}_correct"] = pack(here.correct.tolist())
        return by_domain

    @property
    def head(self) -> LinearHead | None:
        """The linear head of the model, if it has one."""
        return find_linear_head(self.inference.model)


def find_linear_head(model: nn.Module) -> LinearHead | None:
    """Return a model's linear head, or None if the model has another type of head or is not a `Classifier`."""
    return model.linear_head() if isinstance(model, Classifier) else None


def fit_score(score: openset.Score, outputs: Outputs, head: LinearHead | None) -> openset.Score:
    """Return the score, fitted on its split if it is not fitted yet."""
    if score.fitter is None:
        return score
    seen = outputs[score.split]
    return score.fit(seen.output, seen.label, head)


def make_reference(held_out: LabelledOutputs, score: openset.Score) -> openset.Reference | None:
    """Return the source reference that new images are compared with, or None if there are too few images."""
    features = held_out.output.features
    if features is None or len(held_out.label) < 2 * FEWEST:
        return None
    return openset.Reference.fit(score(held_out.output), held_out.correct, features, held_out.domain)


def measured(problem: Problem) -> dict[str, Samples]:
    """Return the samples of each non-empty evaluated split."""
    splits = {"validation": problem.validation, "source-unknown": problem.source_unknown, "target": problem.target}
    return {split: samples for split, samples in splits.items() if len(samples)}


def predictions(
    dataset: Dataset, problem: Problem, outputs: Outputs, score: openset.Score, threshold: float
) -> dict[str, Any]:
    """Return NumPy arrays with one row per image: path, labels, outputs, and the decision at the threshold."""
    samples = {**measured(problem), "train": problem.train}
    indices = torch.cat([samples[split].indices for split in outputs])
    output, label, domain = LabelledOutputs.cat(list(outputs.values())).cpu()
    confidence = score(output)
    parts = {"ova_logits": output.ova, "unknown_logit": output.unknown, "features": output.features}
    return {
        "path": np.array([dataset.paths[index] for index in indices.tolist()]),
        "class": np.array(dataset.classes)[dataset.label[indices].numpy()],
        "split": np.array([split for split, part in outputs.items() for _ in part.label]),
        "domain": np.array([dataset.domains[index] for index in domain.tolist()]),
        "label": label.numpy(),
        "prediction": openset.decide(confidence, openset.predicted_class(output), threshold).numpy(),
        "confidence": confidence.numpy(),
        "logits": output.logits.numpy(),
        **{name: part.numpy() for name, part in parts.items() if part is not None},
    }


def measure_validation(outputs: LabelledOutputs) -> dict[str, float]:
    """Return the metrics on source validation, and their values at chance.

    `acc` and `loss` (cross-entropy) are pooled over the source domains, and `domain_loss` is the mean of the domains'
    losses. `class_acc` is the mean accuracy over the C classes that occur. A model that ignores the image has a
    `class_acc` of 1 / C (`chance_acc`) with the standard error `chance_error`, and a loss of at least `chance_loss`,
    the entropy of the class shares in nats.
    """
    counts = outputs.label.bincount().double()
    correct = outputs.label[outputs.correct].bincount(minlength=len(counts))
    occurs = counts > 0
    chance = 1 / int(occurs.sum())
    losses = functional.cross_entropy(outputs.output.logits.double(), outputs.label, reduction="none")
    domains = [losses[outputs.domain == domain].mean() for domain in outputs.domain.unique()]
    return {
        "acc": outputs.accuracy,
        "loss": float(losses.mean()),
        "domain_loss": float(torch.stack(domains).mean()),
        "images": len(losses),
        "class_acc": float((correct / counts)[occurs].mean()),
        "chance_acc": chance,
        "chance_error": chance * math.sqrt(chance * (1 - chance) * float((1 / counts[occurs]).sum())),
        "chance_loss": float(torch.special.entr(counts / counts.sum()).sum()),
    }


def find_confidences(
    output: Output, score: openset.Score, checked: CheckedOutput | None = None
) -> dict[openset.Score, Tensor]:
    """Return confidences of shape (N,) for `score` and for every score that needs no fitting.

    `checked` is the checked form of `output`, if it already exists.
    """
    checked = checked or CheckedOutput(output)
    plain = {entry.name: entry for entry in openset.SCORES.values() if entry.fitter is None and entry.reads(output)}
    return {entry: entry(checked) for entry in (plain | {score.name: score}).values()}


def measure_calibration(outputs: LabelledOutputs, confidences: Mapping[openset.Score, Tensor]) -> dict[str, float]:
    """Return calibration error, Brier score and negative log-likelihood on known images, for scores with probabilities.

    All three compare the predicted probability with whether the prediction is correct.
    """
    known = outputs.label >= 0
    correct = outputs.correct[known]
    metrics = {}
    for score, confidence in confidences.items():
        if score.probability:
            probability = confidence[known].sigmoid()
            metrics[f"ece/{score.name}"] = openset.ece(probability, correct)
            metrics[f"brier/{score.name}"] = openset.brier(probability, correct)
            metrics[f"nll/{score.name}"] = openset.nll(confidence[known], correct)
    return metrics


def choose_threshold(outputs: Outputs, score: openset.Score, rule: str | float) -> openset.Threshold:
    """Return one threshold for all target domains; `rule` is a rule or a fixed number."""
    if not isinstance(rule, str):
        return openset.chosen_threshold(score, rule)
    target = outputs["target"]
    return openset.threshold(
        rule, score, validation=outputs["validation"].output, target=target.output, label=target.label
    )


def measure(outputs: Outputs, domains: Sequence[str], score: openset.Score, rule: str | float) -> dict[str, Any]:
    """Return the metrics for each target domain (`targets`), their mean (`target`), and `source` metrics.

    `source` measures open set recognition without domain shift: validation images against images of unknown classes
    from the source domains. Its errors are caused by unknown classes only. Additional errors on `target` are caused by
    the domain shift.
    """
    target, validation = outputs["target"], outputs["validation"]
    open_set = bool((target.label < 0).any()) or "source-unknown" in outputs
    threshold = choose_threshold(outputs, score, rule) if open_set else None
    sources = None if _same_domains(target, validation) else _rate_sources(outputs, score)
    targets = {
        domains[domain]: measure_outputs(target.where(target.domain == domain), score, threshold, sources)
        for domain in target.domain.unique().tolist()
    }
    metrics = {"target": mean_metrics(list(targets.values())), "targets": targets}
    if "source-unknown" in outputs:
        metrics["source"] = measure_outputs(
            LabelledOutputs.cat([validation, outputs["source-unknown"]]), score, threshold
        )
    return metrics


def _same_domains(target: LabelledOutputs, validation: LabelledOutputs) -> bool:
    """Return whether the target images are held-out source images, as in a run without a target."""
    return bool(torch.isin(target.domain, validation.domain).any())


def _rate_sources(outputs: Outputs, score: openset.Score) -> openset.Place:
    """Return the confidences of the held-out source images, known and unknown."""
    known = score(outputs["validation"].output)
    return openset.Place(known, score(outputs["source-unknown"].output) if "source-unknown" in outputs else known[:0])


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average every number that all records contain, and keep the first record's other values."""
    first, *others = metrics
    shared = {key: value for key, value in first.items() if all(key in other for other in others)}
    return {
        key: math.fsum(record[key] for record in metrics) / len(metrics) if isinstance(value, float) else value
        for key, value in shared.items()
    }


def add_scores(
    record: dict[str, Any], outputs: Outputs, domains: Sequence[str], scores: Sequence[openset.Score]
) -> None:
    """Add OSCR and calibration metrics for additional fitted scores to the record of an evaluation."""
    target = outputs["target"]
    for domain in target.domain.unique().tolist():
        here = target.where(target.domain == domain)
        outcomes = Outcomes.of(openset.predicted_class(here.output), here.label)
        confidences = {score: score(here.output) for score in scores}
        metrics = measure_calibration(here, confidences)
        if outcomes.sizes[1]:
            metrics |= {f"oscr/{score.name}": openset.oscr(outcomes.rank(c)) for score, c in confidences.items()}
        record["targets"][domains[domain]] |= metrics
    record["target"] = mean_metrics(list(record["targets"].values()))
    validation = outputs["validation"]
    probable = {score: score(validation.output) for score in scores if score.probability}
    record["validation"] |= measure_calibration(validation, probable)


def measure_outputs(
    outputs: LabelledOutputs,
    score: openset.Score,
    threshold: openset.Threshold | None,
    sources: openset.Place | None = None,
) -> dict[str, Any]:
    """Return all metrics for labelled outputs. Without unknown images, open-set metrics are omitted.

    Without `threshold`, metrics at the threshold are omitted. Without `sources`, full-spectrum metrics are omitted.
    """
    output = CheckedOutput(outputs.output)
    outcomes = Outcomes.of(output.prediction, outputs.label)
    by_score = find_confidences(outputs.output, score, output)
    calibration = measure_calibration(outputs, by_score)
    confidences = {entry.name: confidence for entry, confidence in by_score.items()}
    place = openset.Place.of(confidences[score.name], outcomes.known)
    spectrum = {} if sources is None else openset.Spectrum(sources, place).metrics()
    if not outcomes.sizes[1]:
        return {"acc": outcomes.acc, **spectrum, **calibration}
    rankings = {name: outcomes.rank(confidence) for name, confidence in confidences.items()}
    oracle = best_of_ten(score, output, confidences[score.name], outcomes)
    values = [oracle.value] if threshold is None else [oracle.value, threshold.value]
    at_oracle, *at_threshold = outcomes.hscores(confidences[score.name], values)
    rule = {} if threshold is None else {"threshold_rule": threshold.rule, "threshold": threshold.value}
    ranked = openset.evaluate(rankings.pop(score.name))
    areas = {name: ranked["oscr"] if name == score.name else openset.oscr(rankings[name]) for name in confidences}
    ova = None if outputs.output.ova is None else KnownOdds.of(output.log_odds, outcomes.label, outcomes.known)
    return {
        "acc": ranked.pop("acc"),
        "score": score.name,
        **rule,
        **{name: value for hscore in at_threshold for name, value in hscore._asdict().items()},
        "hscore/oracle-10": at_oracle.hscore,
        **{f"oscr/{name}": area for name, area in areas.items()},
        "oscr_c": areas["cls"],
        **({"oscr_b": areas["bcls"]} if "bcls" in areas else {}),
        **ranked,
        "aurc": openset.aurc(confidences[score.name], outcomes.correct),
        **spectrum,
        **calibration,
        **({} if ova is None else {key: metric(ova) for key, metric in OVA_METRICS.items()}),
    }
