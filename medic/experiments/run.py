"""One run, from its settings to its directory: the loop around the trainer."""

import dataclasses
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medic import openset
from medic.data import Dataset, Problem, make_problem
from medic.errors import MedicError, TrainingError, first_line
from medic.experiments.config import RunConfig
from medic.experiments.directory import Run, RunDirectory, run_name
from medic.experiments.evaluation import Evaluator
from medic.experiments.interrupts import Interrupts, Stopped
from medic.experiments.progress import Reporter, make_reporter, make_sayer
from medic.experiments.resolve import Resolved, resolve
from medic.experiments.selection import select, without_target
from medic.models import Classifier, create_backbone
from medic.outputs import Output
from medic.training import (
    Trainer,
    derive,
    generator,
    infer,
    load_checkpoint,
    save_checkpoint,
)


def train(config: RunConfig, quiet: bool = False) -> Run:
    """Do a run, or what is left of it, or nothing if it is done; its directory is made in `config.output`."""
    resolved = resolve(config)
    say = make_sayer(quiet)
    dataset = resolved.data.load(say)
    name = run_name(resolved.config, dataset.hash, resolved.model.weights)
    directory = RunDirectory(Path(config.output) / name)
    if directory.done:
        say(f"{directory.path} is finished")
        return Run(directory.path)
    with torch.random.fork_rng():  # the caller's global generator is left alone
        session = Session(resolved, dataset, directory)
        with directory.locked(), Interrupts() as interrupts:
            try:
                session.run(interrupts, quiet)
            except OSError as error:
                raise MedicError(f"run {directory.path} cannot be written: {error.strerror or error}") from error
    return Run(directory.path)


class Session:
    """A run in progress."""

    def __init__(self, resolved: Resolved, dataset: Dataset, directory: RunDirectory) -> None:
        self.config, self.dataset, self.directory = resolved.config, dataset, directory
        self.plan = resolved
        self.problem = split_data(resolved, dataset)
        self.trainer = make_trainer(resolved, dataset, self.problem)
        self.evaluator = Evaluator(
            dataset,
            self.problem,
            self.trainer.preprocessing,
            resolved.model.device,
            resolved.model.score,
            self.config.threshold,
        )
        self._check()
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.losses: list[float] = []  # of the iterations since the last evaluation
        self.seconds: list[float] = []  # likewise; since the last start only, they are no part of the result
        self._saved = 0

    def _check(self) -> None:
        """Find out before anything is written whether the model takes the images, and the rule the target."""
        model, plan = self.trainer.model, self.plan.model
        try:
            infer(model, self.dataset.images, self.problem.train.indices[:1], self.trainer.preprocessing, plan.device)
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            shape = " × ".join(map(str, self.dataset.images.shape[1:]))
            reason = first_line(error)
            raise MedicError(f"backbone {plan.backbone!r} does not take images of {shape}: {reason}") from error
        if openset.RULES[self.config.threshold].oracle and not bool((self.problem.target.label < 0).any()):
            raise MedicError(f"threshold {self.config.threshold!r} needs unknown images, and the target has none")

    def run(self, interrupts: Interrupts, quiet: bool) -> None:
        """Train to the end, and write everything."""
        if self.directory.checkpoint.exists():
            self._load()
            make_sayer(quiet)(f"{self.directory.path} resumes at iteration {self.trainer.iteration}")
        else:
            self.directory.write_start(self.config, self.dataset.hash)
            self._save()
        config = self.config
        title = f"{config.method} → {config.target}"
        reporter = make_reporter(title, self.trainer.iteration, config.iterations, quiet)
        try:
            self._iterate(interrupts, reporter)
        except TrainingError as error:
            hint = f"the checkpoint of iteration {self._saved} is kept; a learning rate below {config.lr:g} may help"
            raise TrainingError(f"{error}; {hint}") from error
        finally:
            reporter.close()
        self._finish()
        if interrupts.received:
            raise Stopped("stopped when the run was finished", interrupts.received)

    def _iterate(self, interrupts: Interrupts, reporter: Reporter) -> None:
        config, trainer = self.config, self.trainer
        every = self.plan.training.evaluate_every
        trainer.model.train()
        while trainer.iteration < config.iterations:
            began = time.perf_counter()
            self.losses.append(trainer.step())
            self.seconds.append(time.perf_counter() - began)
            reporter.advance(trainer.iteration, self.losses[-1])
            last = trainer.iteration == config.iterations
            evaluating = last or trainer.iteration % every == 0
            if evaluating:
                self._evaluate(reporter)
            if evaluating or interrupts.received or trainer.iteration % config.checkpoint_every == 0:
                self._save()
            if interrupts.received:
                stopped = f"stopped at iteration {trainer.iteration}; the same command resumes it"
                raise Stopped(stopped, interrupts.received)

    def _evaluate(self, reporter: Reporter) -> None:
        """Measure the model, and keep its weights if they are the best so far by source validation."""
        self.trainer.check_finite()
        try:
            measured = self.evaluator.record(self.trainer.model)
        except TrainingError as error:
            raise TrainingError(f"{error} at iteration {self.trainer.iteration}") from error
        record = {**self._progress(), **measured, **self._domainbed()}
        self.records.append(record)
        self.losses.clear()
        self.seconds.clear()
        shown = [without_target(record, self.problem.target_domain) for record in self.records]
        if select(shown) == len(shown) - 1:
            self.best = {name: tensor.detach().clone() for name, tensor in self.trainer.model.state_dict().items()}
        self.directory.write_records(self.records)
        found = "  ".join(
            f"{name} {100 * record['target'][key]:.1f}"
            for name, key in (("acc", "acc"), ("H-score", "hscore"), ("OSCR", "oscr"))
            if key in record["target"]
        )
        validation = 100 * record["validation"]["acc"]
        reporter.say(f"iteration {record['iteration']}: validation acc {validation:.1f}; target {found}")

    def _progress(self) -> dict[str, Any]:
        trainer, gigabyte = self.trainer, 2**30
        images = trainer.iteration * trainer.batch_size * trainer.grid.tasks
        on_gpu = self.plan.model.device.type == "cuda"
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, which systems disagree on
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        peak = torch.cuda.max_memory_allocated() if on_gpu else resident
        return {
            "iteration": trainer.iteration,
            "step": trainer.iteration,
            "epoch": images / len(self.problem.train),
            "loss": float(np.mean(self.losses)),
            "lr": trainer.optimizer.param_groups[0]["lr"],
            "step_time": float(np.mean(self.seconds)),
            "mem_gb": peak / gigabyte,
        }

    def _domainbed(self) -> dict[str, Any]:
        """The keys that DomainBed's own scripts group runs by."""
        config = self.config
        return {
            "args": {
                "dataset": config.dataset,
                "algorithm": config.method,
                "test_envs": [self.problem.target_domain],
                "seed": config.seed,
                "trial_seed": config.seed,
                "hparams_seed": 0,
                "holdout_fraction": config.holdout,
            },
            "hparams": config.identity(),
        }

    def _save(self) -> None:
        self.trainer.check_finite()
        state = {
            "trainer": self.trainer.state_dict(),
            "records": self.records,
            "best": self.best,
            "losses": self.losses,
        }
        save_checkpoint(self.directory.checkpoint, state)
        self._saved = self.trainer.iteration

    def _load(self) -> None:
        state = load_checkpoint(self.directory.checkpoint)
        try:
            self.trainer.load_state_dict(state["trainer"])
            self.records, self.best, self.losses = state["records"], state["best"], state["losses"]
        except (KeyError, RuntimeError, TypeError, ValueError, IndexError) as error:
            path = self.directory.checkpoint
            raise MedicError(f"checkpoint {path} is not of this run; delete it to start this run again") from error
        self._saved = self.trainer.iteration
        self.directory.write_records(self.records)

    def _finish(self) -> None:
        """Write the selected model and its predictions."""
        model = self.trainer.model
        model.load_state_dict(self.best)
        record = select([without_target(record, self.problem.target_domain) for record in self.records])
        validation = self.evaluator.infer(model, self.problem.validation)
        target = self.evaluator.infer(model, self.problem.target)
        score, config = self.plan.model.score, self.config
        label = self.problem.target.label
        threshold = openset.threshold(config.threshold, score, validation=validation, target=target, label=label)
        self.directory.write_predictions(
            prediction_arrays(self.dataset, self.problem, {"validation": validation, "target": target},
                              score, threshold.value, config.save_features)
        )  # fmt: skip
        self.directory.write_model(model, self._description(threshold, record))
        self.directory.write_done()

    def _description(self, threshold: openset.Threshold, record: int) -> dict[str, Any]:
        config, preprocessing = self.config, self.trainer.preprocessing
        size = self.plan.data.storage.size
        return {
            "model": {"backbone": config.backbone, "head": config.head},
            "classes": list(self.problem.known),
            "preprocessing": {"size": size, **dataclasses.asdict(preprocessing)},
            "score": {"name": config.score, "state": {}},
            "threshold": threshold._asdict(),
            "provenance": {
                "dataset": config.dataset,
                "images": self.dataset.hash,
                "sources": config.sources,
                "target": config.target,
                "method": config.method,
                "seed": config.seed,
                "selection": "pooled source-validation accuracy, first on ties",
                "iteration": self.records[record]["iteration"],
                "record": record,
            },
        }


def split_data(plan: Resolved, dataset: Dataset) -> Problem:
    """Split a dataset as a configuration says, the same way every time."""
    draws = generator(plan.config.seed, "split")
    return make_problem(dataset, plan.data.target, plan.data.known, draws, plan.data.sources, plan.config.holdout)


def make_trainer(plan: Resolved, dataset: Dataset, problem: Problem) -> Trainer:
    """Build what is trained and how, from a resolved configuration."""
    seed = plan.config.seed
    torch.manual_seed(derive(seed, "model"))
    backbone = create_backbone(plan.model.backbone, plan.model.weights)
    model = Classifier(backbone, len(problem.known), plan.model.head)
    # Convolutions are faster with the channels last, on a CPU as on a GPU; trainer and inference feed them so.
    model = model.to(plan.model.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    body = [p for p in model.backbone.parameters() if p.requires_grad]
    return Trainer(
        model=model,
        images=dataset.images,
        samples=problem.train,
        grid=plan.training.grid,
        strategy=plan.training.strategy,
        objective=plan.model.objective,
        optimizer=plan.training.optimizer.make(body, model.heads()),
        schedule=plan.training.schedule,
        recipe=plan.data.recipe,
        preprocessing=backbone.preprocessing,
        batch_size=plan.training.batch_size,
        generator=generator(seed, "augment"),
        clip_norm=plan.config.clip_norm,
        device=plan.model.device,
    )


def prediction_arrays(
    dataset: Dataset,
    problem: Problem,
    outputs: dict[str, Output],
    score: str,
    threshold: float,
    features: bool,
) -> dict[str, Any]:
    """Plain arrays, a row per image: what it is, what the model said of it, and the decision at the threshold."""
    samples = {"validation": problem.validation, "target": problem.target}
    indices = torch.cat([samples[split].indices for split in outputs])
    joined = Output.cat(list(outputs.values()))
    confidence = openset.score(score, joined)
    arrays = {
        "path": np.array([dataset.paths[index] for index in indices.tolist()]),
        "split": np.array([split for split, output in outputs.items() for _ in output.logits]),
        "domain": np.array([dataset.domains[index] for index in dataset.domain[indices].tolist()]),
        "label": torch.cat([samples[split].label for split in outputs]).numpy(),
        "prediction": openset.decide(confidence, openset.predicted_class(joined), threshold).numpy(),
        "confidence": confidence.numpy(),
        "logits": joined.logits.numpy(),
    }
    if joined.ova is not None:
        arrays["ova_logits"] = joined.ova.numpy()
    if features and joined.features is not None:
        arrays["features"] = joined.features.numpy()
    return arrays
