"""What methods require besides logits: further model outputs, parts of the model, and information about training.

Losses, penalties, objectives, callbacks and scores list the names of their requirements in their `needs` attribute.
"""

from typing import NamedTuple

from torch import nn

from medic.utils.outputs import Output


class Need(NamedTuple):
    """A requirement: its description, and how to meet it in a custom training loop."""

    text: str
    way: str


OUTPUTS = {
    "ova": Need("one-vs-all outputs", "return medic.Output(logits, ova=…)"),
    "features": Need("features", "return medic.Output(logits, features=…)"),
    "distance": Need("distances to reciprocal points", "return medic.Output(logits, distance=…)"),
    "unknown": Need("a logit for unknown", "return medic.Output(logits, unknown=…)"),
    "branches": Need("two branches", "return medic.Output(logits, branches=…)"),
}
"""Requirements on a model's output."""

MODEL = {
    "classify": Need("a separate head", "add a classify(features) method to the model"),
    "sizes": Need("the number of features and classes", "add attributes features and classes to the model"),
    "backbone": Need("a separate backbone", "add attributes backbone and features to the model"),
    "tap": Need("feature maps from the backbone's stages", "add a method tap() to the model, as in medic.Classifier"),
    "networks": Need("one network per domain", "use medic.models.Ensemble with one medic.Classifier per domain"),
}
"""Requirements on a model."""

TRAINING = {
    "setup": Need(
        "the input shape and normalisation", "pass setup=medic.Setup(images=…, epoch=…, shape=…, mean=…, std=…)"
    ),
    "train_set": Need("the training set", "pass train_set=(x, y, domain)"),
    "validate": Need("the validation loss", "pass iterations= and validate=, a function that returns the loss"),
}
"""Requirements on the arguments of `medic.Learner`."""

NEEDS = {**OUTPUTS, **MODEL, **TRAINING}
"""All requirements by name."""

_ATTRIBUTES = {"classify": ["classify"], "sizes": ["features", "classes"], "backbone": ["backbone", "features"],
               "tap": ["tap"], "networks": ["networks"]}  # fmt: skip


def lacks(model: nn.Module, need: str) -> bool:
    """Return whether a model lacks a requirement listed in `MODEL`."""
    return not all(hasattr(model, name) for name in _ATTRIBUTES[need])


def missing(output: Output, need: str) -> bool:
    """Return whether an output lacks a requirement listed in `OUTPUTS`."""
    return getattr(output, need) is None
