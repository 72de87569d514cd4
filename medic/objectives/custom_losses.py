"""Custom losses: torch losses, and functions that take (logits, labels) or (output, labels)."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from medic.errors import MedicError, first_line
from medic.utils.outputs import Output

EXPECTED = "medic.ce, medic.ova, nn.CrossEntropyLoss(), or a function that takes (logits, labels)"


def name_of(value: Any) -> str:
    """Return the name of a function or class, or the type name of any other value."""
    return str(getattr(value, "__name__", type(value).__name__))


def takes_logits(loss: Callable[..., Any]) -> bool | None:
    """Return True if a loss takes logits, False if it takes an `Output`, and None if its signature is unclear."""
    if isinstance(loss, _Loss):
        return True
    try:
        first = next(iter(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()))
    except (StopIteration, TypeError, ValueError):  # no parameters, or a C function without a signature
        return None
    kind = str(getattr(first.annotation, "__name__", first.annotation)).rpartition(".")[2]
    # A name such as `output` is inconclusive: many losses call their logits that.
    return {"Tensor": True, "Output": False}.get(kind, True if first.name == "logits" else None)


class OwnLoss(nn.Module):
    """A wrapper that lets a custom loss be called with an `Output` and labels.

    The wrapped function receives the whole output if its first parameter is annotated as `Output`, and logits if the
    parameter is annotated as `Tensor` or named `logits`. Otherwise, the first call tries both. The function may return
    one loss per sample, of shape (N,), or their mean.
    """

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.loss = loss
        self._takes_logits = takes_logits(loss)
        self._called = False

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return losses of shape (N,), or their mean as a scalar."""
        if self._called:
            losses = self.loss(output.logits if self._takes_logits else output, y)
        else:
            losses = self._first(output, y)
            self._called = True
        if not isinstance(losses, Tensor):
            raise MedicError(f"loss {name_of(self.loss)} returned a {type(losses).__name__}: {self._expected(y)}")
        if not losses.is_floating_point() or losses.shape not in (torch.Size([]), y.shape):
            tensor = f"a tensor of shape {tuple(losses.shape)} and dtype {losses.dtype}"
            raise MedicError(f"loss {name_of(self.loss)} returned {tensor}: {self._expected(y)}")
        return losses

    def _first(self, output: Output, y: Tensor) -> Any:
        """Call the loss for the first time. If its signature is unclear, try the output, then the logits."""
        failed: dict[str, Exception] = {}
        for with_logits in (False, True) if self._takes_logits is None else (self._takes_logits,):
            argument = f"logits of shape {tuple(output.logits.shape)}" if with_logits else "an Output"
            try:
                losses = self.loss(output.logits if with_logits else output, y)
            except (TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError) or "out of bounds" in str(error):  # bad labels
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
            f"loss {name_of(self.loss)} failed on labels of shape {tuple(y.shape)} {' and '.join(reasons)}: "
            "fix the loss, or pass a function that takes (logits, labels) or (output, labels)"
        ) from next(iter(failed.values()))

    @staticmethod
    def _expected(y: Tensor) -> str:
        return f"expected one loss per sample, shape ({len(y)},), or their mean, a scalar"


def adapted(loss: Any) -> Callable[[Output, Tensor], Tensor]:
    """Wrap a custom loss so that it takes an `Output` and labels. Return medic's own losses unchanged."""
    if isinstance(loss, list | tuple):
        raise MedicError("losses must be separate arguments, not a list: use objective(ce, ova)")
    if isinstance(loss, type):
        raise MedicError(f"loss {loss.__name__} is a class: pass an instance, {loss.__name__}()")
    if not callable(loss):
        raise MedicError(f"loss {loss!r} has type {type(loss).__name__}: expected {EXPECTED}")
    home = loss if hasattr(loss, "__name__") else type(loss)
    if str(getattr(home, "__module__", "")).split(".")[0] == "medic":
        ours: Callable[[Output, Tensor], Tensor] = loss
        return ours
    if getattr(loss, "reduction", None) == "sum":
        raise MedicError(
            f"loss {name_of(loss)} sums over samples, but medic averages losses over each task: use reduction='mean'"
        )
    return OwnLoss(loss)
