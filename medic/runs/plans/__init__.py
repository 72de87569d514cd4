"""From what was asked for to what a run is made of: its data, its model, its grid of tasks and its training."""

from medic.runs.plans.data import DataPlan, Open, open_benchmark, open_once, plan_data
from medic.runs.plans.grid import parse_axes, plan_grid, written_splits
from medic.runs.plans.model import COMPILED, ModelPlan, ova_scale, pick_device, plan_model
from medic.runs.plans.training import TrainingPlan, plan_training

__all__ = [
    "COMPILED",
    "DataPlan",
    "ModelPlan",
    "Open",
    "TrainingPlan",
    "open_benchmark",
    "open_once",
    "ova_scale",
    "parse_axes",
    "pick_device",
    "plan_data",
    "plan_grid",
    "plan_model",
    "plan_training",
    "written_splits",
]
