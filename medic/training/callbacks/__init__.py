"""Training callbacks, including those that samplers require."""

from collections.abc import Mapping

from medic.training.callbacks.base import Callback, Training
from medic.training.callbacks.informative import InformativeTasks
from medic.utils.parts import Part

SAMPLER_CALLBACKS: Mapping[str, Part[Callback]] = {
    "informative": Part("informative", InformativeTasks),
}
"""Callbacks required by samplers, keyed by sampler name."""

__all__ = ["SAMPLER_CALLBACKS", "Callback", "InformativeTasks", "Training"]
