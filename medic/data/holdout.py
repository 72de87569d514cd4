"""Rules that hold images of each domain out of training."""

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
    """Masks (N,) over the images of a dataset by use.

    `train` and `validation` apply to source domains, `target` to target domains.
    """

    train: Tensor
    validation: Tensor
    target: Tensor


def make_parts(dataset: Dataset, rule: Rule, share: float, seed: int) -> Parts:
    """Divide every domain by a rule.

    `cell` holds out a share of every (domain, class) cell for validation. `domainbed` holds out a share of every domain
    with DomainBed's draws for the trial `seed`. `official` follows the benchmark's lists or folders.
    """
    if rule == "official":
        return _official(dataset)
    held_out = torch.zeros(len(dataset.label), dtype=torch.bool)
    for rows in _domainbed(dataset, share, seed) if rule == "domainbed" else _cells(dataset, share, seed):
        held_out[rows] = True
    return Parts(~held_out, held_out, torch.ones_like(held_out))


def _cells(dataset: Dataset, share: float, seed: int) -> Iterator[Tensor]:
    """Yield the held-out images of every cell; a cell with one image keeps it for training.

    Each cell has its own generator, named by domain and class, so that no domain changes the draws of another.
    """
    cell = dataset.domain * len(dataset.classes) + dataset.label
    sizes = torch.bincount(cell, minlength=len(dataset.domains) * len(dataset.classes)).tolist()
    names = product(dataset.domains, dataset.classes)
    for rows, (domain, name) in zip(cell.argsort(stable=True).split(sizes), names, strict=True):
        generator = torch.Generator().manual_seed(seed_hash(seed, domain, name))
        order = rows[torch.randperm(len(rows), generator=generator)]
        yield order[: min(round(share * len(rows)), max(0, len(rows) - 1))]


def _domainbed(dataset: Dataset, share: float, trial_seed: int) -> Iterator[Tensor]:
    """Yield the held-out images of every domain."""
    for domain in range(len(dataset.domains)):
        rows = (dataset.domain == domain).nonzero().squeeze(1)
        order = np.arange(len(rows))
        np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
        yield rows[order[: int(share * len(rows))]]


def _official(dataset: Dataset) -> Parts:
    """Follow the official parts; a target without test images is evaluated on all of its images."""
    if dataset.parts is None:
        reason = dataset.parts_problem or f"{dataset.name} comes without official lists or folders"
        raise MedicError(f"validation 'official': {reason}; use --validation cell")
    train, validation, test = (torch.tensor([part == p for part in dataset.parts]) for p in ("train", "val", "test"))
    if not validation.any():  # DomainNet has only training and test lists
        validation = test
    return Parts(train, validation, test if test.any() else torch.ones_like(test))


def seed_hash(*values: object) -> int:
    """Return DomainBed's seed for a tuple of values: 31 bits of their MD5."""
    return int(hashlib.md5(str(values).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31
