"""Models: backbones by name, and the classifier on top."""

from medic.models.backbones import HALVES, OURS, Backbone, Preprocessing, create_backbone, native_size
from medic.models.classifier import Classifier, Head
from medic.models.convnet import ConvNet, MnistCnn

__all__ = [
    "HALVES",
    "OURS",
    "Backbone",
    "Classifier",
    "ConvNet",
    "Head",
    "MnistCnn",
    "Preprocessing",
    "create_backbone",
    "native_size",
]
