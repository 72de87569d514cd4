"""Use of a trained model: the file that holds it, and its decisions on new images."""

from medic.deploy.hub import pull, push
from medic.deploy.inputs import AnyImage
from medic.deploy.model_file import DESCRIPTION, WEIGHTS
from medic.deploy.predictor import Prediction, Predictor, load

__all__ = ["DESCRIPTION", "WEIGHTS", "AnyImage", "Prediction", "Predictor", "load", "pull", "push"]
