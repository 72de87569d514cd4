"""The model that a command works with: of a finished run, or of a folder with its two files alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medic.errors import MedicError

if TYPE_CHECKING:
    from medic.deploy import Predictor
    from medic.runs.directory import Run


def check_exists(place: str) -> None:
    """Refuse the path of a run or model that does not exist, before torch is imported."""
    if not Path(place).exists():
        raise MedicError(f"run {place} does not exist: give the directory that the end of a run names")


def holds_run(place: str) -> bool:
    """Whether a place has the files of a run or a model, or is a folder of runs."""
    from medic.deploy import DESCRIPTION, WEIGHTS
    from medic.runs.layout import CONFIG

    path = Path(place)
    if not path.is_dir():
        return path.name in (DESCRIPTION, WEIGHTS)
    return any((path / name).exists() for name in (CONFIG, DESCRIPTION)) or any(path.glob(f"*/{CONFIG}"))


def open_model(place: str, device: str = "cpu", imports: Sequence[str] = ()) -> "tuple[Predictor, Run | None]":
    """Return a model on a device, and its run if the place is one, whose files are then checked as elsewhere.

    Code of the user that the model needs, such as its score, is executed first.
    """
    from medic.deploy import DESCRIPTION, load
    from medic.deploy.model_file import model_folder
    from medic.runs.directory import Run
    from medic.runs.imports import execute
    from medic.runs.layout import CONFIG
    from medic.runs.specs import ExecutionSpec

    execute(imports)
    chosen, folder = ExecutionSpec(device=device).pick_device(), model_folder(place)
    alone = (folder / DESCRIPTION).exists() and not (folder / CONFIG).exists()
    run = None if alone else Run(folder)
    return (load(folder) if run is None else run.predictor).to(chosen), run
