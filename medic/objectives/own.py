"""Losses of one's own: of torch, or any function of the outputs or logits and the labels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from medic.errors import MedicError, first_line
from medic.outputs import Output

EXPECTED = "medic.ce, medic.ova, nn.CrossEntropyLoss(), or a function of (logits, labels)"


def name_of(value: Any) -> str:
    """Return the name of a function or class, or the type of another value."""
    return str(getattr(value, "__name__", type(value).__name__))


class OwnLoss(nn.Module):
    """A loss that this package does not define, as a function of an `Output` and the labels.

    A loss of torch takes logits. Of another function only its first call shows whether it takes the whole `Output` or
    the logits. It may return one loss per sample (N,), or their mean.
    """

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.loss = loss
        self._takes_logits: bool | None = None  # unknown before the first call

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return the losses (N,), or their mean, a scalar."""
        if self._takes_logits is None:
            found = self._first(output, y)
        else:
            found = self.loss(output.logits if self._takes_logits else output, y)
        if not isinstance(found, Tensor):
            raise MedicError(f"loss {name_of(self.loss)} returned a {type(found).__name__}: {self._expected(y)}")
        if not found.is_floating_point() or found.shape not in (torch.Size([]), y.shape):
            shape = f"shape {tuple(found.shape)} and type {found.dtype}"
            raise MedicError(f"loss {name_of(self.loss)} returned {shape}: {self._expected(y)}")
        return found

    def _first(self, output: Output, y: Tensor) -> Any:
        """Call the loss with the output, or with its logits if it does not take that, and remember which."""
        reasons = []
        for takes_logits in (True,) if isinstance(self.loss, _Loss) else (False, True):
            try:
                found = self.loss(output.logits if takes_logits else output, y)
            except (TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError) or "out of bounds" in str(error):  # a label, not the loss
                    raise
                reasons.append(first_line(error))
                continue
            if isinstance(found, Tensor) or takes_logits:
                self._takes_logits = takes_logits
                return found
        raise MedicError(
            f"loss {name_of(self.loss)} does not take logits of shape {tuple(output.logits.shape)} and labels of shape "
            f"{tuple(y.shape)} ({reasons[-1]}): give a function of (logits, labels)"
        )

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
