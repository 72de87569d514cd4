"""Training: the body of the training loop, optimizers, callbacks and checkpoints."""

from medic.training.averaging import AVERAGES, Swad, WeightAverage
from medic.training.callbacks import SAMPLER_CALLBACKS, Callback, Training
from medic.training.capture import Capture
from medic.training.checkpoint import load_checkpoint, save_checkpoint
from medic.training.inference import Inference, infer
from medic.training.precision import Precision, emulates_bf16, pick_device, pick_precision
from medic.training.seeds import derive, generator
from medic.training.trainer import Trainer

__all__ = [
    "AVERAGES",
    "SAMPLER_CALLBACKS",
    "Callback",
    "Capture",
    "Inference",
    "Precision",
    "Swad",
    "Trainer",
    "Training",
    "WeightAverage",
    "derive",
    "emulates_bf16",
    "generator",
    "infer",
    "load_checkpoint",
    "pick_device",
    "pick_precision",
    "save_checkpoint",
]
