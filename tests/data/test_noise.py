"""Labels made wrong on purpose."""

import torch

from medic.data import Samples
from medic.data.problem import mislabelled
from tests.built import loaded


def noisy(share, classes, count=60_000, seed=0):
    position = torch.arange(count)
    label = torch.tensor(classes[0])[position % len(classes[0])]
    samples = Samples(position, label, torch.zeros(count, dtype=torch.int64))
    return label, mislabelled(samples, share, classes, torch.Generator().manual_seed(seed)).label


def test_a_share_is_wrong_and_evenly_so():
    label, noisy_label = noisy(0.3, {0: [0, 1, 2, 3]})
    wrong = label != noisy_label
    assert 0.28 < wrong.double().mean() < 0.32
    for own in range(4):
        others = noisy_label[wrong & (label == own)].bincount(minlength=4)
        assert others[own] == 0
        assert others.sort().values[1] > 0
        assert others.max() < 1.3 * others[others > 0].min()


def test_wrong_classes_are_those_of_the_domain():
    label, noisy_label = noisy(0.5, {0: [1, 4, 5]})
    assert set(noisy_label.tolist()) == {1, 4, 5}
    assert (label != noisy_label).any()


def test_one_class_cannot_be_wrong():
    label, noisy_label = noisy(0.9, {0: [2]})
    assert torch.equal(label, noisy_label)


def test_sources_are_noisy_and_the_target_is_not(mini):
    plain, wrong, again = (loaded(dataset=mini, label_noise=noise, seed=3)[2] for noise in (None, 0.4, 0.4))
    for part in ("train", "validation"):
        share = (getattr(plain, part).label != getattr(wrong, part).label).double().mean()
        assert 0.2 < share < 0.6
        assert torch.equal(getattr(wrong, part).label, getattr(again, part).label)
    assert torch.equal(plain.target.label, wrong.target.label)
    assert torch.equal(plain.source_unknown.label, wrong.source_unknown.label)
