"""Losses of one's own: of torch, or any function of the outputs or logits and the labels."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from medic.errors import MedicError, first_line
from medic.utils.outputs import Output

EXPECTED = "medic.ce, medic.ova, nn.CrossEntropyLoss(), or a function of (logits, labels)"


def name_of(value: Any) -> str:
    """Return the name of a function or class, or the type of another value."""
    return str(getattr(value, "__name__", type(value).__name__))


def takes_logits(loss: Callable[..., Any]) -> bool | None:
    """Return whether a loss takes logits (True) or an `Output` (False), from its signature; None if it is unclear."""
    if isinstance(loss, _Loss):
        return True
    try:
        first = next(iter(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()))
    except (StopIteration, TypeError, ValueError):  # without parameters, or of C
        return None
    kind = str(getattr(first.annotation, "__name__", first.annotation)).rpartition(".")[2]
    # In other code, a parameter `output` often takes logits.
    return {"Tensor": True, "Output": False}.get(kind, True if first.name == "logits" else None)


class OwnLoss(nn.Module):
    """A loss that this package does not define, as a function of an `Output` and the labels.

    The first parameter of a function says what it takes, by the type `Tensor` or `Output`, or by the name `logits`.
    Otherwise the first call tries both. The loss may return one loss per sample (N,), or their mean.
    """

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.loss = loss
        self._takes_logits = takes_logits(loss)
        self._called = False

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return the losses (N,), or their mean, a scalar."""
        if self._called:
            losses = self.loss(output.logits if self._takes_logits else output, y)
        else:
            losses = self._first(output, y)
            self._called = True
        if not isinstance(losses, Tensor):
            raise MedicError(f"loss {name_of(self.loss)} returned a {type(losses).__name__}: {self._expected(y)}")
        if not losses.is_floating_point() or losses.shape not in (torch.Size([]), y.shape):
            shape = f"shape {tuple(losses.shape)} and type {losses.dtype}"
            raise MedicError(f"loss {name_of(self.loss)} returned {shape}: {self._expected(y)}")
        return losses

    def _first(self, output: Output, y: Tensor) -> Any:
        """Call the loss with what it takes, or try the output and then its logits, and remember which it took."""
        failed: dict[str, Exception] = {}
        for with_logits in (False, True) if self._takes_logits is None else (self._takes_logits,):
            argument = f"logits of shape {tuple(output.logits.shape)}" if with_logits else "the output"
            try:
                losses = self.loss(output.logits if with_logits else output, y)
            except (TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError) or "out of bounds" in str(error):  # a label, not the loss
                    raise
                failed[argument] = error
                continue
            if isinstance(losses, Tensor) or with_logits or self._takes_logits is False:
                self._takes_logits = with_logits
                return losses
        reasons = [
            f"with {argument} ({type(error).__name__}: {first_line(error)})" for argument, error in failed.items()
        ]
        raise MedicError(
            f"loss {name_of(self.loss)} fails on labels of shape {tuple(y.shape)} {' and '.join(reasons)}: "
            "fix it, or give a function of (logits, labels) or (output, labels)"
        ) from next(iter(failed.values()))

    @staticmethod
    def _expected(y: Tensor) -> str:
        return f"return one loss per sample, shape ({len(y)},), or their mean, a scalar"


def adapted(loss: Any) -> Callable[[Output, Tensor], Tensor]:
    """Return a loss as a function of an `Output` and the labels; one of this package is returned unchanged."""
    if isinstance(loss, list | tuple):
        raise MedicError("the losses are in a list: give them one by one, as in objective(ce, ova)")
    if isinstance(loss, type):
        raise MedicError(f"loss {loss.__name__} is a class: make one, {loss.__name__}()")
    if not callable(loss):
        raise MedicError(f"loss {loss!r} is a {type(loss).__name__}: give {EXPECTED}")
    home = loss if hasattr(loss, "__name__") else type(loss)
    if str(getattr(home, "__module__", "")).split(".")[0] == "medic":
        ours: Callable[[Output, Tensor], Tensor] = loss
        return ours
    if getattr(loss, "reduction", None) == "sum":
        raise MedicError(
            f"loss {name_of(loss)} sums over samples, but the risk of a task is a mean: use reduction='mean'"
        )
    return OwnLoss(loss)
