"""A run's directory: the files that a run writes, and how they are read."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from medic.config.resolve import Plan
from medic.config.settings import identity, load_yaml, read_yaml, to_yaml
from medic.data import Dataset
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.deploy.model_file import read_description
from medic.deploy.predictor import Predictor, load
from medic.errors import BusyError, MedicError, first_line, unread
from medic.evaluation.decisions import Decisions
from medic.evaluation.evaluator import LabelledOutputs
from medic.evaluation.learning import learning_failure
from medic.evaluation.selection import by_evaluation, select, without_target
from medic.models import Classifier, Ensemble, Preprocessing
from medic.openset import Score
from medic.runs.environment import commit, commits, environment, read_environment, read_plugins
from medic.runs.layout import (
    ASKED,
    CHECKPOINT,
    CONFIG,
    DONE,
    ENVIRONMENT,
    ITERATION,
    LOCK,
    PREDICTIONS,
    RECORDS,
    SHOWN,
    check_run,
)
from medic.runs.seal import Damaged, Seal, make_seal, read_seal
from medic.training import save_checkpoint
from medic.utils.files import atomic_write, file_hash, is_locked, locked, read_arrays, write_text, writing
from medic.utils.outputs import Output
from medic.utils.plugins import Plugin

RESULTS_VERSION = 5
"""Raised whenever the same settings give other metrics, so that earlier runs are not reused."""
_TENSORS = ("logits", "ova_logits", "features", "unknown_logit", "label")


def run_hash(plan: Plan, images: str) -> str:
    """Return what identifies a run with a fingerprint of its images, and names its directory unless `--name` does.

    It is a hash of everything that changes the result, not of where files are.
    """
    used = {
        "format": RESULTS_VERSION,
        "images": images,
        "weights": None if plan.weights is None else file_hash(plan.weights),
        "settings": plan.config.identity,
        **({"plugins": sorted(plugin.sha256 for plugin in plan.plugins)} if plan.plugins else {}),
    }
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:16]


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.path / DONE).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and lock it, so that no two processes execute the same run at once."""
        busy = BusyError(f"run {self.path} is being written by another process")
        with ExitStack() as held:
            with writing("output", self.path.parent):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(self.path / LOCK, busy))
            yield

    @property
    def started(self) -> bool:
        """Whether the run has a checkpoint to resume."""
        return self.checkpoint.exists()

    @property
    def busy(self) -> bool:
        """Whether a process is executing the run, as far as this user may see."""
        return is_locked(self.path / LOCK)

    def write_start(self, plan: Plan) -> None:
        """Write the settings, complete and as asked for."""
        write_text(self.path / ASKED, to_yaml(plan.user_settings))
        write_text(self.path / CONFIG, to_yaml(plan.config.settings))

    def check_named(self, plan: Plan, run: str) -> None:
        """Refuse a directory named by `--name` that holds anything but the run with the hash `run`."""
        if plan.config.execution.name is None or not any(entry.name[0] != "." for entry in self._entries()):
            return
        noted = read_environment(self.path)
        if noted.get("run") != run:
            what = "other files"
            if "run" in noted:
                what = f"a run with other {_difference(plan, self.path / CONFIG, read_plugins(noted))}"
            longer = f", continue it with --extend {self.path}" if "(iterations " in what else ""
            raise MedicError(f"{self.path} holds {what}: choose another --name{longer}, or delete {self.path}")

    def _entries(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def write_environment(self, plan: Plan, dataset: Dataset, run: str) -> None:
        """Write what the result depends on besides the settings, and the run's hash."""
        write_text(self.path / ENVIRONMENT, _json({"run": run, **environment(dataset, plan)}))

    def write_resumed(self, iteration: int) -> None:
        """Record the iteration from which on the run has another commit, if it has."""
        noted, now = read_environment(self.path), commit()
        resumed = noted.get("resumed", [])
        if not noted or not isinstance(resumed, list):  # a damaged file: a table then reports an unknown commit
            return
        if [noted, *resumed][-1].get("commit") != now:
            changed = {**noted, "resumed": [*resumed, {"iteration": iteration, "commit": now}]}
            write_text(self.path / ENVIRONMENT, _json(changed))

    def write_checkpoint(self, iteration: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint, and note its iteration beside it."""
        save_checkpoint(self.checkpoint, state)
        write_text(self.path / ITERATION, f"{iteration}\n")

    def write_records(self, records: Sequence[dict[str, Any]]) -> None:
        """Write all evaluations so far, one line each."""
        write_text(self.path / RECORDS, "".join(json.dumps(record) + "\n" for record in records))

    def write_predictions(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write one row per validation and target image."""
        with atomic_write(self.path / PREDICTIONS) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def write_done(self, seconds: float) -> None:
        """Mark the run as finished, with its duration in seconds and the checksums of its files."""
        write_text(self.path / DONE, make_seal(self.path, seconds))


def named_runs(folder: Path) -> dict[str, Path]:
    """Return the finished runs of a folder whose directories `--name` has named, by their hash."""
    paths = [path.parent for path in folder.glob(f"*/{DONE}")]
    return {str(run): path for path in paths if (run := read_environment(path).get("run", path.name)) != path.name}


class Run:
    """A finished run, read back from its directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._compared: set[str] = set()
        check_run(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def seal(self) -> Seal:
        """The duration of the run and the checksums of its files."""
        return read_seal(self.path)

    def check(self) -> None:
        """Refuse a run with a file that is lost or differs from what the run wrote."""
        with self._reading(DONE):
            names = self.seal.checksums
        for name in names:
            with self._reading(name):
                pass

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The complete settings of the run."""
        with self._reading(CONFIG) as path:
            return read_yaml(path)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The versions, machine, images and command that the results depend on, besides the settings."""
        with self._reading(ENVIRONMENT):
            found = read_environment(self.path)
            return {**found, "commit": commits(found)} if found else {}

    @property
    def hash(self) -> str:
        """The hash that identifies the run. It names the directory unless `--name` does."""
        with self._reading(ENVIRONMENT):
            return str(self.environment["run"])

    @cached_property
    def plugins(self) -> list[Plugin]:
        """The code from outside of the package that the run used, with its hashes. Reading it executes nothing."""
        with self._reading(ENVIRONMENT):
            return read_plugins(self.environment)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Every evaluation, in order."""
        with self._reading(RECORDS) as path:
            return [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]

    @cached_property
    def description(self) -> dict[str, Any]:
        """The description of the model: classes, preprocessing, score, threshold, provenance."""
        with self._reading(DESCRIPTION):
            return read_description(self.path)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the selected evaluation on the target, or their means over several targets."""
        with self._reading(RECORDS):
            return dict(self.record["target"])

    @property
    def record(self) -> dict[str, Any]:
        """The selected evaluation."""
        with self._reading(DESCRIPTION):
            number = int(self.description["provenance"]["record"])
        with self._reading(RECORDS):
            return self.records[number]

    @property
    def learned(self) -> bool:
        """Whether the selected model does better than chance on held-out source images."""
        return not self.learning_failure

    @property
    def learning_failure(self) -> str:
        """The reason, with numbers, if the run learned nothing; otherwise an empty string."""
        with self._reading(RECORDS):
            return learning_failure(self.records, select(self._hidden))

    @property
    def best_evaluation(self) -> dict[str, Any]:
        """The evaluation that the paper selects: the best on source validation, first on ties.

        Averaged weights count only for a method that is an average (SWAD). For any other method, this is the result
        that the same run has with `--averaging none`.
        """
        with self._reading(RECORDS):
            return self.records[by_evaluation([self._hidden]).record]

    @property
    def _hidden(self) -> list[dict[str, Any]]:
        """The records without measurements on the target."""
        return [without_target(record, record["args"]["test_envs"]) for record in self.records]

    @cached_property
    def predictions(self) -> dict[str, NDArray[Any]]:
        """The arrays of `predictions.npz`, by name, all of the same length."""
        with self._reading(PREDICTIONS) as path:
            return read_arrays(path)

    @property
    def classes(self) -> list[str]:
        """The names of the known classes, in the order of their labels."""
        return [str(name) for name in self.description["classes"]]

    @property
    def true_classes(self) -> NDArray[np.str_]:
        """The name of the true class of every row of the predictions, also of unknown images."""
        return self.predictions["class"]

    @property
    def decisions(self) -> Decisions:
        """The images of all splits, with the run's own score and without a threshold."""
        rows = self.predictions
        columns = {name: rows[name].astype(str) for name in ("path", "split", "domain")}
        images = self.true_classes, rows["label"], rows["logits"].argmax(1), rows["confidence"]
        return Decisions.named(self.classes, *images, columns=columns)

    @property
    def splits(self) -> list[str]:
        """The splits with predictions: validation, target, source-unknown if any, and train if features were kept."""
        return list(dict.fromkeys(self.predictions["split"].tolist()))

    @property
    def domains(self) -> list[str]:
        """The names of the domains with predictions, in the order in which `outputs` numbers them."""
        return sorted(set(self.predictions["domain"].tolist()))

    def outputs(self, split: str) -> LabelledOutputs:
        """Return the model's outputs for a split, with labels and domains."""
        found = self.predictions
        with self._reading(PREDICTIONS):
            rows = found["split"] == split
            arrays = {name: torch.from_numpy(found[name][rows]) for name in _TENSORS if name in found}
            domain = torch.from_numpy(np.searchsorted(self.domains, found["domain"][rows]))
            ova, features, unknown = (arrays.get(name) for name in ("ova_logits", "features", "unknown_logit"))
            return LabelledOutputs(Output(arrays["logits"], ova, features, unknown), arrays["label"], domain)

    @cached_property
    def predictor(self) -> Predictor:
        """The selected model on the CPU, with its classes, preprocessing, score and threshold."""
        with self._reading(DESCRIPTION), self._reading(WEIGHTS):
            return load(self.path)

    @property
    def score(self) -> Score:
        """The score of the run, with its fitted state."""
        return self.predictor.score

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the model's inputs."""
        return self.predictor.preprocessing

    @property
    def model(self) -> Classifier | Ensemble:
        """The selected network, in evaluation mode, on the CPU."""
        return self.predictor.network

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """Compare a file of the run with its checksum, once; an error inside becomes one line that names the file."""
        path = self.path / name
        try:
            if name not in self._compared:
                self.seal.check(path)
                self._compared.add(name)
            yield path
        except Damaged as error:
            raise MedicError(f"run {self.path} cannot be used, {error}: delete {self.path} and run it again") from error
        except (MedicError, MemoryError):
            raise
        except FileNotFoundError as error:
            lost = Path(error.filename or path).name  # the seal is read first
            raise MedicError(f"run {self.path} has lost its {lost}: delete {self.path} and run it again") from error
        except OSError as error:
            raise unread(error.filename or path, error) from error
        except Exception as error:  # whatever the file of a stranger leads to, whose checksum may be right
            damage = f"run {self.path} has a damaged {name} ({first_line(error)})"
            raise MedicError(f"{damage}: delete {self.path} and run it again") from None


def _difference(plan: Plan, config: Path, plugins: Sequence[Plugin]) -> str:
    """Name what differs between a recipe and a run's configuration or plug-ins; otherwise, images or weights do."""
    try:
        theirs = identity(read_yaml(config))
    except MedicError:
        return "settings"
    # Written and read again, since a file has lists for tuples.
    ours = load_yaml(to_yaml(plan.config.identity))
    if {plugin.sha256 for plugin in plan.plugins} != {plugin.sha256 for plugin in plugins}:
        return f"contents of {(*plan.plugins, *plugins)[0].name}"
    changed = [
        f"{name} {_changed(theirs[name], ours[name])}" for name in sorted(ours, key=lambda name: name != "iterations")
        if ours[name] != theirs[name]
    ]  # fmt: skip
    return f"settings ({', '.join(changed[:SHOWN])})" if changed else "images or weights"


def _changed(theirs: Any, ours: Any) -> str:
    """Return a value of another run; of a mapping only what differs."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return str(theirs)
    return ", ".join(f"{name}={value}" for name, value in theirs.items() if ours.get(name) != value) or str(theirs)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
