"""Models: backbones by name, and the classifier on top."""

from medic.models.backbones import HALVES, OURS, Backbone, Preprocessing, create_backbone, fixed_size, native_size
from medic.models.classifier import Classifier
from medic.models.convnet import ConvNet, MnistCnn
from medic.models.ensemble import Ensemble, assemble
from medic.models.heads import HEADS
from medic.models.hub import find_weights

__all__ = [
    "HALVES",
    "HEADS",
    "OURS",
    "Backbone",
    "Classifier",
    "ConvNet",
    "Ensemble",
    "MnistCnn",
    "Preprocessing",
    "assemble",
    "create_backbone",
    "find_weights",
    "fixed_size",
    "native_size",
]
