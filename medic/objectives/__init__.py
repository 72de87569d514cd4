"""Objectives: the losses and penalties that training minimises."""

from medic.objectives import penalties  # noqa: F401 registers every penalty
from medic.objectives.auxiliary import AuxiliaryNetwork
from medic.objectives.losses import CE, OBJECTIVES, OVA, Ova, ce, ova
from medic.objectives.objective import (
    PENALTIES,
    Change,
    Forward,
    Loss,
    Objective,
    ObjectiveKind,
    Penalty,
    PenaltyFunction,
    Risk,
    Setup,
    objective,
)
from medic.objectives.rsc import Rsc

__all__ = [
    "CE",
    "OBJECTIVES",
    "OVA",
    "PENALTIES",
    "AuxiliaryNetwork",
    "Change",
    "Forward",
    "Loss",
    "Objective",
    "ObjectiveKind",
    "Ova",
    "Penalty",
    "PenaltyFunction",
    "Risk",
    "Rsc",
    "Setup",
    "ce",
    "objective",
    "ova",
]
