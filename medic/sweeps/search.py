"""A search for hyper-parameters by Optuna: what it is told is the accuracy on source validation, and nothing else."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from medic.data.holdout import seed_hash
from medic.errors import DiskFullError, MedicError, TrainingError, check_choice, first_line, lacking
from medic.files import make_folder
from medic.methods import SHARED, Choice, Law, Numbers, Range
from medic.runs.command import without_secrets
from medic.runs.config import RunConfig
from medic.runs.draws import SMALL
from medic.runs.resolve import resolve
from medic.runs.selection import Record
from medic.runs.train import train

SAMPLERS = ("tpe", "random")


@dataclass(frozen=True)
class Study:
    """A search for the numbers of one run's method: its name, where it is kept, and how it is done.

    Processes and machines that give the same name and storage share it.
    """

    config: RunConfig
    name: str
    storage: str
    trials: int
    sampler: str = "tpe"
    prune: bool = True

    def run(self, say: Callable[[str], None]) -> "Found":
        """Do so many further trials, and return the best of all."""
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # of a trial that fails we say it ourselves
        space = search_space(self.config)
        study = self._open(optuna)
        self._check_settings(study)

        def objective(trial: Any) -> float:
            study.sampler = self._sampler(optuna, trial.number)
            config = chosen(self.config, {name: suggest(trial, name, law) for name, law in space.items()})
            best = float("-inf")

            def watch(record: Record) -> None:
                nonlocal best
                best = max(best, float(record["validation"]["acc"]))
                trial.report(best, record["iteration"])
                if self.prune and trial.should_prune():
                    raise optuna.TrialPruned

            try:
                run = train(config, quiet=True, watch=watch)
            except TrainingError as error:  # a rate at which it diverges is a bad one, not the end of the search
                say(f"trial {trial.number}: {first_line(error)}")
                raise optuna.TrialPruned from error
            except KeyboardInterrupt:  # the run has a checkpoint, which the same numbers go on from
                study.enqueue_trial(trial.params)
                say(f"trial {trial.number}: stopped; the next one of this study goes on with it")
                raise
            except DiskFullError:
                raise
            except MedicError as error:  # another process is at the same numbers, say
                say(f"trial {trial.number}: {first_line(error)}")
                raise _Failed from error
            trial.set_user_attr("run", str(run.path))
            value = float(run.record["validation"]["acc"])
            say(f"trial {trial.number}: validation acc {100 * value:.2f} with {_shown(trial.params)}")
            return value

        try:
            study.optimize(objective, n_trials=self.trials, catch=(_Failed,))
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("sqlalchemy", "optuna"):
                raise
            raise self._unusable(error) from None
        return Found(study)

    def _sampler(self, optuna: Any, trial: int) -> Any:
        """What draws the numbers of a trial: others for every trial, whoever does it, and the same ones again."""
        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        return samplers[self.sampler](seed=seed_hash(self.config.seed, self.name, trial))

    def _open(self, optuna: Any) -> Any:
        check_choice("sampler", self.sampler, SAMPLERS)
        if "://" not in self.storage:
            raise MedicError("storage is no address: give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME, say")
        try:
            return optuna.create_study(
                study_name=self.name,
                storage=self.storage,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
                direction="maximize",
                load_if_exists=True,
            )
        except Exception as error:  # whatever drivers of databases raise
            raise self._unusable(error) from None

    def _check_settings(self, study: Any) -> None:
        """Refuse to go on with a study of other runs: their accuracies would be compared."""
        ours = {name: value for name, value in self.config.identity().items() if name != "seed"}
        ours = json.loads(json.dumps(ours))
        try:
            theirs = study.user_attrs.get("settings")
            if theirs is None:
                study.set_user_attr("settings", ours)
                return
        except Exception as error:  # whatever drivers of databases raise
            raise self._unusable(error) from None
        other = [name for name, value in ours.items() if name in theirs and theirs[name] != value]
        if other:
            what = ", ".join(f"{name} {theirs[name]}" for name in other)
            raise MedicError(f"study {self.name!r} is of runs with {what}: give this search a name of its own, --study")

    def _unusable(self, error: Exception) -> MedicError:
        """That the storage does not work, and why, unless that repeats something of its address."""
        address = self.storage.partition("://")[2]
        said, secret = (set(re.findall(r"\w+", text)) for text in (str(error), f"{address} {unquote(address)}"))
        reason = type(error).__name__ if said & secret else first_line(error)
        return MedicError(f"storage {without_secrets(self.storage)} cannot be used: {reason}")


class _Failed(Exception):
    """A trial came to nothing, which says nothing of its numbers."""


class Best(NamedTuple):
    """A trial by its number: its accuracy on source validation, its numbers, and its run."""

    trial: int
    acc: float
    numbers: Mapping[str, Any]
    run: str


class Found:
    """What a study has found so far."""

    def __init__(self, study: Any) -> None:
        self._study = study

    @property
    def complete(self) -> int:
        """How many trials were trained to the end."""
        return sum(trial.state.name == "COMPLETE" for trial in self._study.trials)

    @property
    def trials(self) -> int:
        """How many there are, those that were given up among them."""
        return len(self._study.trials)

    @property
    def best(self) -> Best:
        """The trial with the best accuracy on source validation."""
        if not self.complete:
            raise MedicError("no trial was trained to the end: all of them diverged, failed or were given up")
        trial = self._study.best_trial
        return Best(trial.number, float(trial.value), dict(trial.params), str(trial.user_attrs["run"]))


def search_space(config: RunConfig) -> dict[str, Law]:
    """What is searched for: learning rate and weight decay, and the method's own numbers, in DomainBed's ranges.

    A number that was given is not. For SGD the range of the rate is that of Adam around the benchmark's own rate.
    """
    resolved = resolve(config)
    method = resolved.method
    shared = SHARED["small" if resolved.data.size <= SMALL else "large"]
    space: dict[str, Law] = {}
    if config.lr is None and "lr" not in method.search:
        space["lr"] = shared["lr"] if resolved.config.optimizer != "sgd" else around(float(resolved.config.lr or 0))
    if config.weight_decay is None and "weight_decay" in shared:
        space["weight_decay"] = shared["weight_decay"]
    given = Numbers(config.hparams).given
    open_ = {name: law for name, law in method.search.items() if name not in given}
    space |= {name: law for name, law in open_.items() if getattr(config, name, None) is None}
    if not space:
        raise MedicError(f"there is nothing to search for: all numbers of method {config.method!r} are given")
    return space


def around(rate: float) -> Law:
    """Rates up to ten times smaller and larger."""
    return Range("lr", math.log10(rate) - 1, math.log10(rate) + 1, 10.0)


def suggest(trial: Any, name: str, law: Law) -> float | int:
    """A value of a law, by Optuna."""
    if isinstance(law, Choice):
        return float(trial.suggest_categorical(name, list(law.values)))
    low, high = (law.low, law.high) if law.base is None else (law.base**law.low, law.base**law.high)
    if law.whole:
        return int(trial.suggest_int(name, int(low), int(high), log=law.base is not None))
    return float(trial.suggest_float(name, low, high, log=law.base is not None))


def chosen(config: RunConfig, numbers: Mapping[str, Any]) -> RunConfig:
    """The settings of a trial."""
    settings = {name: value for name, value in numbers.items() if name in ("lr", "weight_decay")}
    own = {name: value for name, value in numbers.items() if name not in settings}
    return dataclasses.replace(config, **settings, hparams={**own, **Numbers(config.hparams).given} or None)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise lacking("a search needs the package optuna", "search") from None
    return optuna


def _shown(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


def default_storage(output: str) -> str:
    """A file beside the runs."""
    folder = Path(output)
    make_folder("output", folder)
    return f"sqlite:///{folder.absolute() / 'study.db'}"
