"""The specs of a run: frozen groups of settings, each of which completes and checks itself.

Importing them does not import torch, so that help, configuration files and tables do not wait for it.
"""

from medic.config.data import DataSpec
from medic.config.evaluation import EvaluationSpec
from medic.config.execution import ExecutionSpec
from medic.config.model import ModelSpec
from medic.config.objective import ObjectiveSpec
from medic.config.optim import OptimSpec
from medic.config.tasks import TaskSpec

__all__ = ["DataSpec", "EvaluationSpec", "ExecutionSpec", "ModelSpec", "ObjectiveSpec", "OptimSpec", "TaskSpec"]
