"""Which images of a domain are held out of training, by one of several rules."""

import hashlib
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from medic.data.dataset import Dataset
from medic.errors import MedicError

Rule = Literal["cell", "official", "domainbed"]


class Parts(NamedTuple):
    """What images may be used for: masks (N,) over a dataset.

    `train` and `validation` hold for a domain that is a source, `target` for one that is a target.
    """

    train: Tensor
    validation: Tensor
    target: Tensor


def make_parts(dataset: Dataset, rule: Rule, share: float, seed: int) -> Parts:
    """Divide every domain by a rule.

    `cell` holds out the share of every (domain, class) cell for validation, `domainbed` of every domain with the draws
    of that suite for the trial `seed`; `official` does as the benchmark's own lists or folders say.
    """
    if rule == "official":
        return _official(dataset)
    held_out = _domainbed(dataset, share, seed) if rule == "domainbed" else _cells(dataset, share, seed)
    return Parts(~held_out, held_out, torch.ones_like(held_out))


def _cells(dataset: Dataset, share: float, seed: int) -> Tensor:
    """A cell of one image keeps it for training."""
    held_out = torch.zeros(len(dataset.label), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    cell = dataset.domain * len(dataset.classes) + dataset.label
    sizes = torch.bincount(cell, minlength=len(dataset.domains) * len(dataset.classes)).tolist()
    for rows in cell.argsort(stable=True).split(sizes):
        order = rows[torch.randperm(len(rows), generator=generator)]
        held_out[order[: min(round(share * len(rows)), max(0, len(rows) - 1))]] = True
    return held_out


def _domainbed(dataset: Dataset, share: float, trial_seed: int) -> Tensor:
    held_out = torch.zeros(len(dataset.label), dtype=torch.bool)
    for domain in range(len(dataset.domains)):
        rows = (dataset.domain == domain).nonzero().squeeze(1)
        order = np.arange(len(rows))
        np.random.RandomState(seed_hash(trial_seed, domain)).shuffle(order)
        held_out[rows[order[: int(share * len(rows))]]] = True
    return held_out


def _official(dataset: Dataset) -> Parts:
    """A target is evaluated on its test images, or on all where there is no such part."""
    if dataset.parts is None:
        reason = dataset.parts_problem or f"{dataset.name} comes without lists or folders for it"
        raise MedicError(f"validation 'official': {reason}; use cell")
    train, validation, test = (torch.tensor([part == p for part in dataset.parts]) for p in ("train", "val", "test"))
    if not validation.any():  # DomainNet has lists for training and testing only
        validation = test
    return Parts(train, validation, test if test.any() else torch.ones_like(test))


def seed_hash(*values: object) -> int:
    """DomainBed's seed for a tuple of values: 31 bits of their MD5."""
    return int(hashlib.md5(str(values).encode(), usedforsecurity=False).hexdigest(), 16) % 2**31
