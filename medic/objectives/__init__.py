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

_HEADS = "medic.objectives.penalties.head_gradients"
__getattr__ = moved(
    __name__,
    {
        **{
            name: f"medic.objectives.penalties.{name.lower()}"
            for name in ("Balance", "Coral", "Miro", "Transport", "VRex")
        },
        **dict.fromkeys(("Fishr", "Hgp", "Hutchinson"), _HEADS),
        "Player": "medic.objectives:AuxiliaryNetwork",
        "Arpl": "medic.systems.arpl",
        "ConfusingSamples": "medic.systems.arpl",
        "Cirl": "medic.systems.cirl",
        "CrossMatch": "medic.systems.crossmatch",
        "Daml": "medic.systems.daml",
        "EbilHads": "medic.systems.ebil_hads",
        "HyProMeta": "medic.systems.hyprometa",
        "OneRing": "medic.systems.onering",
    },
)
