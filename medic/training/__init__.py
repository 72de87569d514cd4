"""Training: the one loop's body, its optimizers, its checkpoints."""

from medic.training.checkpoint import load_checkpoint, save_checkpoint
from medic.training.inference import infer
from medic.training.optim import OptimizerName, OptimizerSettings, RateSchedule, Schedule
from medic.training.seeds import derive, generator
from medic.training.trainer import Trainer

__all__ = [
    "OptimizerName",
    "OptimizerSettings",
    "RateSchedule",
    "Schedule",
    "Trainer",
    "derive",
    "generator",
    "infer",
    "load_checkpoint",
    "save_checkpoint",
]
