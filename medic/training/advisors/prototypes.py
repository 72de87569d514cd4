"""Which labels are wrong, by hyperbolic prototypes of the classes: HyProMeta (Peng et al. 2024), our reading."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from medic.data import Samples
from medic.errors import check_range, counted
from medic.objectives.hyperbolic import distance, exp0, mean
from medic.training.advisors.base import Advisor

if TYPE_CHECKING:
    from medic.training.trainer import Trainer

AT_ONCE = 4096
"""Samples whose distances to all prototypes are held at once."""


class Prototypes(Advisor):
    """Once an epoch, takes samples whose label is not that of the nearest prototype to be noisy, and relabels them.

    It needs the labels that training was given and the model as it is, nothing else. Samples have the attribute
    `clean`, 1 or 0; a noisy one has the label of the nearest prototype. For the first `trust` epochs all are clean: a
    model that has learnt little takes half of the right labels to be wrong, and learns from that.
    """

    def __init__(self, trust: int = 40) -> None:
        check_range("HyProMeta", trust=trust)
        self.trust = trust

    def start(self, trainer: "Trainer") -> None:
        """Take all labels to be right, and find how long an epoch is."""
        self.given = self.label = trainer.samples.label
        self.clean = torch.ones_like(self.given)
        self.prototypes: Tensor | None = None
        self.every = max(1, len(self.given) // (trainer.grid.tasks * trainer.batch_size))
        self._infer = trainer.inference()
        first = self.trust * self.every
        trainer.say(f"labels are corrected from iteration {first} on, after {counted(self.trust, 'epoch')}")
        trainer.samples = self._samples(trainer)

    def advise(self, trainer: "Trainer") -> None:
        """Compare all training samples with the prototypes of the classes."""
        if trainer.iteration < self.trust * self.every:
            return
        output = self._infer(trainer.samples.indices)
        assert output.features is not None
        points = embed(output.features.cpu().double())
        domain, classes = trainer.samples.domain, output.logits.shape[1]
        trusted = self.clean > 0
        found = find_prototypes(points[trusted], self.given[trusted], domain[trusted], classes)
        self.prototypes = found if self.prototypes is None else torch.where(found.isnan(), self.prototypes, found)
        nearest = find_nearest(points, self.prototypes)
        self.clean = (nearest == self.given).long()
        self.label = keep_cells(nearest, self.given, domain, classes)
        trainer.relabel(self._samples(trainer))

    def report(self) -> dict[str, float]:
        """The share of training samples that are taken to be noisy now."""
        return {"noisy": 1 - float(self.clean.double().mean())}

    def state_dict(self) -> dict[str, Any]:
        """The labels, what is clean, and the prototypes."""
        return {"label": self.label, "clean": self.clean, "prototypes": self.prototypes}

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """Relabel the samples as they were."""
        self.label, self.clean, self.prototypes = state["label"], state["clean"], state["prototypes"]
        trainer.relabel(self._samples(trainer))

    def _samples(self, trainer: "Trainer") -> Samples:
        """The trainer's samples as they are labelled now."""
        samples = trainer.samples
        return replace(samples, label=self.label, attributes={**samples.attributes, "clean": self.clean})


def embed(features: Tensor) -> Tensor:
    """Points (N, F) of the Poincaré ball for features (N, F), of which those longer than 1 are shortened to 1."""
    return exp0(features / features.norm(dim=1, keepdim=True).clamp(min=1))


def find_prototypes(points: Tensor, label: Tensor, domain: Tensor, classes: int) -> Tensor:
    """The prototype of every class (C, F): the mean over domains of the means of its points (N, F) there.

    It is NaN for a class without points.
    """
    found = torch.full((classes, points.shape[1]), torch.nan, dtype=points.dtype)
    for c in label.unique().tolist():
        mine, where = points[label == c], domain[label == c]
        found[c] = mean(torch.stack([mean(mine[where == d]) for d in where.unique()]))
    return found


def find_nearest(points: Tensor, prototypes: Tensor) -> Tensor:
    """The class (N,) whose prototype (C, F) is nearest to each point (N, F), among those that have one."""
    lacking = prototypes.isnan().any(1)
    parts = points.split(AT_ONCE)
    return torch.cat([distance(part, prototypes).masked_fill(lacking, torch.inf).argmin(1) for part in parts])


def keep_cells(label: Tensor, given: Tensor, domain: Tensor, classes: int) -> Tensor:
    """Labels (N,), but where a domain would lose its last sample of a class, those it was given keep that class.

    A grid could not split what is left of a domain that loses classes.
    """
    cells = classes * (1 + int(domain.max()))
    while True:
        there = torch.bincount(classes * domain + label, minlength=cells) > 0
        lost = ~there[classes * domain + given]
        if not bool(lost.any()):
            return label
        label = torch.where(lost, given, label)
