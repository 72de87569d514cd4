"""Strategies: replacements for `loss.backward()` that compute `p.grad` from the steps of an iteration."""

from medic.strategies.base import BnBuffers, InnerLoop, Strategy, Update
from medic.strategies.joint import Joint
from medic.strategies.masks import AndMask, SandMask
from medic.strategies.multi_step import MultiStep
from medic.strategies.trajectories import Trajectories
from medic.strategies.two_step import TwoStep

__all__ = [
    "AndMask",
    "BnBuffers",
    "InnerLoop",
    "Joint",
    "MultiStep",
    "SandMask",
    "Strategy",
    "Trajectories",
    "TwoStep",
    "Update",
]
