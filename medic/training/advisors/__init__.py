"""Advisors: they look at the model now and then, and change what is drawn next."""

from collections.abc import Callable, Mapping

from medic.training.advisors.base import Advisor
from medic.training.advisors.hard_domain import HardDomain
from medic.training.advisors.informative import Chooser
from medic.training.advisors.prober import Prober
from medic.training.advisors.prototypes import Prototypes

OF_SAMPLERS: Mapping[str, Callable[..., Advisor]] = {"probe": Prober, "informative": Chooser}
"""What samplers need that ask the model."""

__all__ = ["OF_SAMPLERS", "Advisor", "Chooser", "HardDomain", "Prober", "Prototypes"]
