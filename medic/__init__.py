"""Open set domain generalization: MEDIC++ and the systems it is compared with.

Names are imported lazily, so that `import medic` and `medic --help` do not have to import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from medic._version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers
    from medic import openset as openset
    from medic.api.models import Export as Export
    from medic.api.models import calibrate as calibrate
    from medic.api.models import export as export
    from medic.api.models import push as push
    from medic.api.models import serve as serve
    from medic.api.models import watch as watch
    from medic.api.results import analyze as analyze
    from medic.api.results import report as report
    from medic.api.training import probe as probe
    from medic.api.training import sweep as sweep
    from medic.api.training import train as train
    from medic.config.settings import Settings as Settings
    from medic.data import list_datasets as list_datasets
    from medic.deploy.hub import pull as pull
    from medic.deploy.predictor import Prediction as Prediction
    from medic.deploy.predictor import Predictor as Predictor
    from medic.deploy.predictor import load as load
    from medic.errors import MedicError as MedicError
    from medic.errors import TrainingError as TrainingError
    from medic.estimator import OpenSetClassifier as OpenSetClassifier
    from medic.evaluation.evaluate_model import evaluate as evaluate
    from medic.learner import Learner as Learner
    from medic.methods import METHODS as METHODS
    from medic.methods import Method as Method
    from medic.methods import list_methods as list_methods
    from medic.models import Classifier as Classifier
    from medic.models import create_backbone as create_backbone
    from medic.objectives import Objective as Objective
    from medic.objectives import Ova as Ova
    from medic.objectives import Setup as Setup
    from medic.objectives import ce as ce
    from medic.objectives import objective as objective
    from medic.objectives import ova as ova
    from medic.results.runs import Runs as Runs
    from medic.results.runs import load_runs as load_runs
    from medic.results.table import Table as Table
    from medic.runs.run import Run as Run
    from medic.runs.soup import soup as soup
    from medic.strategies import Joint as Joint
    from medic.strategies import MultiStep as MultiStep
    from medic.strategies import TwoStep as TwoStep
    from medic.strategies import Update as Update
    from medic.tasks import Grid as Grid
    from medic.tasks import Step as Step
    from medic.tasks import matched_pairs as matched_pairs
    from medic.utils.outputs import Output as Output

_HOMES = {
    "medic.api.training": ["probe", "sweep", "train"],
    "medic.api.results": ["analyze", "report"],
    "medic.api.models": ["Export", "calibrate", "export", "push", "serve", "watch"],
    "medic.config.settings": ["Settings"],
    "medic.data": ["list_datasets"],
    "medic.deploy.hub": ["pull"],
    "medic.deploy.predictor": ["Prediction", "Predictor", "load"],
    "medic.errors": ["MedicError", "TrainingError"],
    "medic.estimator": ["OpenSetClassifier"],
    "medic.learner": ["Learner"],
    "medic.methods": ["METHODS", "Method", "list_methods"],
    "medic.models": ["create_backbone"],
    "medic.objectives": ["Objective", "Ova", "Setup", "ce", "objective", "ova"],
    "medic.utils.outputs": ["Output"],
    "medic.evaluation.evaluate_model": ["evaluate"],
    "medic.runs.run": ["Run"],
    "medic.runs.soup": ["soup"],
    "medic.strategies": ["Joint", "MultiStep", "TwoStep", "Update"],
    "medic.systems": ["Classifier"],  # with the heads of all systems
    "medic.results.runs": ["Runs", "load_runs"],
    "medic.results.table": ["Table"],
    "medic.tasks": ["Grid", "Step", "matched_pairs"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", "openset", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "openset":
        return importlib.import_module("medic.openset")
    if name not in _HOME:
        raise AttributeError(f"module 'medic' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
