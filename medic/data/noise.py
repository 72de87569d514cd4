"""Wrong labels, on purpose: to see what a method makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from medic.data.problem import Samples


def mislabelled(
    samples: Samples, share: float, classes: Mapping[int, Sequence[int]], generator: torch.Generator
) -> Samples:
    """Samples of which a share has another class than its own, drawn evenly from those that its domain has.

    `classes` are the known classes by domain. Every sample is drawn for by itself, so that the share is met on average.
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
        ahead = 1 + (draws[rows] * (len(order) - 1)).long()  # from 1 on, so that none keeps its class
        label[rows] = order[(position + ahead) % len(order)]
    return replace(samples, label=label)
