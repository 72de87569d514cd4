"""A run, read lazily from its directory. Importing this module does not import torch."""

import html
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from medic.config.config import Config
from medic.config.data import NONE
from medic.config.files import parse_settings
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.errors import MedicError, one_line
from medic.evaluation.learning import learning_failure
from medic.evaluation.selection import by_evaluation, select, without_target
from medic.metrics import DEFAULT
from medic.runs.environment import commits, read_plugins
from medic.runs.files import DamagedRun, RunFiles
from medic.runs.layout import (
    CHECKPOINT,
    DONE,
    ENVIRONMENT,
    ERROR,
    ITERATION,
    LOCK,
    PREDICTIONS,
    RECORDS,
    check_run,
    config_file,
    user_settings_file,
)
from medic.runs.records import Records
from medic.utils.files import is_locked, read_arrays, read_object
from medic.utils.plugins import Plugin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from medic.deploy.predictor import Predictor
    from medic.evaluation.decisions import Decisions
    from medic.evaluation.evaluator import LabelledOutputs
    from medic.models import Classifier, Ensemble, Preprocessing
    from medic.openset import Score

State = Literal["finished", "learned nothing", "running", "unfinished", "failed", "damaged"]
"""State of a run. Runs that learned nothing are also `finished`."""

_TENSORS = ("logits", "ova_logits", "features", "unknown_logit", "label")


class Run:
    """A run, read from its directory.

    Files are read on first use. For a finished run, each file's checksum is verified; a mismatch raises an error that
    names the file.
    """

    def __init__(self, path: Path | str, unfinished: bool = False) -> None:
        """Open a finished run or, with `unfinished`, any run. Some files of an unfinished run may not exist yet."""
        self.path = Path(path)
        self._files = RunFiles(self.path)
        if not unfinished:
            check_run(self.path)

    def __repr__(self) -> str:
        """Return the path and, if the configuration can be read, the method, targets and seed."""
        try:
            facts = one_line(f", {self.method} → {', '.join(self.targets)}, seed {self.config.run.seed}")
        except Exception:
            facts = ""
        return f"Run({str(self.path)!r}{facts})"

    def _repr_html_(self) -> str:
        """Return the HTML shown in a notebook: the state and, for a finished run, its setup and metrics in percent."""
        text = html.escape(f"{self.path}: {self.state}")
        if not self.done or self.damage:
            return f"<p>{text}</p>"
        numbers = {name: value for name, value in self.metrics.items() if type(value) in (int, float)}
        row = {"method": self.method, "target": ", ".join(self.targets), "seed": str(self.config.run.seed)}
        row |= {
            metric.title: f"{metric.scale * numbers[metric.key]:.1f}" for metric in DEFAULT if metric.key in numbers
        }
        head = "".join(f"<th>{html.escape(title)}</th>" for title in row)
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row.values())
        return f"<p>{text}</p><table><tr>{head}</tr><tr>{cells}</tr></table>"

    def check(self) -> None:
        """Raise an error if a file is missing or differs from what the run wrote."""
        self._files.check()

    @property
    def done(self) -> bool:
        """Whether the run was finished when this property was first read."""
        return self._files.done

    @property
    def seconds(self) -> float:
        """The duration of the run in seconds."""
        return self._files.seal.seconds

    # Configuration

    @cached_property
    def config(self) -> Config:
        """The complete configuration."""
        name = config_file(self.path)
        with self._files.errors_named(name):
            return Config.from_settings(parse_settings(self._files.read(name), self.path / name))

    @cached_property
    def user_settings(self) -> dict[str, Any]:
        """The settings as the user wrote them."""
        name = user_settings_file(self.path)
        with self._files.errors_named(name):
            return parse_settings(self._files.read(name), self.path / name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings by name, including defaults."""
        return self.config.settings

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings that affect the result, by name."""
        return self.config.identity

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.config.run.method

    @property
    def targets(self) -> tuple[str, ...]:
        """The target domains; `none` for a run that trains on every domain."""
        return tuple(self.config.data.target or [NONE])

    @property
    def draw(self) -> int:
        """The index of the hyperparameter draw; 0 for the defaults."""
        return self.config.objective.hparams_seed

    @property
    def trial(self) -> tuple[int, int | None]:
        """The seed, and the seed of the validation split. Tables average over trials."""
        return self.config.run.seed, self.config.data.trial_seed

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The versions, machine, images and command that the results depend on, besides the settings.

        If the run was resumed at other commits, `commit` lists all of them as `a+b`.
        """
        with self._files.errors_named(ENVIRONMENT):
            values = json.loads(self._files.read(ENVIRONMENT))
            return {**values, "commit": commits(values)}

    @property
    def hash(self) -> str:
        """The hash that identifies the run. It names the run directory unless `--name` is set."""
        with self._files.errors_named(ENVIRONMENT):
            return str(self.environment["run"])

    @property
    def plugins(self) -> list[Plugin]:
        """The external code that the run used, with its hashes. Reading this property executes nothing."""
        with self._files.errors_named(ENVIRONMENT):
            return read_plugins(self.environment)

    # State

    @cached_property
    def state(self) -> State:
        """The state of the run."""
        return "damaged" if self.damage else self._state()

    def _state(self) -> State:
        if self.done:
            return "finished" if self.learned else "learned nothing"
        if is_locked(self.path / LOCK):
            return "running"
        return "failed" if (self.path / ERROR).exists() else "unfinished"

    @cached_property
    def damage(self) -> str:
        """The reason why the run cannot be read and how to fix it, or an empty string."""
        try:
            (self.path / DONE).exists()  # raises if the folder cannot be opened
            if self.done:
                _ = self.config, self.user_settings, self.environment, self.learned, self.metrics
        except DamagedRun as error:
            return error.reason
        except MedicError as error:
            return str(error)
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        return ""

    @property
    def failure(self) -> str:
        """The reason why the last attempt failed, or an empty string."""
        if self.done or not (self.path / ERROR).exists() or is_locked(self.path / LOCK):
            return ""
        return str(read_object(self.path / ERROR).get("reason") or "unknown reason (error.json cannot be read)")

    @property
    def iteration(self) -> int | None:
        """The iteration of the last checkpoint: 0 without a checkpoint, None if unknown."""
        try:
            return int((self.path / ITERATION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None if (self.path / CHECKPOINT).exists() else 0
        except (OSError, ValueError):
            return None

    @property
    def written(self) -> float:
        """The time of the last write, in seconds since 1970; 0 if unknown."""
        names = (DONE,) if self.done else (config_file(self.path), RECORDS, ERROR, CHECKPOINT)
        return max(_modified(self.path / name) for name in names)

    # Results

    @cached_property
    def records(self) -> Records:
        """All evaluations in order; empty for an unfinished run."""
        with self._files.errors_named(RECORDS):
            lines = self._files.read(RECORDS).splitlines() if self.done else []
            return Records(lines, lambda: self._files.errors_named(RECORDS))

    @cached_property
    def environments(self) -> tuple[int, ...]:
        """The indices of the target domains, as used in DomainBed's keys (`env0_in_acc`)."""
        with self._files.errors_named(RECORDS):
            return tuple(self.records[-1]["args"]["test_envs"])

    @cached_property
    def _provenance(self) -> dict[str, Any]:
        """The model's provenance, or an empty mapping if the model was deleted to save space."""
        if not self.done or not (self.path / DESCRIPTION).exists():
            return {}
        with self._files.errors_named(DESCRIPTION):
            return dict(json.loads(self._files.read(DESCRIPTION))["provenance"])

    @cached_property
    def hidden_records(self) -> list[dict[str, Any]]:
        """The evaluations without measurements on the target, for model selection."""
        return [without_target(record, self.environments) for record in self.records]

    @cached_property
    def selected(self) -> int:
        """The index of the evaluation selected by source validation."""
        if "record" in self._provenance:
            return int(self._provenance["record"])
        with self._files.errors_named(RECORDS):
            return select(self.hidden_records)

    @property
    def record(self) -> dict[str, Any]:
        """The selected evaluation."""
        with self._files.errors_named(RECORDS):
            return self.records[self.selected]

    @property
    def metrics(self) -> dict[str, Any]:
        """The selected evaluation's metrics on the target, averaged if there are several targets."""
        return dict(self.record["target"])

    @property
    def learned(self) -> bool:
        """Whether the selected model is better than chance on held-out source images."""
        return bool(self._provenance.get("learned", True)) if self._provenance else not self.learning_failure

    @property
    def learning_failure(self) -> str:
        """The reason, with numbers, why the run learned nothing, or an empty string if it learned."""
        with self._files.errors_named(RECORDS):
            return learning_failure(self.records, self.selected)

    @property
    def best_evaluation(self) -> dict[str, Any]:
        """The evaluation that the paper would select: the best on source validation, the first on ties.

        Averaged weights are considered only if averaging is part of the method (SWAD). For any other method, this is
        the result of the same run with `--averaging none`.
        """
        with self._files.errors_named(RECORDS):
            return self.records[by_evaluation([self.hidden_records]).record]

    # Predictions and model

    @cached_property
    def description(self) -> dict[str, Any]:
        """The model description: classes, preprocessing, score, threshold, provenance."""
        from medic.deploy.model_file import read_description

        with self._files.verified(DESCRIPTION):
            return read_description(self.path)

    @cached_property
    def predictions(self) -> "dict[str, NDArray[Any]]":
        """The arrays in `predictions.npz` by name. All have the same length."""
        with self._files.verified(PREDICTIONS) as path:
            return read_arrays(path)

    @property
    def classes(self) -> list[str]:
        """The names of the known classes, in label order."""
        return [str(name) for name in self.description["classes"]]

    @property
    def true_classes(self) -> "NDArray[np.str_]":
        """The true class name for every row of the predictions, including unknown images."""
        return self.predictions["class"]

    @property
    def decisions(self) -> "Decisions":
        """The decisions for all splits, with the run's own score and without a threshold."""
        from medic.evaluation.decisions import Decisions

        rows = self.predictions
        columns = {name: rows[name].astype(str) for name in ("path", "split", "domain")}
        images = self.true_classes, rows["label"], rows["logits"].argmax(1), rows["confidence"]
        return Decisions.named(self.classes, *images, columns=columns)

    @property
    def splits(self) -> list[str]:
        """The splits with predictions: validation, target, source-unknown if any, and train if features were saved."""
        return list(dict.fromkeys(self.predictions["split"].tolist()))

    @property
    def domains(self) -> list[str]:
        """The names of the domains with predictions, in the order of their indices in `outputs`."""
        return sorted(set(self.predictions["domain"].tolist()))

    def outputs(self, split: str) -> "LabelledOutputs":
        """Return the model's outputs for a split, with labels and domains."""
        import numpy as np
        import torch

        from medic.evaluation.evaluator import LabelledOutputs
        from medic.utils.outputs import Output

        columns = self.predictions
        with self._files.errors_named(PREDICTIONS):
            rows = columns["split"] == split
            arrays = {name: torch.from_numpy(columns[name][rows]) for name in _TENSORS if name in columns}
            domain = torch.from_numpy(np.searchsorted(self.domains, columns["domain"][rows]))
            ova, features, unknown = (arrays.get(name) for name in ("ova_logits", "features", "unknown_logit"))
            return LabelledOutputs(Output(arrays["logits"], ova, features, unknown), arrays["label"], domain)

    @cached_property
    def predictor(self) -> "Predictor":
        """The selected model on the CPU, with its classes, preprocessing, score and threshold."""
        from medic.deploy.predictor import load

        with self._files.verified(DESCRIPTION), self._files.verified(WEIGHTS):
            return load(self.path)

    @property
    def score(self) -> "Score":
        """The run's score, including its fitted state."""
        return self.predictor.score

    @property
    def preprocessing(self) -> "Preprocessing":
        """The model's input preprocessing."""
        return self.predictor.preprocessing

    @property
    def model(self) -> "Classifier | Ensemble":
        """The selected network, in evaluation mode, on the CPU."""
        return self.predictor.network


def _modified(path: Path) -> float:
    """Return a file's modification time in seconds since 1970, or 0 if the file does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
