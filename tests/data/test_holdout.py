"""Which images the rules hold out."""

import dataclasses
import hashlib

import numpy as np
import torch

from medic.data import make_parts


def test_domainbed_shuffles_every_domain_by_its_own_seed(mini_dataset):
    """The seed of a domain is 31 bits of the MD5 of (trial seed, number of the domain)."""
    held_out = make_parts(mini_dataset, "domainbed", 0.2, 3).validation
    by_domain = []
    for domain in range(len(mini_dataset.domains)):
        rows = (mini_dataset.domain == domain).nonzero().squeeze(1)
        order = np.arange(len(rows))
        seed = int(hashlib.md5(str((3, domain)).encode()).hexdigest(), 16) % 2**31
        np.random.RandomState(seed).shuffle(order)
        by_domain.append(held_out[rows].nonzero().squeeze(1).tolist())
        assert by_domain[-1] == sorted(order[: len(rows) // 5].tolist())
    assert len({tuple(rows) for rows in by_domain}) == len(mini_dataset.domains)


def test_a_cell_of_one_image_is_trained_on(mini_dataset):
    alone = dataclasses.replace(
        mini_dataset,
        domain=torch.tensor([0, 0, 0, 0, 1]),
        label=torch.tensor([0, 0, 0, 1, 0]),
        paths=mini_dataset.paths[:5],
    )
    parts = make_parts(alone, "cell", 0.99, 0)
    assert parts.validation.tolist().count(True) == 2  # of the three images of one cell
    assert parts.train[3:].all()


def test_every_cell_is_shuffled_by_its_own_seed(mini_dataset):
    """The seed of a cell is 31 bits of the MD5 of (seed, domain, class), so that domains have different draws."""
    held_out = make_parts(mini_dataset, "cell", 0.3, 5).validation
    by_domain = []
    for place, domain in enumerate(mini_dataset.domains):
        rows = ((mini_dataset.domain == place) & (mini_dataset.label == 0)).nonzero().squeeze(1)
        name = str((5, domain, mini_dataset.classes[0])).encode()
        generator = torch.Generator().manual_seed(int(hashlib.md5(name).hexdigest(), 16) % 2**31)
        expected = torch.randperm(len(rows), generator=generator)[: round(0.3 * len(rows))]
        by_domain.append(held_out[rows].nonzero().squeeze(1).tolist())
        assert by_domain[-1] == sorted(expected.tolist())
    assert len({tuple(rows) for rows in by_domain}) > 1
