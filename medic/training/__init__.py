"""Training: the one loop's body, its optimizers, its checkpoints."""

from medic.training.advisors import Advisor
from medic.training.averaging import Swad
from medic.training.capture import Capture
from medic.training.checkpoint import load_checkpoint, save_checkpoint
from medic.training.inference import Inference, infer
from medic.training.optim import OptimizerName, OptimizerSettings, RateSchedule, Schedule
from medic.training.precision import Precision, pick_precision
from medic.training.seeds import derive, generator
from medic.training.trainer import Trainer

__all__ = [
    "Advisor",
    "Capture",
    "Inference",
    "OptimizerName",
    "OptimizerSettings",
    "Precision",
    "RateSchedule",
    "Schedule",
    "Swad",
    "Trainer",
    "derive",
    "generator",
    "infer",
    "load_checkpoint",
    "pick_precision",
    "save_checkpoint",
]
