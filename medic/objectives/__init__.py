"""Objectives: what is minimised, per task."""

from medic.objectives.losses import Ova, ce, ova
from medic.objectives.objective import Forward, Loss, Objective, Penalty, Risk, objective

__all__ = ["Forward", "Loss", "Objective", "Ova", "Penalty", "Risk", "ce", "objective", "ova"]
