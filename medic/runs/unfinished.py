"""Unfinished runs, whether trained or averaged: evaluate them, select the model, and write the result."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medic import openset
from medic.config.data import NONE
from medic.config.plan import Plan
from medic.data import Dataset, Problem
from medic.deploy.model_file import HeldOut, describe_preprocessing, keep_known, write_model
from medic.errors import MedicError
from medic.evaluation.evaluator import (
    Evaluator,
    Outputs,
    add_scores,
    choose_threshold,
    find_linear_head,
    fit_score,
    make_reference,
    measured,
    predictions,
)
from medic.evaluation.learning import learning_failure
from medic.evaluation.selection import select, without_target
from medic.models import Classifier
from medic.models.backbones import OWN
from medic.models.tuning import merge_adapters
from medic.runs.build import COMPILED, Network, build_trainer, compiles
from medic.runs.data import divide_images, fingerprint
from medic.runs.directory import RunDirectory, run_hash
from medic.runs.run import Run
from medic.utils import distributed

logger = logging.getLogger(__name__)

REFRESHED = 30
"""Maximum number of iterations used to re-estimate batch-norm statistics for averaged weights."""


def find_directory(plan: Plan, dataset: Dataset) -> tuple[str, RunDirectory]:
    """Return a run's hash and directory; raise an error if the directory contains another run."""
    run = run_hash(plan, fingerprint(plan, dataset))
    directory = RunDirectory(Path(plan.config.execution.output) / (plan.config.execution.name or run))
    directory.check_named(plan, run)
    return run, directory


def finished_run(directory: RunDirectory) -> Run:
    """Return a run that is already finished, after verifying its files."""
    run = Run(directory.path)
    run.check()
    logger.info("%s is finished", run.path)
    return run


def divide(plan: Plan, dataset: Dataset) -> Problem:
    """Split the images, and check that the target has the unknown images that the threshold rule requires."""
    problem, rule = divide_images(plan, dataset), plan.config.evaluation.threshold
    if openset.RULES[rule].oracle and not bool((problem.target.label < 0).any()):
        raise MedicError(f"threshold {rule!r} requires unknown images, but the target has none: use --threshold source")
    return problem


class UnfinishedRun:
    """A model with everything needed to evaluate it, select weights, and write the result."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        problem: Problem,
        network: Network,
        directory: RunDirectory,
        run: str,
        evaluations: int,
        began: float,
    ) -> None:
        """Prepare the run with hash `run`, which will be evaluated about `evaluations` times."""
        self.plan, self.dataset, self.network, self.directory, self.hash = plan, dataset, network, directory, run
        self.device = plan.device
        self.writes = distributed.rank() == 0
        self.problem = problem
        self.trainer = build_trainer(plan, dataset, problem, network)
        self.rule = plan.config.evaluation.threshold
        inference = self.trainer.inference(self._compiles_evaluation(evaluations), plan.config.evaluation.views)
        score = openset.get_score(plan.config.evaluation.score)
        self.evaluator = Evaluator(dataset.domains, self.problem, inference, score, self.rule)
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.began = began  # minus the time spent before the run was resumed

    def _other_scores(self, score: openset.Score) -> Iterator[openset.Score]:
        """Yield scores that require fitting, other than the run's own, if the model provides their inputs."""
        head = self.plan.config.model.head_kind
        linear = find_linear_head(self.trainer.model) is not None
        parts = {"features": True, "ova": head.ova, "unknown": head.unknown, "head": linear}
        for entry in openset.SCORES.values():
            if entry.fitter is not None and entry.name != score.name and all(parts.get(need) for need in entry.needs):
                yield entry

    def _fit_scores(self, scores: Iterable[openset.Score], outputs: Outputs) -> Iterator[openset.Score]:
        """Yield the fitted scores, and warn about scores that cannot be fitted to these images."""
        for score in scores:
            try:
                yield fit_score(score, outputs, self.evaluator.head)
            except MedicError as error:
                logger.warning("skipping score %s: %s", score.name, error)

    def _compiles_evaluation(self, evaluations: int) -> bool:
        """Return whether to compile the evaluation pass.

        This depends on source data only: compiled code rounds differently, so the target must not influence the choice.
        """
        images = len(self.problem.train) + len(self.problem.validation)
        return compiles(self.plan, self.device) and evaluations * images >= COMPILED

    def load_average(self, tensors: Sequence[Tensor]) -> None:
        """Load averaged weights into the model and re-estimate its batch-norm statistics."""
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](self.trainer.trained), list(tensors))
        self.trainer.refresh_statistics(min(REFRESHED, self.plan.config.optim.iterations))

    def add_record(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Add an evaluation to the records, and keep the current weights if source validation selects them."""
        record = {**measured, **self.provenance()}
        self.records.append(record)
        if self.selected() == len(self.records) - 1:
            self.best = {name: tensor.detach().clone() for name, tensor in self.trainer.model.state_dict().items()}
        if self.writes:
            self.directory.write_records(self.records)
        return record

    def selected(self) -> int:
        """Return the index of the record that source validation selects."""
        return select([without_target(record, self.problem.targets) for record in self.records])

    def provenance(self) -> dict[str, Any]:
        """Return the record entries that DomainBed's scripts use to group and list runs."""
        plan, optim = self.plan, self.plan.config.optim
        trial = plan.config.data.trial_seed
        return {
            "args": {
                "dataset": plan.benchmark.domainbed or plan.config.data.dataset,
                "algorithm": plan.config.run.method,
                "test_envs": list(self.problem.targets),
                "seed": plan.seed,
                "trial_seed": plan.seed if trial is None else trial,
                "hparams_seed": plan.config.objective.hparams_seed,
                "holdout_fraction": plan.config.data.holdout,
            },
            "hparams": {
                "lr": optim.lr,
                "weight_decay": optim.weight_decay,
                "batch_size": plan.batch_size,
                **(plan.config.objective.hparams or {}),
            },
        }

    def finish(self, writing: AbstractContextManager[Any], **origin: Any) -> None:
        """Write the selected model and its predictions inside the `writing` context.

        `origin` contains the provenance entries that describe where the weights come from.
        """
        model, evaluation = self.trainer.model, self.plan.config.evaluation
        model.load_state_dict(self.best)
        if merge_adapters(model):
            self.evaluator.inference.reset()
        score, samples = self.evaluator.score, measured(self.problem)
        if evaluation.save_features or evaluation.all_scores or (score.fitter is not None and score.split == "train"):
            samples["train"] = self.problem.train
        features = evaluation.save_features or evaluation.all_scores or "features" in score.needs
        # The reference for `medic watch` always requires the features of validation images.
        needed = {split: features or split == "validation" for split in samples}
        outputs = {split: self.evaluator.infer(part, needed[split]) for split, part in samples.items()}
        validation = outputs["validation"]
        if not features:
            outputs["validation"] = validation._replace(output=validation.output._replace(features=None))
        score = fit_score(score, outputs, self.evaluator.head)
        known = keep_known({"sources": score(validation.output)})
        threshold = choose_threshold(outputs, score, self.rule)
        if evaluation.all_scores:
            fitted = list(self._fit_scores(self._other_scores(score), outputs))
            add_scores(self.records[self.selected()], outputs, self.dataset.domains, fitted)
        with writing:
            self._write_result(outputs, score, threshold, HeldOut(known, make_reference(validation, score)), origin)
        distributed.barrier()

    def _write_result(
        self,
        outputs: Outputs,
        score: openset.Score,
        threshold: openset.Threshold,
        held_out: HeldOut,
        origin: Mapping[str, Any],
    ) -> None:
        """Write the predictions and the model, then mark the run as finished."""
        if self.writes:
            self.directory.write_records(self.records)
            saved = outputs if self.plan.config.evaluation.save_features else self._without_training(outputs, score)
            self.directory.write_predictions(predictions(self.dataset, self.problem, saved, score, threshold.value))
            if openset.RULES[self.rule].oracle:  # it uses target labels, which are not available in deployment
                threshold = choose_threshold(outputs, score, "source")
            described = self._description(threshold, self.selected(), origin)
            write_model(self.directory.path, self._whole(self.trainer.model), score, held_out, described)
            self.directory.write_done(time.monotonic() - self.began)

    @staticmethod
    def _without_training(outputs: Outputs, score: openset.Score) -> Outputs:
        """Return the outputs for evaluated images, with features only if the score needs them."""
        kept = {split: seen for split, seen in outputs.items() if split != "train"}
        if "features" in score.needs:
            return kept
        return {split: seen._replace(output=seen.output._replace(features=None)) for split, seen in kept.items()}

    def _whole(self, model: nn.Module) -> nn.Module:
        """Return the complete model: with a frozen backbone, `model` is only the head."""
        if self.network.frozen is None:
            return model
        whole = Classifier(self.network.frozen, len(self.problem.known), self.plan.config.model.head, True)
        whole.load_state_dict(model.state_dict(), strict=False)  # the head and its feature scaling
        return whole

    def _description(self, threshold: openset.Threshold, record: int, origin: Mapping[str, Any]) -> dict[str, Any]:
        plan, data = self.plan, self.plan.config.data
        classes = data.classes
        return {
            "model": {
                "backbone": plan.config.model.backbone,
                "head": plan.config.model.head,
                "networks": plan.networks,
                **({} if plan.config.model.pool == OWN else {"pool": plan.config.model.pool}),
                **({"scaled": True} if plan.config.model.head_alone else {}),
            },
            "classes": list(self.problem.known),
            "preprocessing": describe_preprocessing(self.trainer.preprocessing, data.store_size),
            "views": plan.config.evaluation.views,
            "score": {"name": plan.config.evaluation.score},
            "threshold": threshold._asdict(),
            "provenance": {
                "dataset": data.dataset,
                "images": self.dataset.hash,
                "split": {
                    "name": classes.name(data.dataset, self.dataset.classes),
                    "hash": classes.hash,
                    "openness": classes.openness,
                },
                "sources": data.sources,
                "target": data.target or [NONE],
                "method": plan.config.run.method,
                "seed": plan.seed,
                **origin,
                "iteration": self.records[record]["iteration"],
                "record": record,
                **({"learned": False} if learning_failure(self.records, record) else {}),
            },
        }
