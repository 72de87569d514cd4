"""The model that a command works with: of a finished run, or of a folder with its two files alone."""

import logging
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medic.deploy.layout import DESCRIPTION, check_model_files, model_folder
from medic.errors import MedicError
from medic.runs.layout import check_run, is_run, runs_inside

if TYPE_CHECKING:
    from medic.deploy.predictor import Predictor
    from medic.runs.run import Run

logger = logging.getLogger(__name__)


def check_model(path: str) -> None:
    """Raise an error if a path is neither a finished run nor a model, before torch is imported."""
    folder = model_folder(path)
    if not folder.exists():
        raise MedicError(f"run {path} does not exist: give the directory that training prints when it ends")
    if is_model(path):
        check_model_files(folder)
    else:
        check_run(folder)


def holds_run(path: str) -> bool:
    """Whether a folder has the files of a run or a model, or is a folder of runs."""
    folder = model_folder(path)
    return is_run(folder) or (folder / DESCRIPTION).exists() or bool(runs_inside(folder))


def is_model(path: str) -> bool:
    """Whether a folder holds a model without its run."""
    folder = model_folder(path)
    return (folder / DESCRIPTION).exists() and not is_run(folder)


def add_force_option(parser: ArgumentParser) -> None:
    """Add `--force`, for a command that refuses a model that learned nothing."""
    parser.add_argument("--force", action="store_true", help="accept a model that learned nothing in training")


def open_model(
    path: str, device: str = "cpu", imports: Sequence[str] = (), force: bool = True
) -> "tuple[Predictor, Run | None]":
    """Return a model on a device, and its run if the path is one, whose files are then checked as elsewhere.

    Code of the user that the model needs, such as its score, is executed first. A model that learned nothing logs a
    warning, or raises an error without `force`.
    """
    from medic.config.imports import execute
    from medic.deploy.predictor import load
    from medic.runs.run import Run
    from medic.training import pick_device

    execute(imports)
    chosen, folder = pick_device(device), model_folder(path)
    run = None if is_model(path) else Run(folder)
    predictor = load(folder) if run is None else run.predictor
    if not predictor.learned:
        numbers = "" if run is None else run.learning_failure
        check_learned(path, numbers or "it was no better than chance on held-out source images", force)
    return predictor.to(chosen), run


def check_learned(path: str, failure: str, force: bool = True) -> None:
    """Log a warning if a model learned nothing, or raise an error without `force`; `failure` is empty if it learned."""
    if not failure:
        return
    problem = f"the model in {path} learned nothing: {failure}"
    if not force:
        raise MedicError(f"{problem}; train again with a lower learning rate, or use the model anyway with --force")
    logger.warning("%s", problem)
