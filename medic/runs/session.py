"""Training of a run: iterations, evaluations, weight averaging and checkpoints."""

import logging
import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medic.config.plan import Plan
from medic.config.sources import is_live
from medic.data import Dataset, Problem
from medic.errors import MedicError, TrainingError, counted, first_line
from medic.evaluation.learning import at_chance, describe_chance
from medic.evaluation.selection import without_target
from medic.metrics import DEFAULT
from medic.runs.build import Network
from medic.runs.directory import RunDirectory
from medic.runs.hints import learning_hint, lower_rates
from medic.runs.interrupts import Interrupts, Stopped
from medic.runs.trackers import Tracker, close_all, record_all, start_trackers
from medic.runs.unfinished import UnfinishedRun
from medic.training import WeightAverage, load_checkpoint
from medic.utils import distributed, memory
from medic.utils.progress import Pause, Progress

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0
"""Default time between checkpoints, in seconds."""

Watch = Callable[[Mapping[str, Any]], None]
"""Callback that receives each evaluation without its target metrics. It may raise an exception to end the run."""


class Session(UnfinishedRun):
    """A run that is being trained."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        problem: Problem,
        network: Network,
        directory: RunDirectory,
        run: str,
        watch: Watch,
        began: float,
        base: Path | None = None,
    ) -> None:
        """Prepare the run with hash `run`; `base` is the checkpoint to continue from when extending a run."""
        self.every, self.base = plan.config.evaluation.evaluate_every, base
        evaluations = -(-plan.config.optim.iterations // self.every)
        super().__init__(plan, dataset, problem, network, directory, run, evaluations, began)
        self.losses: list[float] = []  # since the last evaluation
        self.seconds = 0.0  # per iteration, since the last evaluation or start; not part of the result
        self._saved, self._saved_at = 0, time.monotonic()
        averaging = plan.parts.averaging
        self.averaging: WeightAverage | None = None if averaging is None else averaging.build()
        self.trackers: dict[str, Tracker] = {}
        self.watch = watch

    def run(self, interrupts: Interrupts) -> None:
        """Train the run to the end and write its files."""
        plan = self.plan
        resumes = self.directory.started
        if resumes and any(is_live(name) for name in (plan.config.model.backbone, plan.config.data.dataset)):
            raise MedicError(
                f"run {self.directory.path} was started with Python objects and cannot be resumed: delete it, or pass "
                "a function from a module instead of the object"
            )
        distributed.barrier()
        if resumes:
            self._load(self.directory.checkpoint)
            logger.info("%s resumes at iteration %d", self.directory.path, self.trainer.iteration)
            if self.writes:
                self.directory.write_start(plan)  # again, in case a file was lost
                self.directory.write_resumed(self.trainer.iteration)
        else:
            if plan.config.run.extend is not None and self.base is None:
                raise MedicError(
                    f"run {self.directory.path} has no checkpoint: pass the run to continue with --extend RUN"
                )
            if self.writes:
                self.directory.write_environment(plan, self.dataset, self.hash)  # first: it contains the run's hash
                self.directory.write_start(plan)
            if self.base is not None:
                self._load(self.base)
                earlier, self.records = self.records, []
                for record in earlier:  # they now count as evaluations of this run
                    self.records.append({**record, **self.provenance()})
                logger.info("continuing %s at iteration %d", self.base.parents[1], self.trainer.iteration)
            self._save()
        if self.writes:
            self.trackers = start_trackers(
                plan.config.execution.track,
                self.directory.path,
                self.hash,
                plan.config,
                self.records[-1]["iteration"] if self.records else 0,
            )
        title = f"{plan.config.run.method} → {', '.join(plan.config.data.target) or 'all domains'}"
        with Progress(title, self.trainer.iteration, plan.config.optim.iterations, self._pauses()) as progress:
            self.evaluator.inference.on_images = progress.count_images
            self._train(interrupts, progress)
            with progress.pause("evaluating"):
                self._finish(interrupts)
        self._report(progress.speed)
        if interrupts.received:
            how = f"print its results with: medic table {shlex.quote(str(self.directory.path))}"
            raise Stopped(f"the run finished before it could be stopped; {how}", interrupts.received)

    def _train(self, interrupts: Interrupts, progress: Progress) -> None:
        """Train until the last iteration, then average the weights."""
        try:
            self._iterate(interrupts, progress)
            if self.averaging is not None:
                self._average(self.averaging, progress)
        except TrainingError as error:
            hint = f"the checkpoint from iteration {self._saved} is kept; {lower_rates(self.plan)}"
            raise TrainingError(f"{error}; {hint}") from error
        except RuntimeError as error:
            if not distributed.is_lost_connection(error):
                raise
            kept = f"the checkpoint from iteration {self._saved} is kept: rerun the same command to resume"
            raise TrainingError(f"another process exited: {first_line(error)}; {kept}") from error
        finally:
            close_all(self.trackers)

    def _pauses(self) -> dict[Pause, int]:
        """Return the numbers of remaining evaluations and of remaining validations for the weight average.

        Averaging itself happens once, at the end, and takes as long as a few iterations, so it is not counted.
        """
        start, iterations = self.trainer.iteration, self.plan.config.optim.iterations
        evaluations = -(-iterations // self.every) - start // self.every if start < iterations else 0
        evaluations += self._evaluation_due()
        if self.averaging is None:
            return {"evaluating": evaluations + 1}
        validations = sum(self.averaging.close_due(iteration, iterations) for iteration in range(start, iterations + 1))
        return {"evaluating": evaluations + 2, **({"validating": validations} if validations else {})}

    def _iterate(self, interrupts: Interrupts, progress: Progress) -> None:
        """Train until the last iteration, with evaluations, checkpoints and validations for the weight average.

        A checkpoint may have been saved just before a validation or evaluation. The loop therefore starts with what is
        due, and the last record tells whether the weights have been evaluated.
        """
        trainer, iterations = self.trainer, self.plan.config.optim.iterations
        trainer.model.train()
        began, started = progress.training, trainer.iteration
        while True:
            evaluating = self._evaluation_due()
            if evaluating and trainer.iteration > started:
                self.losses += trainer.wait()
                self.seconds = (progress.training - began) / (trainer.iteration - started)
            if self.averaging is not None and self.averaging.close_due(trainer.iteration, iterations):
                images = len(self.problem.validation)
                with self._paused_for("validating", images, interrupts, progress):
                    with self._naming_iteration():
                        loss = self.evaluator.validation()["domain_loss"]
                    self.averaging.close(loss, trainer.iteration)
                progress.expect(self._pauses())
            if evaluating:
                with self._paused_for("evaluating", self.evaluator.images, interrupts, progress):
                    self._evaluate()
                began, started = progress.training, trainer.iteration
            stopping = distributed.any_rank(interrupts.received is not None)
            if evaluating or stopping or distributed.any_rank(self._checkpoint_due()):
                self._checkpoint(interrupts)
            if stopping:
                stopped = f"stopped at iteration {trainer.iteration}: rerun the same command to resume"
                raise Stopped(stopped, interrupts.received or signal.SIGTERM)
            if trainer.iteration == iterations:
                return
            self.losses += trainer.step()
            if self.averaging is not None:
                self.averaging.update(trainer.trained, trainer.iteration / iterations)
            last = f"{self.losses[-1]:.3f}" if self.losses else "–"
            progress.advance(trainer.iteration, f"training  loss {last}")

    def _evaluation_due(self) -> bool:
        """Return whether the current weights are still to be evaluated."""
        iteration = self.trainer.iteration
        evaluated = self.records[-1]["iteration"] if self.records else 0
        return iteration > evaluated and (iteration % self.every == 0 or iteration == self.plan.config.optim.iterations)

    @contextmanager
    def _paused_for(self, state: Pause, images: int, interrupts: Interrupts, progress: Progress) -> Iterator[None]:
        """Pause training to evaluate some images. Saves a checkpoint first if the last one would become too old."""
        self.losses += self.trainer.wait()
        ahead = progress.pause_seconds.get(state, math.inf)
        with progress.pause(state, images):
            if distributed.any_rank(self._checkpoint_due(ahead)):
                self._checkpoint(interrupts)
            yield

    def _average(self, averaging: WeightAverage, progress: Progress) -> None:
        """Load the averaged weights into the model, re-estimate batch-norm statistics, and evaluate.

        SWAD excludes iterations after the end of its valley from the average, but they are still evaluated.
        """
        with progress.pause("averaging"):
            self.load_average(averaging.result())
        wanted = self.plan.user_settings.get("averaging") or self.plan.method.preset.get("averaging")
        if wanted and not averaging.converged:  # the default does not promise a valley
            logger.info(
                "the validation loss did not converge, so only the last segment's weights are averaged: "
                "raise --iterations"
            )
        with progress.pause("evaluating", self.evaluator.images):
            self._evaluate(averaged=True)

    def _checkpoint_due(self, ahead: float = 0.0) -> bool:
        """Return whether a checkpoint is due, or will be due after an evaluation that takes `ahead` seconds."""
        if self._saved == self.trainer.iteration:
            return False
        every = self.plan.config.evaluation.checkpoint_every
        if every is None:
            return time.monotonic() + ahead - self._saved_at >= CHECKPOINT_SECONDS
        return not ahead and self.trainer.iteration % every == 0

    def _checkpoint(self, interrupts: Interrupts) -> None:
        """Save a checkpoint once every iteration launched has finished."""
        self.losses += self.trainer.wait()
        with interrupts.writing:
            self._save()

    def _evaluate(self, averaged: bool = False) -> None:
        """Evaluate the model, and keep its weights if source validation selects them."""
        self.trainer.check_finite()
        with self._naming_iteration():
            metrics = self.evaluator.record()
        record = self.add_record({**self._progress(), **metrics, **self._averaged(averaged)})
        self.losses.clear()
        self.trackers = record_all(self.trackers, record)
        self.watch(without_target(record, self.problem.targets))
        formatted = "  ".join(
            f"{metric.title} {metric.scale * record['target'][metric.key]:.1f}"
            for metric in DEFAULT
            if metric.key in record["target"]
        )
        weights = "averaged weights" if averaged else f"iteration {record['iteration']}"
        on = "target" if self.problem.targets else "held-out images"
        logger.info("%s: validation Acc %.1f; %s %s", weights, 100 * record["validation"]["acc"], on, formatted)
        first = at_chance(record) and not any(map(at_chance, self.records[:-1]))
        if self.writes and first and self.trainer.iteration < self.plan.config.optim.iterations:
            described, hint = describe_chance(record), learning_hint(self.plan)
            logger.warning("%s, %s: %s; if it stays there, %s", self.directory.path, weights, described, hint)

    @contextmanager
    def _naming_iteration(self) -> Iterator[None]:
        """Add the iteration to the message of a `TrainingError`."""
        try:
            yield
        except TrainingError as error:
            raise TrainingError(f"{error} at iteration {self.trainer.iteration}") from error

    def _averaged(self, averaged: bool) -> dict[str, Any]:
        """Return the additional record keys for averaged weights."""
        if not averaged or self.averaging is None:
            return {}
        own = self.plan.method.preset.get("averaging") == self.plan.config.optim.averaging
        required = {"required": True} if own else {}
        return {"averaged": True, "converged": self.averaging.converged, **required}

    def _progress(self) -> dict[str, Any]:
        trainer, gigabyte = self.trainer, 2**30
        images = trainer.iteration * trainer.batch_size * trainer.grid.tasks
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else memory.peak()
        reported = {name: value for callback in trainer.callbacks for name, value in callback.metrics().items()}
        return {
            "iteration": trainer.iteration,
            "step": trainer.iteration,
            "epoch": images / len(self.problem.train),
            "loss": float(np.mean(self.losses)) if self.losses else self.records[-1]["loss"],
            "lr": self.plan.config.optim.lr * trainer.schedule(trainer.iteration - 1),
            "step_time": self.seconds,
            "mem_gb": peak / gigabyte,
            **({"callback_metrics": reported} if reported else {}),
        }

    def _save(self) -> None:
        self.trainer.check_finite()
        state = {
            "trainer": self.trainer.state_dict(),
            "records": self.records,
            "best": self.best,
            "losses": self.losses,
            "seconds": self.seconds,
            "spent": time.monotonic() - self.began,
            "threads": torch.get_num_threads(),
            "averaging": None if self.averaging is None else self.averaging.state_dict(),
        }
        if self.writes:
            self.directory.write_checkpoint(self.trainer.iteration, state)
        distributed.barrier()
        self._saved, self._saved_at = self.trainer.iteration, time.monotonic()

    def _load(self, path: Path) -> None:
        state = load_checkpoint(path)
        try:
            self.trainer.load_state_dict(state["trainer"])
            self.records, self.best, self.losses = state["records"], state["best"], state["losses"]
            if self.averaging is not None:
                self.averaging.load_state_dict(state["averaging"], self.device)
            self.began -= state["spent"]
            self.seconds = state.get("seconds", 0.0)  # 0.3 did not save it
            threads = state["threads"]
        except Exception as error:
            raise MedicError(f"checkpoint {path} does not match this run: delete it to restart training") from error
        self._saved = self.trainer.iteration
        if threads != torch.get_num_threads():
            logger.info(
                "using %s, as when the run started: another number would change the last digits of the results",
                counted(threads, "thread"),
            )
            torch.set_num_threads(threads)
        if self.writes:
            self.directory.write_records(self.records)

    def _finish(self, interrupts: Interrupts) -> None:
        """Write the selected model and how it was selected."""
        averaged = self.records[self.selected()].get("averaged")
        selection = "averaged weights" if averaged else "pooled source-validation accuracy, first on ties"
        self.finish(interrupts.writing, selection=selection)

    def describe_late(self) -> str:
        """Return the message for a run that was stopped during an iteration or evaluation."""
        done = self.trainer.iteration
        return f"stopped after iteration {done}: rerun the same command to resume at iteration {self._saved}"

    def _report(self, speed: str | None) -> None:
        """Log the peak memory and the speed; `speed` is None if a resumed run had no iterations left."""
        where, peak = "GPU" if self.device.type == "cuda" else "process", self.records[-1]["mem_gb"]
        trained = "" if speed is None else f"training speed {speed}; "
        logger.info("%speak %s memory %.2f GiB", trained, where, peak)
