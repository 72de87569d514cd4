"""Rules for the validation split: which images in each domain are held out from training."""

import hashlib
from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from medic.data.dataset import Dataset
from medic.errors import MedicError

Rule = Literal["cell", "official", "domainbed"]


class Parts(NamedTuple):
    """Boolean masks of shape (N,) that select a dataset's images for each purpose.

    `train` and `validation` apply to source domains; `target` applies to target domains.
    """

    train: Tensor
    validation: Tensor
    target: Tensor


def make_parts(dataset: Dataset, rule: Rule, share: float, seed: int) -> Parts:
    """Split every domain into training and validation images.

    - `cell`: hold out a share of the images in every cell, that is, for every class in every domain.
    - `domainbed`: hold out a share of every domain, using DomainBed's random draws for the trial seed `seed`.
    - `official`: use the benchmark's official lists or folders.
    """
    if rule == "official":
        return _official(dataset)
    held_out = torch.zeros(len(dataset.label), dtype=torch.bool)
    for rows in _domainbed(dataset, share, seed) if rule == "domainbed" else _cells(dataset, share, seed):
        held_out[rows] = True
    return Parts(~held_out, held_out, torch.ones_like(held_out))


def _cells(dataset: Dataset, share: float, seed: int) -> Iterator[Tensor]:
    """Yield the indices of held-out images for every cell. Cells with one image keep it for training.

    Each cell has its own generator, seeded with the domain and class names, so that adding or removing a domain does
    not change the split of the others.
    """
    cell = dataset.domain * len(dataset.classes) + dataset.label
    sizes = torch.bincount(cell, minlength=len(dataset.domains) * len(dataset.classes)).tolist()
    names = product(dataset.domains, dataset.classes)
    for rows, (domain, name) in zip(cell.argsort(stable=True).split(sizes), names, strict=True):
        generator = torch.Generator().manual_seed(seed_hash(seed, domain, name))
        order = rows[torch.randperm(len(rows), generator=generator)]
        yield order[: min(round(share * len(rows)), max(0, len(rows) - 1))]


def _domainbed(dataset: Dataset, share: float, trial_seed: int) -> Iterator[Tensor]:
    """Yield the indices of held-out images for every domain."""
    for domain in range(len(dataset.domains)):
        rows = (dataset.domain == domain).nonzero().squeeze(1)
        order = np.arange(len(rows))
        np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
        yield rows[order[: int(share * len(rows))]]


def _official(dataset: Dataset) -> Parts:
    """Use the official splits. A target without test images is evaluated on all of its images."""
    if dataset.parts is None:
        reason = dataset.parts_problem or f"{dataset.name} has no official lists or folders"
        raise MedicError(f"--validation official is not available: {reason}; use --validation cell")
    train, validation, test = (torch.tensor([part == p for part in dataset.parts]) for p in ("train", "val", "test"))
    if not validation.any():  # DomainNet has only training and test lists
        validation = test
    return Parts(train, validation, test if test.any() else torch.ones_like(test))


def seed_hash(*values: object) -> int:
    """Return DomainBed's seed for a tuple of values: 31 bits of its MD5 hash."""
    return int(hashlib.md5(str(values).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31
