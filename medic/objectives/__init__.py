"""Objectives: the losses and penalties that training minimises, per task."""

from medic.errors import moved
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

_PENALTIES, _SYSTEMS = "medic.objectives.penalties", "medic.systems"
__getattr__ = moved(
    __name__,
    {
        **{name: f"{_PENALTIES}.{name.lower()}" for name in ("Balance", "Coral", "Miro", "Transport", "VRex")},
        **dict.fromkeys(("Fishr", "Hgp", "Hutchinson"), f"{_PENALTIES}.head_gradients"),
        **{
            name: f"{_SYSTEMS}.{name.lower()}"
            for name in ("Arpl", "Cirl", "CrossMatch", "Daml", "HyProMeta", "OneRing")
        },
        "ConfusingSamples": f"{_SYSTEMS}.arpl",
        "EbilHads": f"{_SYSTEMS}.ebil_hads",
        "Player": "medic.objectives:AuxiliaryNetwork",
    },
)
