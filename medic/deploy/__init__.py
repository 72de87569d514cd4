"""Use of a trained model: the file that holds it, and its decisions on new images.

Names load when they are first used, so that a wrong path is reported without waiting for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from medic.deploy.layout import DESCRIPTION, WEIGHTS

if TYPE_CHECKING:  # the names below, for type checkers
    from medic.deploy.hub import pull, push
    from medic.deploy.inputs import AnyImage
    from medic.deploy.predictor import Prediction, Predictor, load

_HOME = {
    "AnyImage": "inputs", "Prediction": "predictor", "Predictor": "predictor", "load": "predictor",
    "pull": "hub", "push": "hub",
}  # fmt: skip

__all__ = ["DESCRIPTION", "WEIGHTS", "AnyImage", "Prediction", "Predictor", "load", "pull", "push"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'medic.deploy' has no attribute {name!r}")
    return getattr(importlib.import_module(f"medic.deploy.{_HOME[name]}"), name)
