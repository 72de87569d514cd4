"""The specs of a run: frozen groups of settings, each of which completes and checks itself.

Importing them does not import torch, so that help, configuration files and tables do not wait for it.
"""

from medic.runs.specs.data import DataSpec
from medic.runs.specs.evaluation import EvaluationSpec
from medic.runs.specs.execution import ExecutionSpec
from medic.runs.specs.model import ModelSpec
from medic.runs.specs.objective import ObjectiveSpec
from medic.runs.specs.optim import OptimSpec
from medic.runs.specs.tasks import TaskSpec

__all__ = ["DataSpec", "EvaluationSpec", "ExecutionSpec", "ModelSpec", "ObjectiveSpec", "OptimSpec", "TaskSpec"]
