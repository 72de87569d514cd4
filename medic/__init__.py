"""Open set domain generalization: MEDIC++ and the systems it is compared with.

Names load when they are first used, so that `import medic` and `medic --help` do not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from medic._version import __version__

if TYPE_CHECKING:
    from medic import openset
    from medic.api import train
    from medic.errors import MedicError, TrainingError
    from medic.methods import METHODS, Method
    from medic.models import Classifier, create_backbone
    from medic.objectives import Objective, Ova, ce, objective, ova
    from medic.outputs import Output
    from medic.runs.directory import Run
    from medic.strategies import Joint, MultiStep, TwoStep, Update
    from medic.tables.frames import load_runs
    from medic.tasks import Grid, Step, matched_pairs

_HOME = {
    "train": "medic.api",
    "MedicError": "medic.errors",
    "TrainingError": "medic.errors",
    "Run": "medic.runs.directory",
    "load_runs": "medic.tables.frames",
    "METHODS": "medic.methods",
    "Method": "medic.methods",
    "Classifier": "medic.systems",  # with the heads of all systems
    "create_backbone": "medic.models",
    "Objective": "medic.objectives",
    "Ova": "medic.objectives",
    "ce": "medic.objectives",
    "objective": "medic.objectives",
    "ova": "medic.objectives",
    "Output": "medic.outputs",
    "Joint": "medic.strategies",
    "MultiStep": "medic.strategies",
    "TwoStep": "medic.strategies",
    "Update": "medic.strategies",
    "Grid": "medic.tasks",
    "Step": "medic.tasks",
    "matched_pairs": "medic.tasks",
}

__all__ = [
    "METHODS",
    "Classifier",
    "Grid",
    "Joint",
    "MedicError",
    "Method",
    "MultiStep",
    "Objective",
    "Output",
    "Ova",
    "Run",
    "Step",
    "TrainingError",
    "TwoStep",
    "Update",
    "__version__",
    "ce",
    "create_backbone",
    "load_runs",
    "matched_pairs",
    "objective",
    "openset",
    "ova",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "openset":
        return importlib.import_module("medic.openset")
    if name not in _HOME:
        raise AttributeError(f"module 'medic' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
