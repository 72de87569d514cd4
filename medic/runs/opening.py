"""Open the model of a finished run or of a model folder. Importing this module does not import torch."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medic.deploy.layout import DESCRIPTION, check_model_files, model_folder
from medic.errors import MedicError
from medic.runs.layout import check_run, is_run, runs_inside
from medic.runs.run import Run

if TYPE_CHECKING:
    from medic.deploy.predictor import Predictor

logger = logging.getLogger(__name__)


def check_model(path: Path | str) -> None:
    """Raise an error if a path is neither a finished run nor a model."""
    folder = model_folder(path)
    if not folder.exists():
        raise MedicError(f"{path} does not exist: pass the directory of a finished run or a model")
    if is_model(path):
        check_model_files(folder)
    else:
        check_run(folder)


def holds_run(path: Path | str) -> bool:
    """Return whether a folder is a run, a model, or a folder of runs."""
    folder = model_folder(path)
    return is_run(folder) or (folder / DESCRIPTION).exists() or bool(runs_inside(folder))


def is_model(path: Path | str) -> bool:
    """Return whether a folder contains a model without its run."""
    folder = model_folder(path)
    return (folder / DESCRIPTION).exists() and not is_run(folder)


def find_folder(model: "Predictor | Run | Path | str") -> Path | None:
    """Return the folder of a finished run or model, or None for a model in memory."""
    if isinstance(model, Run):
        return model.path
    if not isinstance(model, Path | str):
        return None
    check_model(model)
    return model_folder(model)


def execute_imports(names: Sequence[str]) -> None:
    """Execute the user's Python files and modules."""
    if names:
        from medic.config.imports import execute  # here, because it imports torch

        execute(names)


def open_model(
    model: "Predictor | Run | Path | str", device: str | None = None, imports: Sequence[str] = (), force: bool = True
) -> "tuple[Predictor, Run | None]":
    """Return a model and, if it belongs to a run, the run.

    Args:
        model: The model, its run, or a path to either.
        device: `auto`, `cpu` or `cuda`; by default the model stays on its device.
        imports: Python files or modules that the model needs, for example for a custom score. They are executed first.
        force: Whether to accept a model that learned nothing, with a warning.
    """
    if isinstance(model, Path | str):
        check_model(model)
    execute_imports(imports)
    from medic.deploy.predictor import Predictor, load
    from medic.training import pick_device

    _check_type(model, (Predictor, Run, Path, str))
    run: Run | None = None
    if isinstance(model, Run) or (isinstance(model, Path | str) and not is_model(model)):
        run = model if isinstance(model, Run) else Run(model_folder(model))
        predictor, place = run.predictor, str(run.path)
    elif isinstance(model, Path | str):
        predictor, place = load(model), str(model)
    else:
        predictor, place = model, ""
    if not predictor.learned:
        numbers = "" if run is None else run.learning_failure
        check_learned(place, numbers or "it was no better than chance on held-out source images", force)
    return predictor if device is None else predictor.to(pick_device(device)), run


def _check_type(model: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(model, kinds):
        raise MedicError(f"model must be a Run, a Predictor, or a path to either, got {type(model).__name__}")


def check_learned(place: Path | str, failure: str, force: bool = True) -> None:
    """Log a warning if a model learned nothing, or raise an error unless `force` is set.

    `failure` is the reason, and is empty if the model learned.
    """
    if not failure:
        return
    problem = f"the model{place and f' in {place}'} learned nothing: {failure}"
    if not force:
        raise MedicError(
            f"{problem}; train again with more iterations or a lower learning rate, or use it anyway with --force "
            "(Python: force=True)"
        )
    logger.warning("%s", problem)
