"""Objectives: what is minimised, per task."""

from medic.objectives.cirl import Cirl
from medic.objectives.confusing import ConfusingSamples
from medic.objectives.crossmatch import CrossMatch
from medic.objectives.daml import Daml
from medic.objectives.ebil import EbilHads
from medic.objectives.hyprometa import HyProMeta
from medic.objectives.losses import Arpl, OneRing, Ova, ce, ova
from medic.objectives.objective import (
    Change,
    Forward,
    Loss,
    Objective,
    Penalty,
    PenaltyFunction,
    Risk,
    Setup,
    objective,
)
from medic.objectives.penalties.balance import Balance
from medic.objectives.penalties.coral import Coral
from medic.objectives.penalties.groupdro import GroupDro
from medic.objectives.penalties.head_gradients import Fishr, Hgp, Hutchinson
from medic.objectives.penalties.miro import Miro
from medic.objectives.penalties.transport import Transport
from medic.objectives.penalties.vrex import VRex
from medic.objectives.player import Player
from medic.objectives.rsc import Rsc

__all__ = [
    "Arpl",
    "Balance",
    "Change",
    "Cirl",
    "ConfusingSamples",
    "Coral",
    "CrossMatch",
    "Daml",
    "EbilHads",
    "Fishr",
    "Forward",
    "GroupDro",
    "Hgp",
    "Hutchinson",
    "HyProMeta",
    "Loss",
    "Miro",
    "Objective",
    "OneRing",
    "Ova",
    "Penalty",
    "PenaltyFunction",
    "Player",
    "Risk",
    "Rsc",
    "Setup",
    "Transport",
    "VRex",
    "ce",
    "objective",
    "ova",
]
