"""Evaluate any model on any data, with the same metrics as a run."""

from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from medic import openset
from medic.errors import MedicError, check_choice, first_line
from medic.evaluation.evaluator import LabelledOutputs, measure_outputs
from medic.openset import RULES, Score, Threshold
from medic.utils.modules import evaluating
from medic.utils.outputs import Output

BATCH = 256
"""Batch size for data that is not already in batches."""


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    score: str | Score | None = None,
    threshold: str | float | None = None,
) -> dict[str, Any]:
    """Return a model's metrics on labelled data, as fractions with the same keys as `Run.metrics`.

    Without unknown samples, only `acc` and calibration metrics are defined. Without `validation`, full-spectrum metrics
    are omitted.

    Args:
        model: Module that returns logits of shape (N, C), a pair of logits and one-vs-all logits of shape (N, 2, C), or
            an `Output`. It is put into evaluation mode during the call and stays on its device.
        data: `DataLoader` or other iterable of batches (inputs, labels), `Dataset`, or pair of tensors. Labels are
            whole numbers; -1 and labels of C or above mean unknown. Other parts of a batch are ignored.
        validation: Held-out samples of known classes, in the same form as `data`.
        score: Name of a score that needs no fitting, or a fitted `Score`. By default, `bcls` for a model with
            one-vs-all logits, `reject` for a model with an output for unknown, and `cls` otherwise.
        threshold: Name of a rule, or a number, which is a probability if the score is one. The default is the score's
            own decision if it has one, and otherwise the `source` rule, which accepts 90% of samples similar to
            `validation`. If the rule needs `validation` but none is passed, the H-score at the threshold, `acc_k` and
            `acc_u` are omitted.
    """
    if not isinstance(model, nn.Module):
        raise MedicError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    outputs = _infer(model, data, "data")
    chosen = openset.get_score(score or _default_score(outputs.output))
    held_out = None if validation is None else _infer(model, validation, "validation")
    if held_out is not None and (unknown := int((held_out.label < 0).sum())):
        raise MedicError(
            f"validation must contain known classes only, but {unknown} of its {len(held_out.label)} labels are unknown"
        )
    sources = None
    if held_out is not None:
        known = chosen(held_out.output)
        sources = openset.Place(known, known[:0])
    return measure_outputs(outputs, chosen, _choose_threshold(threshold, chosen, outputs, held_out), sources)


def _default_score(output: Output) -> str:
    return "bcls" if output.ova is not None else "reject" if output.unknown is not None else "cls"


def _choose_threshold(
    threshold: Any, score: Score, target: LabelledOutputs, validation: LabelledOutputs | None
) -> Threshold | None:
    """Return the threshold, or None if nothing determines one."""
    if isinstance(threshold, bool) or not isinstance(threshold, str | Real | None):
        raise MedicError(f"threshold must be a number or the name of a rule ({', '.join(RULES)}), got {threshold}")
    if isinstance(threshold, Real):  # including NumPy numbers
        return openset.chosen_threshold(score, float(threshold))
    if not bool((target.label < 0).any()):
        return None
    rule = threshold or ("hard" if score.rejects else "source")
    needs = RULES[check_choice("threshold rule", rule, RULES)].needs
    if validation is None and "validation" in needs:
        if threshold is None:
            return None
        raise MedicError(f"threshold {rule!r} requires held-out samples of known classes: pass validation=")
    RULES[rule].check(score)
    held_out = None if validation is None else validation.output
    return openset.threshold(rule, score, validation=held_out, target=target.output, label=target.label)


@torch.no_grad()
def _infer(model: nn.Module, data: Any, name: str) -> LabelledOutputs:
    """Return a model's outputs for labelled data, with -1 for all unknown labels."""
    first = next(model.parameters(), next(model.buffers(), torch.empty(0)))
    outputs, labels = [], []
    with evaluating(model):
        for inputs, label in _batches(data, name):
            x, y = _checked(inputs, label, name)
            output = Output.of(_forward(model, x.to(first.device), name))._replace(stages=None, branches=None)
            output.check_logits(len(y))
            outputs.append(output)
            labels.append(y.to(output.logits.device))
    if not labels:
        raise MedicError(f"{name} is empty: expected at least one batch (inputs, labels)")
    if len(counts := {output.logits.shape[1] for output in outputs}) > 1:
        raise MedicError(f"the model returned logits for {sorted(counts)} classes: expected the same number every time")
    output, label = Output.cat(outputs), torch.cat(labels).long()
    known = label.where(label < output.logits.shape[1], -1)
    return LabelledOutputs(output, known, torch.zeros_like(known))


def _batches(data: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and labels, batch by batch."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=BATCH)
    if isinstance(data, tuple | list) and len(data) > 1 and isinstance(data[0], Tensor | np.ndarray):
        x, y = _checked(data[0], data[1], name)
        data = zip(x.split(BATCH), y.split(BATCH), strict=True)
    if isinstance(data, Tensor | str | dict) or not isinstance(data, Iterable):
        raise MedicError(
            f"{name} must be a DataLoader, batches (inputs, labels), or a pair of tensors, got {type(data).__name__}"
        )
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            what = f"{len(batch)} part" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise MedicError(
                f"a batch of {name} must be (inputs, labels), as in [(b['image'], b['label']), …], got {what}"
            )
        yield batch[0], batch[1]


def _checked(inputs: Any, label: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return inputs of shape (N, …) and labels of shape (N,) as tensors; raise an error if they are invalid."""
    inputs = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
    if not isinstance(inputs, Tensor):
        raise MedicError(f"inputs of {name} must be a tensor of shape (samples, …), got {type(inputs).__name__}")
    try:
        y = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MedicError(f"labels of {name} must be a tensor of whole numbers, got {type(label).__name__}") from error
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.ndim != 1 or len(y) != len(inputs):
        raise MedicError(
            f"labels of {name} must be one whole number per input, shape ({len(inputs)},), got shape {tuple(y.shape)} "
            f"and type {y.dtype} for {len(inputs)} inputs"
        )
    return inputs, y


def _forward(model: nn.Module, inputs: Tensor, name: str) -> Any:
    try:
        return model(inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, MedicError | torch.OutOfMemoryError):
            raise
        what = f"inputs of {name}, of shape {tuple(inputs.shape)} and type {inputs.dtype}"
        raise MedicError(f"the model does not accept the {what}: {first_line(error)}") from error
