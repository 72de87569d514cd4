"""The outer optimizer of a run and its learning-rate schedule."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from medic.config.optim import OptimConfig
from medic.models import Classifier, Ensemble
from medic.models.blocks import parameters_by_depth


def rate_factor(optim: OptimConfig, iteration: int) -> float:
    """Return the factor by which to multiply the learning rates at an iteration, counted from 0.

    `step` divides by 10 after 80% of the iterations, and `cosine` decays to 0. The factor rises linearly during the
    first `warmup` iterations.
    """
    climb = min(1.0, (iteration + 1) / (optim.warmup + 1))
    if optim.schedule == "step":
        return climb * (0.1 if iteration >= int(0.8 * optim.iterations) else 1.0)
    if optim.schedule == "cosine":
        return climb * (1 + math.cos(math.pi * iteration / optim.iterations)) / 2
    return climb


Scaled = tuple[list[nn.Parameter], float]
"""Parameters, and the factor by which their learning rate is multiplied."""


def make_optimizer(
    optim: OptimConfig, model: Classifier | Ensemble, others: Sequence[Scaled] = ()
) -> torch.optim.Optimizer:
    """Create the optimizer for the backbone, the heads (at `head_lr_scale` times the learning rate) and `others`.

    On a GPU, the learning rates are tensors and a step is a single kernel, so that a CUDA graph can capture it.
    """
    heads = model.heads()
    device = heads[0].device
    on_gpu = device.type == "cuda"
    groups: list[dict[str, Any]] = []
    for parameters, scale in (*_scale_body(model, optim.layer_decay), (heads, optim.head_lr_scale), *others):
        rate = scale * optim.lr
        groups.append({"params": parameters, "lr": torch.tensor(rate, device=device) if on_gpu else rate})
    decay, fused = optim.weight_decay, True if on_gpu else None
    if optim.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=optim.momentum or 0.0, weight_decay=decay, fused=fused)
    adam = torch.optim.Adam if optim.optimizer == "adam" else torch.optim.AdamW
    return adam(groups, weight_decay=decay, capturable=on_gpu, fused=fused)


def _scale_body(model: Classifier | Ensemble, decay: float) -> list[Scaled]:
    """Return the trained backbone parameters with their factors, which decrease towards the stem."""
    if decay == 1:
        return [([parameter for parameter in model.body() if parameter.requires_grad], 1.0)]
    groups: list[Scaled] = []
    for network in model.networks if isinstance(model, Ensemble) else [model]:
        for depth, block in enumerate(reversed(parameters_by_depth(network.backbone)), start=1):
            groups.append(([parameter for parameter in block if parameter.requires_grad], decay**depth))
    return [(parameters, scale) for parameters, scale in groups if parameters]
