"""Modules that are dataclasses, and modes that a model has for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field
from typing import Any, Self

from torch import nn

from medic.errors import MedicError
from medic.utils.parts import check_hyperparameters


class DeclaredModule(nn.Module):
    """A module whose subclasses are dataclasses: `@dataclass(eq=False)`, with hyperparameters as declared fields."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Initialise the module before the generated `__init__` assigns fields, some of which may be modules."""
        if cls.__hash__ is None or any(isinstance(value, Field) for value in vars(cls).values()):
            raise MedicError(f"class {cls.__name__} is not declared as a part: put @dataclass(eq=False) above it")
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def __post_init__(self) -> None:
        check_hyperparameters(self)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Return every layer to its own mode afterwards, training or evaluation."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside; every layer returns to its own mode afterwards."""
    with modes_kept(model):
        model.eval()
        yield


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch norm unchanged inside; its mode stays."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracked = [norm for norm in norms if norm.track_running_stats]
    for norm in tracked:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True


@contextmanager
def statistics_estimated(model: nn.Module) -> Iterator[bool]:
    """Re-estimate the running statistics of batch norm as means over the passes inside; yields whether it has any."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracked = [(norm, norm.momentum) for norm in norms if is_tracking(norm)]
    for norm, _ in tracked:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield bool(tracked)
    finally:
        for norm, momentum in tracked:
            norm.momentum = momentum


def is_tracking(module: nn.Module) -> bool:
    """Whether a layer is batch norm that estimates running statistics: in training mode, and not frozen."""
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and bool(module.track_running_stats) and module.training


def freeze_norms(model: nn.Module) -> None:
    """Keep the running statistics of batch norm, until the mode of the model is set again."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
