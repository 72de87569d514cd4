"""The needs of methods beyond logits: parts of the model's output, parts of the model, and facts about training.

Losses, penalties, objectives, callbacks and scores declare their needs by name, in an attribute `needs`.
"""

from typing import NamedTuple

from torch import nn

from medic.utils.outputs import Output


class Need(NamedTuple):
    """One need: what it is, and the way to meet it in a loop of one's own."""

    text: str
    way: str


OUTPUTS = {
    "ova": Need("one-vs-all outputs", "return medic.Output(logits, ova=…)"),
    "features": Need("features", "return medic.Output(logits, features=…)"),
    "distance": Need("distances to reciprocal points", "return medic.Output(logits, distance=…)"),
    "unknown": Need("an output for unknown", "return medic.Output(logits, unknown=…)"),
    "branches": Need("two branches", "return medic.Output(logits, branches=…)"),
}
"""Parts of a model's output."""

MODEL = {
    "classify": Need("a head to call by itself", "give the model a method classify(features)"),
    "sizes": Need("the numbers of features and classes", "give the model attributes features and classes"),
    "backbone": Need("the backbone by itself", "give the model attributes backbone and features"),
    "tap": Need("the maps of the backbone's stages", "give the model a method tap(), as medic.Classifier has it"),
    "networks": Need("a network per domain", "use medic.models.Ensemble with a medic.Classifier per domain"),
}
"""Parts of a model."""

TRAINING = {
    "setup": Need(
        "the shape and scale of the inputs", "give setup=medic.Setup(images=…, epoch=…, shape=…, mean=…, std=…)"
    ),
    "train_set": Need("the training set", "give train_set=(x, y, domain)"),
    "validate": Need("the validation loss", "give validate=, a function that returns it, and iterations="),
}
"""Facts about the training."""

NEEDS = {**OUTPUTS, **MODEL, **TRAINING}
"""All needs by name."""

_ATTRIBUTES = {"classify": ["classify"], "sizes": ["features", "classes"], "backbone": ["backbone", "features"],
               "tap": ["tap"], "networks": ["networks"]}  # fmt: skip


def lacks(model: nn.Module, need: str) -> bool:
    """Whether a model lacks a part of `MODEL`."""
    return not all(hasattr(model, name) for name in _ATTRIBUTES[need])


def missing(output: Output, need: str) -> bool:
    """Whether an output lacks a part of `OUTPUTS`."""
    return getattr(output, need) is None
