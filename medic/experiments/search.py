"""A search for hyper-parameters by Optuna: what it is told is the accuracy on source validation, and nothing else."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medic.data.holdout import seed_hash
from medic.errors import MedicError, TrainingError, check_choice, first_line
from medic.experiments.config import RunConfig
from medic.experiments.directory import without_secrets
from medic.experiments.draws import SMALL
from medic.experiments.resolve import resolve
from medic.experiments.run import train
from medic.experiments.selection import Record
from medic.files import make_folder
from medic.methods import SHARED, Choice, Law, Numbers, Range, find_method

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
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = search_space(self.config)
        study = self._open(optuna)

        def objective(trial: Any) -> float:
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
            trial.set_user_attr("run", str(run.path))
            value = float(run.record["validation"]["acc"])
            say(f"trial {trial.number}: validation acc {100 * value:.2f} with {_shown(trial.params)}")
            return value

        study.optimize(objective, n_trials=self.trials)
        return Found(study)

    def _open(self, optuna: Any) -> Any:
        # Every process that shares the study must draw other numbers, and the same process the same ones again.
        try:
            storage = optuna.storages.get_storage(self.storage)
            done = len(_trials(optuna, self.name, storage))
            seed = seed_hash(self.config.seed, self.name, done)
            samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
            return optuna.create_study(
                study_name=self.name,
                storage=storage,
                sampler=samplers[check_choice("sampler", self.sampler, SAMPLERS)](seed=seed),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
                direction="maximize",
                load_if_exists=True,
            )
        except (ImportError, ValueError, OSError, RuntimeError) as error:
            raise MedicError(f"storage {without_secrets(self.storage)}: {without_secrets(first_line(error))}") from None
        except Exception as error:
            if type(error).__module__.startswith("sqlalchemy"):
                raise MedicError(
                    f"storage {without_secrets(self.storage)} does not answer: {type(error).__name__}"
                ) from None
            raise


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
    def best(self) -> tuple[float, Mapping[str, Any], str]:
        """The best accuracy on source validation, its numbers, and its run."""
        if not self.complete:
            raise MedicError("no trial was trained to the end: all of them diverged or were given up")
        trial = self._study.best_trial
        return float(trial.value), dict(trial.params), str(trial.user_attrs["run"])


def search_space(config: RunConfig) -> dict[str, Law]:
    """What is searched for: learning rate and weight decay, and the method's own numbers, in DomainBed's ranges.

    A number that was given is not. For SGD the range of the rate is that of Adam around the benchmark's own rate.
    """
    resolved, method = resolve(config), find_method(config.method)
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


def _trials(optuna: Any, name: str, storage: Any) -> list[Any]:
    try:
        return list(optuna.load_study(study_name=name, storage=storage).trials)
    except KeyError:
        return []


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MedicError("a search needs the package optuna: pip install 'medic[search]'") from None
    return optuna


def _shown(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())


def default_storage(output: str) -> str:
    """A file beside the runs."""
    folder = Path(output)
    make_folder("output", folder)
    return f"sqlite:///{folder.absolute() / 'study.db'}"
