"""Models: backbones by name, layers inside them, and the classifier on top."""

from medic.models.aloft import Aloft
from medic.models.backbones import (
    HALVES,
    OURS,
    Backbone,
    Preprocessing,
    create_backbone,
    has_batch_norm,
    is_custom,
    is_sized,
    native_size,
)
from medic.models.classifier import Classifier
from medic.models.convnet import ConvNet, MnistCnn
from medic.models.ensemble import Ensemble, assemble
from medic.models.heads import HEADS, Head
from medic.models.hub import find_weights
from medic.models.mixstyle import MixStyle
from medic.utils.parts import Part

LAYERS: dict[str, Part[MixStyle | Aloft]] = {
    "mixstyle": Part("mixstyle", MixStyle),
    "aloft-e": Part("aloft-e", Aloft, {"variant": "e"}),
    "aloft-s": Part("aloft-s", Aloft, {"variant": "s"}),
}
"""The layers that `--layer` accepts, by name."""

__all__ = [
    "HALVES",
    "HEADS",
    "LAYERS",
    "OURS",
    "Aloft",
    "Backbone",
    "Classifier",
    "ConvNet",
    "Ensemble",
    "Head",
    "MixStyle",
    "MnistCnn",
    "Preprocessing",
    "assemble",
    "create_backbone",
    "find_weights",
    "has_batch_norm",
    "is_custom",
    "is_sized",
    "native_size",
]
