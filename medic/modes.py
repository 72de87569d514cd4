"""How a model behaves for a while: as in evaluation, or without a trace in its statistics."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; then every layer has the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Batch norm as it is, but that its running statistics do not move."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    tracked = [norm for norm in norms if norm.track_running_stats]
    for norm in tracked:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True
