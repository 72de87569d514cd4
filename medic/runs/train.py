"""One run, from its settings to its directory: the loop around the trainer."""

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medic import distributed, openset
from medic.data import Dataset
from medic.errors import MedicError, TrainingError, counted, first_line, unwritten
from medic.runs import memory
from medic.runs.build import Network, make_network, make_trainer
from medic.runs.config import RunConfig
from medic.runs.directory import Run, RunDirectory, run_name
from medic.runs.evaluation import Evaluator, choose_threshold, measured, predictions
from medic.runs.interrupts import Interrupts, Stopped
from medic.runs.plans import COMPILED
from medic.runs.progress import Reporter, make_reporter, make_sayer
from medic.runs.resolve import Resolved, resolve
from medic.runs.selection import select, without_target
from medic.runs.trackers import Tracker, close_all, start_trackers, tell, tracker_names
from medic.models import OURS, Classifier
from medic.training import (
    Swad,
    load_checkpoint,
    save_checkpoint,
)

CHECKPOINT_SECONDS = 60.0
"""The work that a killed run loses at most, unless checkpoints are asked for by iterations."""


REFRESHED = 500
"""Iterations that batch-norm statistics of averaged weights are estimated from, or as many as the run had."""


Watch = Callable[[Mapping[str, Any]], None]
"""Is told of every evaluation, but not of what it measured on the target; may raise to end the run."""


def train(
    config: RunConfig,
    quiet: bool = False,
    watch: Watch = lambda record: None,
    interrupts: Interrupts | None = None,
) -> Run:
    """Do a run, or what is left of it, or nothing if it is done; its directory is made in `config.output`.

    Processes that `torchrun` started do it together; the first of them writes and speaks. It stops, with a checkpoint,
    on Ctrl-C and SIGTERM, or when `interrupts` are asked to.
    """
    began = time.monotonic()
    with distributed.group(), torch.random.fork_rng():  # the caller's global generator is left alone
        quiet = quiet or distributed.rank() > 0
        resolved = resolve(config)
        memory.forget_peak()  # of an earlier run of this process
        if resolved.model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(resolved.model.device)
        # What may be wrong with these is found before the images are read.
        tracker_names(config.track)
        network = make_network(resolved)
        say = make_sayer(quiet)
        dataset = resolved.data.load(say)
        images = resolved.data.fingerprint(dataset, resolved.config.axes or ())
        directory = RunDirectory(Path(config.output) / run_name(resolved.config, images, resolved.model.weights))
        if directory.done:
            say(f"{directory.path} is finished")
            return Run(directory.path)
        session = Session(resolved, dataset, network, directory, say, watch, began)
        for line in _notes(resolved):
            say(line)
        with directory.locked() if session.writes else nullcontext(), interrupts or Interrupts() as received:
            if distributed.any_rank(session.writes and directory.done):  # by another, since it was looked for above
                say(f"{directory.path} is finished")
                return Run(directory.path)
            try:
                session.run(received, quiet)
            except OSError as error:
                raise unwritten("run", directory.path, error) from error
        return Run(directory.path)


def _notes(plan: Resolved) -> Iterator[str]:
    """What a person should know before a long run."""
    if plan.model.backbone not in OURS and plan.model.weights is None:
        yield f"backbone {plan.model.backbone} starts from random weights; --weights FILE gives it trained ones"
    if not plan.data.classes.unknown:
        yield "every class is known, so only the accuracy is measured; --known or --split leaves some unknown"
    end = plan.config.iterations
    for begins in plan.model.objective.restarts(len(plan.training.grid.sizes)):
        if begins >= end:
            yield f"the penalty has its weight from iteration {begins} on, the run ends at {end}: --hparams anneal=N"


class Session:
    """A run in progress."""

    def __init__(
        self,
        resolved: Resolved,
        dataset: Dataset,
        network: Network,
        directory: RunDirectory,
        say: Callable[[str], None],
        watch: Watch,
        began: float,
    ) -> None:
        self.config, self.dataset, self.directory = resolved.config, dataset, directory
        self.writes = distributed.rank() == 0
        self.say = say
        self.plan, self.network = resolved, network
        self.problem = resolved.data.split(dataset)
        self.trainer = make_trainer(resolved, dataset, self.problem, say, network)
        inference = self.trainer.inference(self._evaluates_much(), self.config.views)
        score, rule = openset.get_score(resolved.model.score), resolved.model.threshold
        self.evaluator = Evaluator(dataset.domains, self.problem, inference, score, rule)
        self._check()
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.losses: list[float] = []  # of the iterations since the last evaluation
        self.seconds = 0.0  # of an iteration, since the last evaluation or start; no part of the result
        self.began = began  # less what was spent before the run was resumed
        self._saved, self._saved_at = 0, time.monotonic()
        self.averaging = resolved.training.averaging
        self.trackers: dict[str, Tracker] = {}
        self.watch = watch

    def _evaluates_much(self) -> bool:
        """Whether a compiled network pays for evaluation too."""
        evaluations = -(-self.config.iterations // self.plan.training.evaluate_every)
        images = len(self.problem.train) + sum(len(samples) for samples in measured(self.problem).values())
        return self.plan.model.compiled and evaluations * images >= COMPILED

    def _check(self) -> None:
        """Find out before anything is written whether the model takes the images, and the rule the target."""
        try:
            self.evaluator.inference(self.problem.train.indices[:1])
        except MedicError:
            raise
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            shape = " × ".join(map(str, self.dataset.images.shape[1:]))
            backbone, reason = self.plan.model.backbone, first_line(error)
            raise MedicError(f"backbone {backbone!r} does not take images of {shape}: {reason}") from error
        if openset.RULES[self.plan.model.threshold].oracle and not bool((self.problem.target.label < 0).any()):
            raise MedicError(f"threshold {self.plan.model.threshold!r} needs unknown images, and the target has none")

    def run(self, interrupts: Interrupts, quiet: bool) -> None:
        """Train to the end, and write everything."""
        resumes = self.directory.checkpoint.exists()
        distributed.barrier()
        if resumes:
            self._load()
            self.say(f"{self.directory.path} resumes at iteration {self.trainer.iteration}")
            if self.writes:
                self.directory.write_resumed(self.trainer.iteration)
        else:
            if self.writes:
                self.directory.write_start(self.config, self.dataset, self.plan.model)
            self._save()
        config = self.config
        if self.writes:
            self.trackers = start_trackers(config.track, self.directory.path, config, self.trainer.iteration)
        title = f"{config.method} → {', '.join(self.plan.data.targets)}"
        reporter = make_reporter(title, self.trainer.iteration, config.iterations, quiet)
        try:
            self._iterate(interrupts, reporter)
            if self.averaging is not None:
                self._average(self.averaging, reporter)
        except TrainingError as error:
            hint = f"the checkpoint of iteration {self._saved} is kept; a learning rate below {config.lr:g} may help"
            raise TrainingError(f"{error}; {hint}") from error
        except RuntimeError as error:
            if distributed.world() == 1:
                raise
            kept = f"the checkpoint of iteration {self._saved} is kept, and the same command resumes it"
            raise TrainingError(f"another process has ended: {first_line(error)}; {kept}") from error
        finally:
            reporter.close()
            close_all(self.trackers, self.say)
        self._finish()
        if interrupts.received:
            raise Stopped("stopped when the run was finished", interrupts.received)

    def _iterate(self, interrupts: Interrupts, reporter: Reporter) -> None:
        config, trainer = self.config, self.trainer
        every = self.plan.training.evaluate_every
        trainer.model.train()
        began, started = time.perf_counter(), trainer.iteration
        while trainer.iteration < config.iterations and not self._is_averaged():
            self.losses += trainer.step()
            if self.averaging is not None:
                self.averaging.update(self._weights())
            reporter.advance(trainer.iteration, self.losses[-1] if self.losses else None)
            last = trainer.iteration == config.iterations
            evaluating = last or trainer.iteration % every == 0
            if evaluating:
                self.losses += trainer.wait()
                self.seconds = (time.perf_counter() - began) / max(1, trainer.iteration - started)
                self._evaluate(reporter)
                began, started = time.perf_counter(), trainer.iteration
            stopping = distributed.any_rank(interrupts.received is not None)
            if evaluating or stopping or distributed.any_rank(self._checkpoint_due()):
                self.losses += trainer.wait()
                self._save()
            if stopping:
                stopped = f"stopped at iteration {trainer.iteration}; the same command resumes it"
                raise Stopped(stopped, interrupts.received or signal.SIGTERM)

    def _average(self, averaging: Swad, reporter: Reporter) -> None:
        """Put the averaged weights into the model, with batch-norm statistics that fit them, and measure it."""
        with torch.no_grad():
            torch._foreach_copy_(list[Tensor](self._weights()), averaging.result())
        self.trainer.refresh_statistics(min(REFRESHED, self.config.iterations))
        if not averaging.converged:
            reporter.say(
                f"the validation loss did not settle: of {counted(len(self.records), 'evaluation')} no "
                f"{averaging.converge} in a row begin with their lowest, so the weights since the last but one are "
                "averaged; more evaluations or iterations may find where it does"
            )
        self._evaluate(reporter, averaged=True)

    def _weights(self) -> list[nn.Parameter]:
        """What is averaged."""
        return [parameter for parameter in self.trainer.model.parameters() if parameter.requires_grad]

    def _is_averaged(self) -> bool:
        """Whether further iterations would not change the average."""
        return self.averaging is not None and self.averaging.dead

    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint_every
        if every is None:
            return time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
        return self.trainer.iteration % every == 0

    def _evaluate(self, reporter: Reporter, averaged: bool = False) -> None:
        """Measure the model, and keep its weights if they are the best so far by source validation."""
        self.trainer.check_finite()
        try:
            metrics = self.evaluator.record()
        except TrainingError as error:
            raise TrainingError(f"{error} at iteration {self.trainer.iteration}") from error
        record = {**self._progress(), **metrics, **self._averaged(averaged), **self._domainbed()}
        self.records.append(record)
        self.losses.clear()
        if self.averaging is not None and not averaged:
            self.averaging.close(record["validation"]["domain_loss"], record["iteration"])
        if self._selected() == len(self.records) - 1:
            self.best = {name: tensor.detach().clone() for name, tensor in self.trainer.model.state_dict().items()}
        if self.writes:
            self.directory.write_records(self.records)
        self.trackers = tell(self.trackers, record, reporter.say)
        self.watch(without_target(record, self.problem.targets))
        found = "  ".join(
            f"{name} {100 * record['target'][key]:.1f}"
            for name, key in (("acc", "acc"), ("H-score", "hscore"), ("OSCR", "oscr"))
            if key in record["target"]
        )
        validation = 100 * record["validation"]["acc"]
        what = "averaged weights" if averaged else f"iteration {record['iteration']}"
        reporter.say(f"{what}: validation acc {validation:.1f}; target {found}")

    def _averaged(self, averaged: bool) -> dict[str, Any]:
        """What a record says of averaged weights: that they are, and whether the loss had converged before."""
        if not averaged or self.averaging is None:
            return {}
        return {"averaged": True, "converged": self.averaging.converged}

    def _selected(self) -> int:
        """The position of the record that source validation selects."""
        return select([without_target(record, self.problem.targets) for record in self.records])

    def _progress(self) -> dict[str, Any]:
        trainer, gigabyte = self.trainer, 2**30
        images = trainer.iteration * trainer.batch_size * trainer.grid.tasks
        on_gpu = self.plan.model.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated() if on_gpu else memory.peak()
        advice = {name: value for advisor in trainer.advisors for name, value in advisor.report().items()}
        return {
            "iteration": trainer.iteration,
            "step": trainer.iteration,
            "epoch": images / len(self.problem.train),
            "loss": float(np.mean(self.losses)) if self.losses else self.records[-1]["loss"],
            "lr": trainer.rates[0] * trainer.schedule.factor(trainer.iteration - 1),
            "step_time": self.seconds,
            "mem_gb": peak / gigabyte,
            **({"advice": advice} if advice else {}),
        }

    def _domainbed(self) -> dict[str, Any]:
        """The keys that DomainBed's own scripts group runs by."""
        config = self.config
        return {
            "args": {
                "dataset": self.plan.data.benchmark.domainbed or config.dataset,
                "algorithm": config.method,
                "test_envs": list(self.problem.targets),
                "seed": config.seed,
                "trial_seed": self.plan.data.trial_seed,
                "hparams_seed": config.hparams_seed,
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
            "spent": time.monotonic() - self.began,
            "averaging": None if self.averaging is None else self.averaging.state_dict(),
        }
        if self.writes:
            save_checkpoint(self.directory.checkpoint, state)
        distributed.barrier()
        self._saved, self._saved_at = self.trainer.iteration, time.monotonic()

    def _load(self) -> None:
        state = load_checkpoint(self.directory.checkpoint)
        try:
            self.trainer.load_state_dict(state["trainer"])
            self.records, self.best, self.losses = state["records"], state["best"], state["losses"]
            if self.averaging is not None:
                self.averaging.load_state_dict(state["averaging"])
        except (KeyError, RuntimeError, TypeError, ValueError, IndexError) as error:
            path = self.directory.checkpoint
            raise MedicError(f"checkpoint {path} is not of this run; delete it to start this run again") from error
        self._saved = self.trainer.iteration
        self.began -= state.get("spent", 0.0)
        if self.writes:
            self.directory.write_records(self.records)

    def _finish(self) -> None:
        """Write the selected model and its predictions."""
        model = self.trainer.model
        model.load_state_dict(self.best)
        score = self.evaluator.fitted_score()
        outputs = self.evaluator.infer_all(self.config.save_features or "features" in score.needs)
        threshold = choose_threshold(outputs, score, self.plan.model.threshold)
        saved = outputs
        if self.config.save_features:  # what scores are fitted on, too
            saved = {**outputs, "train": self.evaluator.infer(self.problem.train, features=True)}
        if self.writes:
            self.directory.write_predictions(predictions(self.dataset, self.problem, saved, score, threshold.value))
            if isinstance(score.function, openset.Fitted):
                self.directory.write_score(score.function.tensors)
            self.directory.write_model(self._whole(model), self._description(threshold, self._selected()))
            self.directory.write_done(time.monotonic() - self.began)
        distributed.barrier()
        last = self.records[-1]
        images = self.trainer.batch_size * self.trainer.grid.tasks / last["step_time"] if last["step_time"] else 0.0
        where = "on the GPU" if self.plan.model.device.type == "cuda" else "of the process"
        self.say(f"{images:.0f} images/s in training; peak memory {where} {last['mem_gb']:.2f} GiB")

    def _whole(self, model: nn.Module) -> nn.Module:
        """The model with the backbone that it was frozen without."""
        if self.network.frozen is None:
            return model
        whole = Classifier(self.network.frozen, len(self.problem.known), self.plan.model.head)
        whole.head.load_state_dict(model.head.state_dict())  # type: ignore[union-attr]
        return whole

    def _description(self, threshold: openset.Threshold, record: int) -> dict[str, Any]:
        config, preprocessing = self.config, self.trainer.preprocessing
        data = self.plan.data
        return {
            "model": {"backbone": config.backbone, "head": config.head, "networks": self.plan.model.networks},
            "classes": list(self.problem.known),
            "preprocessing": dataclasses.asdict(preprocessing),
            "views": config.views,
            "score": {"name": config.score, "state": {}},
            "threshold": threshold._asdict(),
            "provenance": {
                "dataset": config.dataset,
                "images": self.dataset.hash,
                "split": {
                    "name": data.classes.name(config.dataset, data.opened.classes),
                    "hash": data.classes.hash,
                    "openness": data.classes.openness,
                },
                "sources": list(data.sources),
                "target": list(data.targets),
                "method": config.method,
                "seed": config.seed,
                "selection": "averaged weights"
                if self.averaging is not None
                else "pooled source-validation accuracy, first on ties",
                "iteration": self.records[record]["iteration"],
                "record": record,
            },
        }
