"""Evaluation of any model on any data, by the metrics that a run records."""

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
"""Samples of a forward pass where the data is not in batches."""


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    score: str | Score | None = None,
    threshold: str | float | None = None,
) -> dict[str, Any]:
    """Return the metrics of a model on labelled data, with the keys of `Run.metrics`, as fractions.

    `model` is any module that returns logits (N, C), a pair of logits and one-vs-all logits (N, 2, C), or an `Output`.
    It is in evaluation mode during the call, and stays on its device.

    `data` is a `DataLoader` or another iterable of batches (inputs, labels), a `Dataset`, or a pair of tensors. Labels
    are whole numbers; -1 and every label from C on mean unknown. Further parts of a batch, such as the domain, are
    ignored: the metrics are those of all samples together. Without an unknown sample only `acc` is defined.

    `score` is the name of a score that needs no fitting, or a fitted `Score`; by default `bcls` for a model with
    one-vs-all logits, `reject` for one with an output for unknown, and otherwise `cls`. `threshold` is the name of a
    rule, or a number: a probability if the score is one. By default it is the score's own decision, if it has one, or
    the rule `source`, which accepts 90 % of samples like the `validation` data: samples of known classes that were not
    trained on. Without validation data, the H-score at this threshold, `acc_k`, `acc_u` and the metrics of the full
    spectrum are left out.
    """
    if not isinstance(model, nn.Module):
        raise MedicError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    outputs = _infer(model, data, "data")
    chosen = openset.get_score(score or _default_score(outputs.output))
    held_out = None if validation is None else _infer(model, validation, "validation")
    if held_out is not None and (unknown := int((held_out.label < 0).sum())):
        raise MedicError(
            f"{unknown} of {len(held_out.label)} labels of validation are unknown: give samples of known classes alone"
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
        raise MedicError(f"threshold {threshold}: give a number, or the name of a rule: {', '.join(RULES)}")
    if isinstance(threshold, Real):  # also a number of NumPy
        return openset.chosen_threshold(score, float(threshold))
    if not bool((target.label < 0).any()):
        return None
    rule = threshold or ("hard" if score.rejects else "source")
    needs = RULES[check_choice("threshold rule", rule, RULES)].needs
    if validation is None and "validation" in needs:
        if threshold is None:
            return None
        raise MedicError(
            f"threshold {rule!r} needs samples of known classes that were not trained on: give validation="
        )
    RULES[rule].check(score)
    held_out = None if validation is None else validation.output
    return openset.threshold(rule, score, validation=held_out, target=target.output, label=target.label)


@torch.no_grad()
def _infer(model: nn.Module, data: Any, name: str) -> LabelledOutputs:
    """Return the outputs of a model for labelled data, with -1 for every unknown label."""
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
        raise MedicError(f"{name} is empty: give at least one batch (inputs, labels)")
    if len(counts := {output.logits.shape[1] for output in outputs}) > 1:
        raise MedicError(f"the model returned logits of {sorted(counts)} classes: their number must not change")
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
            f"{name} is a {type(data).__name__}: give a DataLoader, batches (inputs, labels), or a pair of tensors"
        )
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            what = f"{len(batch)} part" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise MedicError(f"a batch of {name} is {what}: give (inputs, labels), as in [(b['image'], b['label']), …]")
        yield batch[0], batch[1]


def _checked(inputs: Any, label: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return inputs (N, …) and labels (N,), or refuse others."""
    inputs = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
    if not isinstance(inputs, Tensor):
        raise MedicError(f"inputs of {name} are a {type(inputs).__name__}: give a tensor, (samples, …)")
    try:
        y = torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MedicError(f"labels of {name} are a {type(label).__name__}: give a tensor of whole numbers") from error
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.ndim != 1 or len(y) != len(inputs):
        raise MedicError(
            f"labels of {name} have shape {tuple(y.shape)} and type {y.dtype} for {len(inputs)} inputs: give one whole "
            f"number per input, shape ({len(inputs)},)"
        )
    return inputs, y


def _forward(model: nn.Module, inputs: Tensor, name: str) -> Any:
    try:
        return model(inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, MedicError | torch.OutOfMemoryError):
            raise
        what = f"inputs of {name}, of shape {tuple(inputs.shape)} and type {inputs.dtype}"
        raise MedicError(f"the model does not take the {what}: {first_line(error)}") from error
