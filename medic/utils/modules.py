"""Modules declared as dataclasses, and context managers that temporarily change a model's mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field
from typing import Any, Self

from torch import nn

from medic.errors import MedicError
from medic.utils.parts import check_hyperparameters


class DeclaredModule(nn.Module):
    """Base class for modules declared with `@dataclass(eq=False)`, whose fields are hyperparameters."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Initialise the module before the generated `__init__` assigns fields, which may themselves be modules."""
        if cls.__hash__ is None or any(isinstance(value, Field) for value in vars(cls).values()):
            raise MedicError(f"class {cls.__name__} must be a dataclass: decorate it with @dataclass(eq=False)")
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def __post_init__(self) -> None:
        check_hyperparameters(self)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore every layer's mode (training or evaluation) afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of every layer afterwards."""
    with modes_kept(model):
        model.eval()
        yield


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Keep the batch-norm running statistics unchanged inside the context, without changing modes."""
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
    """Re-estimate the batch-norm running statistics as averages over the forward passes inside the context.

    Yields whether the model has any batch norm that tracks statistics.
    """
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
    """Return whether a layer is a batch-norm layer that currently updates its running statistics."""
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return norm and bool(module.track_running_stats) and module.training


def freeze_norms(model: nn.Module) -> None:
    """Freeze the batch-norm running statistics until the model's mode is set again."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
