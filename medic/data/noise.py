"""Label noise, drawn on purpose to measure how robust a method is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from medic.data.problem import Samples


def mislabelled(
    samples: Samples, share: float, classes: Mapping[int, Sequence[int]], generator: torch.Generator
) -> Samples:
    """Return samples of which an expected `share` has another class, drawn uniformly from the classes of its domain.

    `classes` are the known classes by domain. Each sample is drawn independently.
    """
    chosen = torch.rand(len(samples), generator=generator) < share
    draws = torch.rand(len(samples), generator=generator)
    label = samples.label.clone()
    for domain, own in classes.items():
        rows = (chosen & (samples.domain == domain)).nonzero().squeeze(1)
        if len(own) < 2 or not len(rows):
            continue
        order = torch.tensor(sorted(own))
        position = torch.searchsorted(order, label[rows])
        ahead = 1 + (draws[rows] * (len(order) - 1)).long()  # starts at 1, so that no drawn sample keeps its class
        label[rows] = order[(position + ahead) % len(order)]
    return replace(samples, label=label)
