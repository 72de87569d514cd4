"""Who may see what."""

import pytest
import torch

from medic.data import Dataset, Resident, make_problem
from medic.errors import MedicError


@pytest.fixture
def dataset() -> Dataset:
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(4)).repeat_interleave(10, 0)
    count = len(cells)
    return Dataset(
        "toy",
        ("a", "b", "c"),
        ("w", "x", "y", "z"),
        Resident(torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)),
        cells[:, 0],
        cells[:, 1],
        tuple(map(str, range(count))),
        "hash",
    )


def problem(dataset, target="c", known=("w", "x", "y"), seed=0, **settings):
    return make_problem(dataset, target, known, torch.Generator().manual_seed(seed), **settings)


def test_leave_one_out(dataset):
    made = problem(dataset)
    assert made.sources == (0, 1)
    train, validation, target = (set(s.indices.tolist()) for s in (made.train, made.validation, made.target))
    assert not train & validation
    assert len(train) == 2 * 3 * 8
    assert len(validation) == 2 * 3 * 2
    assert target == set((dataset.domain == 2).nonzero().squeeze(1).tolist())
    assert not target & (train | validation)


def test_sources_hold_known_classes_only(dataset):
    made = problem(dataset, known=("w", "z"))
    assert made.known == ("w", "z")
    for samples in (made.train, made.validation):
        assert set(samples.label.tolist()) == {0, 1}
        assert set(dataset.label[samples.indices].tolist()) == {0, 3}
    assert set(made.target.label.tolist()) == {-1, 0, 1}
    assert ((made.target.label == -1) == torch.isin(dataset.label[made.target.indices], torch.tensor([1, 2]))).all()


def test_every_cell_gives_its_share(dataset):
    made = problem(dataset, holdout=0.3)
    cells = torch.stack([made.validation.domain, made.validation.label]).unique(dim=1, return_counts=True)[1]
    assert cells.tolist() == [3] * 6
    assert made.held_out.sum() == 3 * 4


def test_splits_follow_the_seed(dataset):
    assert torch.equal(problem(dataset).train.indices, problem(dataset).train.indices)
    assert not torch.equal(problem(dataset).train.indices, problem(dataset, seed=1).train.indices)


@pytest.mark.parametrize(("settings", "message"), [
    ({"target": "d"}, "unknown domain 'd', choose from a, b, c"),
    ({"sources": ["a", "c"]}, "the target 'c' is among the sources a, c"),
    ({"sources": []}, "no source domain"),
    ({"sources": ["a", "bb"]}, "unknown domain 'bb'"),
    ({"known": ["w", "q"]}, "unknown class 'q'"),
    ({"known": ["w"]}, "1 known classes"),
    ({"holdout": 0.01}, "no validation images"),
])  # fmt: skip
def test_mistakes(dataset, settings, message):
    with pytest.raises(MedicError, match=message):
        problem(dataset, **settings)


def test_a_known_class_that_no_source_has(dataset):
    import dataclasses

    without = dataclasses.replace(
        dataset, label=torch.where(dataset.domain < 2, dataset.label.clamp(max=2), dataset.label)
    )
    with pytest.raises(MedicError, match="no source domain has an image of the known class 'z'"):
        problem(without, known=("w", "z"))
