"""Hyperparameter search with Optuna. It uses source data only and never sees the target."""

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import unquote

from medic.config.draws import SHARED
from medic.config.objective import parse_hparams
from medic.config.plan import Plan
from medic.config.resolve import resolve
from medic.config.settings import SETTINGS, identity
from medic.data.holdout import seed_hash
from medic.errors import DiskFullError, MedicError, OutOfMemoryError, TrainingError, check_choice, first_line, lacking
from medic.evaluation.selection import Record
from medic.runs.run import Run
from medic.runs.train import train
from medic.sweeps.rehearsal import check_rehearsals, rehearsals
from medic.systems.base import SMALL
from medic.utils.command import without_secrets
from medic.utils.files import make_folder
from medic.utils.parts import Choice, Law, Range

logger = logging.getLogger(__name__)

SELECTIONS = ("validation", "leave-one-out")
"""Ways to judge a trial: source-validation accuracy, or a metric from its rehearsals (`medic.sweeps.rehearsal`)."""
METRICS = ("acc", "hscore", "oscr", "auroc")
"""Metrics for rehearsals. All except the first require unknown classes."""


class _Failed(Exception):
    """Raised if a trial ends without a result for a reason unrelated to its hyperparameters."""


@dataclass(frozen=True)
class Study:
    """A hyperparameter search for one run. Processes with the same `name` and `storage` share a study."""

    settings: Mapping[str, Any]
    """Settings shared by all runs; all other settings are searched or derived."""
    name: str
    storage: str
    trials: int
    sampler: str = "tpe"
    prune: bool = True
    selection: str = "validation"
    """How trials are judged, one of `SELECTIONS`."""
    metric: str | None = None
    """Metric for `leave-one-out` rehearsals (default: OSCR, or accuracy if every class is known)."""

    def run(self) -> Any:
        """Run `trials` more trials and return Optuna's study, which contains the trials of all processes."""
        optuna = import_optuna()
        if self.settings.get("name") is not None:
            raise MedicError(
                f"name {self.settings['name']!r}: the runs of a search are named after their hashes; omit --name"
            )
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # failed trials are logged below
        if self.metric_name is not None:
            check_rehearsals(self.plan, self.metric_name)
        space = search_space(self.settings)
        study = self.open()
        try:
            study.optimize(lambda trial: self._train(study, trial, space), self.trials, catch=(_Failed,))
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("sqlalchemy", "optuna"):
                raise
            raise self._unusable(error) from None
        return study

    def open(self) -> Any:
        """Create or load the study. Raises an error if its runs have different settings."""
        optuna = import_optuna()
        check_choice("sampler", self.sampler, ["tpe", "random"])
        if "://" not in self.storage:
            raise MedicError("--storage must be a URL: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
        unset = {name: entry.default for name, entry in SETTINGS.items()}
        settings = {name: v for name, v in identity({**unset, **self.settings}).items() if name != "seed"}
        defaults = {"batch_norm": self.plan.config.model.batch_norm, "inner_lr": self.plan.config.objective.inner_lr}
        ours = json.loads(json.dumps({**settings, **defaults, "iterations": self.plan.config.optim.iterations}))
        ours["judge"] = self.judge
        try:
            study = optuna.create_study(
                study_name=self.name,
                storage=self.storage,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
                direction="maximize",
                load_if_exists=True,
            )
            theirs = study.user_attrs.get("settings")
            if theirs is None:
                study.set_user_attr("settings", ours)
        except Exception as error:  # database drivers raise errors of many types
            raise self._unusable(error) from None
        if theirs is not None and "judge" not in theirs:
            raise MedicError(
                f"study {self.name!r} was created by an earlier version with different defaults: use another name "
                "with --study"
            )
        stored = theirs or {}
        if other := [name for name in ours.keys() & stored.keys() if stored[name] != ours[name]]:
            runs = ", ".join(f"{name} {stored[name]}" for name in other)
            raise MedicError(f"study {self.name!r} contains runs with {runs}: use another name with --study")
        return study

    def draw_with(self, study: Any, trial: int) -> None:
        """Seed the sampler with the trial number, so that processes draw different, repeatable values."""
        samplers = import_optuna().samplers
        sampler = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}[self.sampler]
        study.sampler = sampler(seed=seed_hash(self.settings.get("seed", 0), self.name, trial))

    def _train(self, study: Any, trial: Any, space: Mapping[str, Law]) -> float:
        """Train the runs for a trial and return the value to maximise."""
        optuna = import_optuna()
        self.draw_with(study, trial.number)
        drawn = {name: suggest(trial, name, law) for name, law in space.items()}
        shared: dict[str, Any] = {name: drawn.pop(name) for name in ("lr", "weight_decay") if name in drawn}
        hparams = {**drawn, **parse_hparams(self.settings.get("hparams"))}
        settings = {**self.settings, **shared, "hparams": hparams or None}
        try:
            value = (
                self._rehearse(trial, settings)
                if self.selection == "leave-one-out"
                else self._validate(trial, settings)
            )
        except (OutOfMemoryError, DiskFullError):  # every other trial would fail, too
            raise
        except TrainingError as error:  # the loss diverged: the hyperparameters are bad, but the search continues
            logger.info("trial %d: %s", trial.number, first_line(error))
            raise optuna.TrialPruned from error
        except KeyboardInterrupt:
            study.enqueue_trial(trial.params)  # the same parameters resume the run from its checkpoint
            logger.info("trial %d: stopped; the next trial of this study resumes it", trial.number)
            raise
        except MedicError as error:  # for example, another process executes the same run
            logger.info("trial %d: %s", trial.number, first_line(error))
            raise _Failed from error
        trial.set_user_attr("settings", {**shared, "hparams": hparams or None})
        chosen = ", ".join(f"{name} {number:.3g}" for name, number in trial.params.items())
        failure = "" if has_learned(trial) else " (learned nothing)"
        logger.info("trial %d: %s %.2f with %s%s", trial.number, self.judge, 100 * value, chosen, failure)
        return value

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run with default hyperparameters."""
        return resolve(self.settings)

    @cached_property
    def metric_name(self) -> str | None:
        """The metric for rehearsals, or None if trials are judged by source validation."""
        check_choice("selection", self.selection, SELECTIONS)
        if self.selection == "validation":
            if self.metric is not None:
                raise MedicError("--metric requires --selection leave-one-out")
            return None
        unknown = self.plan.config.data.unknown
        metric = check_choice("metric", self.metric or ("oscr" if unknown else "acc"), METRICS)
        if metric != "acc" and not unknown:
            raise MedicError(f"metric {metric!r} requires unknown classes, but every class is known: use --metric acc")
        return metric

    @property
    def judge(self) -> str:
        """The name of the value used to judge trials."""
        return "validation acc" if self.metric_name is None else f"leave-one-out {self.metric_name}"

    def _validate(self, trial: Any, settings: Mapping[str, Any]) -> float:
        """Train a trial's run and return its accuracy on source validation."""
        best = float("-inf")

        def watch(record: Record) -> None:
            nonlocal best
            if record.get("averaged"):  # at the last iteration, where pruning saves nothing
                return
            best = max(best, float(record["validation"]["acc"]))
            self._report(trial, best, record["iteration"])

        run = train(settings, quiet=True, watch=watch)
        trial.set_user_attr("run", str(run.path))
        trial.set_user_attr("learned", run.learned)
        return float(run.record["validation"]["acc"])

    def _rehearse(self, trial: Any, settings: Mapping[str, Any]) -> float:
        """Train a trial's rehearsals and return their mean metric."""
        runs, mean = list[Run](), float("-inf")
        for number, rehearsal in enumerate(rehearsals(resolve(settings))):
            runs.append(train(rehearsal, quiet=True))
            mean = fmean(float(run.metrics[str(self.metric_name)]) for run in runs)
            self._report(trial, mean, number)
        trial.set_user_attr("learned", all(run.learned for run in runs))
        return mean

    def _report(self, trial: Any, value: float, step: int) -> None:
        """Report an intermediate value to Optuna, which may prune the trial."""
        trial.report(value, step)
        if self.prune and trial.should_prune():
            raise import_optuna().TrialPruned

    def train_best(self, best: Any) -> Run:
        """Return the best trial's run. If trials were judged by rehearsals, train it first."""
        if "run" in best.user_attrs:
            return Run(best.user_attrs["run"])
        return train({**self.settings, **best.user_attrs["settings"]})

    def _unusable(self, error: Exception) -> MedicError:
        """Return the error for an unusable storage, without the reason if it might reveal part of the address."""
        address = self.storage.partition("://")[2]
        words, secret = (set(re.findall(r"\w+", text)) for text in (str(error), f"{address} {unquote(address)}"))
        reason = type(error).__name__ if words & secret else first_line(error)
        return MedicError(f"cannot use --storage {without_secrets(self.storage)}: {reason}")


def finished_trials(study: Any) -> list[Any]:
    """Return the completed trials; raise an error if none completed."""
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not finished:
        raise MedicError("no trial finished: all of them diverged, failed or were pruned")
    return finished


def has_learned(trial: Any) -> bool:
    """Return whether a trial's run learned anything. Assume so for trials from version 0.3, which do not record it."""
    return bool(trial.user_attrs.get("learned", True))


def best_trial(trials: Sequence[Any]) -> Any:
    """Return the best trial that learned (the first on ties) or, if none learned, the best trial."""
    return max([trial for trial in trials if has_learned(trial)] or trials, key=lambda trial: trial.value)


def search_space(settings: Mapping[str, Any]) -> dict[str, Law]:
    """Return the ranges of all hyperparameters that the user did not set, as in DomainBed.

    These are the learning rate, the weight decay and the method's own hyperparameters. For SGD, the learning-rate range
    is as wide as Adam's and centred on the run's learning rate.
    """
    plan = resolve(settings)
    shared = SHARED["small" if plan.config.data.image_size <= SMALL else "large"]
    own = plan.search
    space: dict[str, Law] = {}
    if settings.get("lr") is None and "lr" not in own:
        space["lr"] = shared["lr"]
        if plan.config.optim.optimizer == "sgd":
            exponent = math.log10(plan.config.optim.lr)
            space["lr"] = Range("lr", exponent - 1, exponent + 1, 10.0)
    if settings.get("weight_decay") is None and "weight_decay" in shared:
        space["weight_decay"] = shared["weight_decay"]
    hparams = parse_hparams(settings.get("hparams"))
    space |= {name: own[name] for name in own if name not in hparams and settings.get(name) is None}
    if not space:
        raise MedicError(f"nothing to search: every hyperparameter of method {plan.method.name!r} is already set")
    return space


def suggest(trial: Any, name: str, law: Law) -> float | int:
    """Let Optuna draw a value from a range."""
    if isinstance(law, Choice):
        return float(trial.suggest_categorical(name, list(law.values)))
    log = law.base is not None
    low, high = (law.low, law.high) if law.base is None else (law.base**law.low, law.base**law.high)
    if law.whole:
        return int(trial.suggest_int(name, int(low), int(high), log=log))
    return float(trial.suggest_float(name, low, high, log=log))


def import_optuna() -> Any:
    """Import Optuna, or raise an error that names the extra to install."""
    try:
        import optuna
    except ImportError:
        raise lacking("medic search requires optuna", "search") from None
    return optuna


def default_storage(output: str) -> str:
    """Return the URL of a database file in the output directory."""
    folder = Path(output)
    make_folder("output", folder)
    return f"sqlite:///{folder.absolute() / 'study.db'}"
