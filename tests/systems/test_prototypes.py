"""Wrong labels are found by hyperbolic prototypes."""

import pytest
import torch
from torch import nn

from medic.data import Augmentation, Resident, Samples
from medic.errors import MedicError
from medic.models import Backbone, Classifier, Preprocessing
from medic.objectives import Ova, Setup, ce
from medic.strategies import TwoStep
from medic.systems.hyprometa import (
    HyProMeta,
    Prototypes,
    distance,
    embed,
    exp0,
    find_nearest,
    find_prototypes,
    keep_cells,
    mean,
)
from medic.tasks import Grid
from medic.training import Trainer
from tests.iterations import trained_on
from tests.messages import naming

SIDE, EACH = 4, 8
FLIPPED = [3, 12, 17, 30]
"""Rows whose label is made wrong: one of every cell."""


def make_trainer(callback, batch_size=4, seed=0):
    """Two domains, grey and bright, with red and green images: classes 0 and 1. The features are the pixels."""
    draws = torch.Generator().manual_seed(seed)
    domain = torch.arange(4 * EACH) // (2 * EACH)
    true = torch.arange(4 * EACH) // EACH % 2
    pixels = torch.randint(0, 40, (4 * EACH, 3, SIDE, SIDE), generator=draws)
    pixels[torch.arange(len(true)), true] += 100 + 50 * domain[:, None, None]
    label = true.clone()
    label[FLIPPED] = 1 - label[FLIPPED]
    torch.manual_seed(seed)
    preprocessing = Preprocessing((0.0,) * 3, (1.0,) * 3, SIDE)
    model = Classifier(Backbone(nn.Flatten(), 3 * SIDE**2, preprocessing), 2, "prompted")
    objective = HyProMeta([ce, Ova(0.5)], passes="task")
    objective.prepare(model, Setup(shape=(3, SIDE, SIDE)))
    made = Trainer(
        model=model,
        images=Resident(pixels.to(torch.uint8)),
        samples=Samples(torch.arange(len(label)), label, domain),
        grid=Grid(2, 2, axes={"clean": 1}, pairing="diagonal"),
        strategy=TwoStep(second_order=True),
        objective=objective,
        optimizer=torch.optim.SGD([*model.parameters(), *objective.parameters()], lr=0.01),
        schedule=lambda iteration: 1.0,
        augmentation=Augmentation(),
        preprocessing=preprocessing,
        batch_size=batch_size,
        generator=draws,
        callbacks=[callback],
    )
    return made, true


def wrong(samples):
    """The rows that are taken to be noisy."""
    return (samples.attributes["clean"] == 0).nonzero().squeeze(1).tolist()


def test_it_finds_what_was_flipped_and_nothing_else():
    trainer, true = make_trainer(Prototypes(trust=2))
    original = trainer.samples.label.clone()
    assert trainer.callbacks[0].every == 32 // (4 * 4)
    for _ in range(4):  # two epochs of two iterations
        assert wrong(trainer.samples) == []
        trainer.step()
    assert torch.equal(trainer.samples.label, original)
    assert trainer.callbacks[0].metrics() == {"noisy": 0}
    trainer.step()
    assert wrong(trainer.samples) == FLIPPED
    assert trainer.callbacks[0].metrics() == {"noisy": len(FLIPPED) / 32}
    assert torch.equal(trainer.samples.label, true)
    assert torch.equal(trainer.callbacks[0].original_label, original)
    assert {cell[1] for cell in trainer.cells.keys} == {0, 1}


def test_clean_and_noisy_samples_have_equal_parts_in_every_task():
    trainer, _ = make_trainer(Prototypes(trust=0))
    steps = trained_on(trainer)
    assert [step.index for step in steps] == [0, 1]
    assert [len(step.sizes) for step in steps] == [2, 2]
    for step in steps:
        for task in step.tasks():
            assert task.attributes["clean"].tolist().count(1) == 2
            assert len(task.y.unique()) == len(task.domain.unique()) == 1


def test_labels_can_become_right_again():
    """What was noisy is compared with the label it came with, not with the last one."""
    trainer, _ = make_trainer(Prototypes(trust=0))
    trainer.step()
    callback = trainer.callbacks[0]
    assert wrong(trainer.samples) == FLIPPED
    trainer.model.backbone = nn.Sequential(nn.Flatten(), Named(trainer.images, callback.original_label))
    trainer.iteration = callback.every
    trainer.step()
    assert wrong(trainer.samples) == []
    assert torch.equal(trainer.samples.label, callback.original_label)


class Named(nn.Module):
    """Features that say which label an image was given."""

    def __init__(self, images, original):
        super().__init__()
        self.rows = nn.Parameter(images.pixels.float().flatten(1) / 255, requires_grad=False)
        self.original = original

    def forward(self, x):
        row = torch.cdist(x, self.rows).argmin(1)
        return nn.functional.one_hot(self.original[row], x.shape[1]).float()


def test_it_goes_on_where_it_was():
    whole, _ = make_trainer(Prototypes(trust=1), batch_size=8)
    parts, _ = make_trainer(Prototypes(trust=1), batch_size=8)
    assert whole.callbacks[0].every == 1
    for _ in range(5):
        assert whole.step() == parts.step()
        state = parts.state_dict()
        parts, _ = make_trainer(Prototypes(trust=1), batch_size=8)
        parts.load_state_dict(state)
        assert wrong(parts.samples) == wrong(whole.samples)
        assert parts.cells.keys == whole.cells.keys
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert wrong(parts.samples) == FLIPPED
    assert torch.equal(parts.callbacks[0].prototypes, whole.callbacks[0].prototypes)


def test_it_looks_once_an_iteration(monkeypatch):
    """Batch-norm statistics of averaged weights are estimated from many draws at the same iteration."""
    trainer, _ = make_trainer(Prototypes(trust=0))
    looks = []
    infer = trainer.callbacks[0]._infer
    monkeypatch.setattr(trainer.callbacks[0], "_infer", lambda indices: looks.append(1) or infer(indices))
    for _ in range(3):
        trainer.iteration = 0
        trainer.step()
    assert looks == [1]


class PerTask(nn.Module):
    """Batch norm before anything else."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=False)

    def forward(self, x):
        return self.norm(x).flatten(1)


def test_statistics_are_estimated_as_tasks_are_passed():
    """By itself a task is of one domain and one class here, which differ by more than they vary within."""
    spread = {}
    for forward in ("task", "step"):
        trainer, _ = make_trainer(Prototypes(trust=1000), batch_size=8)
        model = Classifier(Backbone(PerTask(), 3 * SIDE**2, trainer.preprocessing), 2, "prompted")
        trainer.model, trainer.objective.passes = model, forward
        trainer.refresh_statistics(40)
        spread[forward] = model.backbone.norm.running_var
    pixels = trainer.preprocessing(trainer.images.gather(trainer.samples.indices, torch.device("cpu")).float() / 255)
    cells = 2 * trainer.samples.domain + trainer.samples.label
    within = torch.stack([pixels[cells == cell].var((0, 2, 3)) for cell in cells.unique()]).mean(0)
    torch.testing.assert_close(spread["task"], within, rtol=0.25, atol=0)
    assert (spread["step"][:2] > 2 * within[:2]).all()


def test_it_reads_no_labels_but_those_of_training(mini):
    from medic.runs.build import build_trainer
    from tests.built import loaded

    plan, dataset, problem = loaded(dataset=mini, method="hyprometa", label_noise=0.3, hparams={"trust": 0})
    before = problem.train.label.clone()
    made = build_trainer(plan, dataset, problem)
    made.step()
    assert wrong(made.samples)
    assert torch.equal(made.callbacks[0].original_label, before)
    assert torch.equal(problem.train.label, before)
    assert "clean" not in problem.train.attributes


def test_features_longer_than_1_are_shortened():
    points = embed(torch.tensor([[30.0, 40.0], [0.3, 0.4]], dtype=torch.float64))
    assert torch.allclose(points, exp0(torch.tensor([[0.6, 0.8], [0.3, 0.4]], dtype=torch.float64)))


def test_prototypes_are_means_of_domain_means():
    """A domain with many samples counts no more than one with few."""
    points = exp0(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    label, domain = torch.tensor([0, 0, 0, 0, 2]), torch.tensor([0, 0, 0, 1, 1])
    prototypes = find_prototypes(points, label, domain, 3)
    assert torch.allclose(prototypes[0], mean(torch.stack([mean(points[:3]), points[3]])))
    assert torch.allclose(prototypes[2], points[4])
    assert prototypes[1].isnan().all()
    assert 1 not in find_nearest(points, prototypes)
    assert torch.equal(find_nearest(points, prototypes)[4:], torch.tensor([2]))


def test_the_nearest_prototype_in_parts(monkeypatch):
    from medic.systems import hyprometa

    draws = torch.Generator().manual_seed(0)
    points, others = (exp0(torch.randn(n, 3, dtype=torch.float64, generator=draws)) for n in (10, 4))
    expected = distance(points, others).argmin(1)
    monkeypatch.setattr(hyprometa, "AT_ONCE", 3)
    assert torch.equal(find_nearest(points, others), expected)


def test_a_class_without_clean_samples_keeps_its_prototype():
    trainer, _ = make_trainer(Prototypes(trust=0))
    trainer.step()
    callback = trainer.callbacks[0]
    old = callback.prototypes.clone()
    callback.clean = (callback.original_label == 1).long()
    with torch.no_grad():
        trainer.images.pixels.copy_(trainer.images.pixels.flip(3))
    trainer.iteration = callback.every
    trainer.step()
    assert torch.equal(callback.prototypes[0], old[0])
    assert not torch.equal(callback.prototypes[1], old[1])


def test_no_domain_loses_a_class():
    """Domain 0 would be left with class 2; giving class 1 back takes from class 0, which is then given back too."""
    domain = torch.tensor([0, 0, 0, 1])
    original = torch.tensor([0, 1, 2, 1])
    assert keep_cells(torch.tensor([2, 2, 2, 1]), original, domain, 3).tolist() == [0, 1, 2, 1]
    assert keep_cells(torch.tensor([2, 0, 2, 1]), original, domain, 3).tolist() == [0, 1, 2, 1]
    swapped = torch.tensor([1, 0, 2, 1])
    assert keep_cells(swapped, original, domain, 3).tolist() == swapped.tolist()


def test_trust_is_a_number_of_epochs():
    with pytest.raises(MedicError, match=naming("trust -1")):
        Prototypes(trust=-1)
