"""Hard domain scheduling: the domain with the least weight is held apart, and a checkpoint knows it."""

import copy

import pytest
import torch
from torch import nn

from medic.data import Resident
from medic.errors import MedicError
from medic.runs.build import build_trainer
from medic.systems.ebil_hads import HardDomain
from tests.built import built, loaded
from tests.iterations import record_draws
from tests.messages import naming


def make(mini, **settings):
    trainer = built(dataset=mini, method="ebil-hads", batch_size=2, **settings)
    trainer.model.train()
    return trainer


class Brightness(nn.Module):
    def forward(self, x):
        return x.mean((1, 2, 3))[:, None]


def rig(trainer, weights):
    """Paint every domain in its own grey, and have the follower tell greys apart."""
    trainer.images = Resident(trainer.images.pixels.clone())
    for domain, value in weights.items():
        rows = trainer.samples.indices[trainer.samples.domain == domain]
        trainer.images.pixels[rows] = value
    follower = trainer.objective.follower
    follower.backbone, follower.linear = Brightness(), nn.Linear(1, 1)
    nn.init.ones_(follower.linear.weight)
    nn.init.zeros_(follower.linear.bias)


def test_the_least_trusted_domain_is_held(mini):
    trainer = make(mini, hparams="lam=10")
    rig(trainer, {0: 200, 1: 60, 2: 130})
    (callback,) = trainer.callbacks
    assert isinstance(callback, HardDomain)
    held = []
    for _ in range(4):
        callback.on_iteration(trainer)
        held.append(trainer.grid.held_out)
    # With a large factor of how often they were chosen, each has its turn.
    assert held[0] == 1
    assert set(held[:3]) == {0, 1, 2}
    assert dict(callback.chosen) == {domain: held.count(domain) for domain in range(3)}
    assert callback.metrics() == {f"held/{domain}": held.count(domain) / len(held) for domain in range(3)}


def test_every_so_many_iterations(mini):
    trainer = make(mini, hparams="every=2,batches=1")
    (callback,) = trainer.callbacks
    turns, held = [], []
    turn = callback.on_iteration

    def counted(current):
        turns.append(current.iteration)
        turn(current)

    callback.on_iteration = counted
    drawn = record_draws(trainer)
    for _ in range(3):
        trainer.step()
        held.append(trainer.grid.held_out)
        for step in drawn[-1]:
            others, apart = ({cell[0] for cell in task.cells} for task in step)
            assert apart == {trainer.grid.held_out}
            assert others == {0, 1, 2} - apart
    assert turns == [0, 2]
    assert sum(callback.chosen.values()) == 2
    assert held[0] == held[1]


def test_a_checkpoint_goes_on_with_the_same_domains(mini):
    settings = {"hparams": "every=2,batches=1,lam=50,follower_lr=0.01", "augment": "none"}
    whole, fresh = make(mini, **settings), make(mini, **settings)
    for _ in range(3):
        whole.step()
    state = whole.state_dict()
    runs = []
    for trainer in (whole, fresh):
        trainer.load_state_dict(copy.deepcopy(state))  # torch's own generators among it
        runs.append([loss for _ in range(2) for loss in trainer.step()] + trainer.wait())
    assert runs[0] == runs[1]
    assert whole.grid.held_out == fresh.grid.held_out
    assert whole.callbacks[0].chosen == fresh.callbacks[0].chosen
    assert sum(fresh.callbacks[0].chosen.values()) == 3
    for part in ("model", "objective"):
        one, other = (getattr(trainer, part).state_dict() for trainer in (whole, fresh))
        for name, value in one.items():
            assert torch.equal(value, other[name]), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "ce+ova"}, "'ebil' --objective"),
        ({"domain_splits": 1}, "2 domain splits"),
        ({"sources": ["printed"]}, "2 source domains"),
        ({"hparams": "every=0"}, "every 0"),
        ({"hparams": "lam=-1"}, "lam -1"),
        ({"tune": "head"}, "'ebil' backbone"),
        ({"backbone": "mnist-cnn"}, "MnistCnn stages"),
    ],
)
def test_what_is_refused(mini, settings, message):
    with pytest.raises(MedicError, match=naming(message)):
        make(mini, **settings)


def test_more_splits_hold_a_domain_too(mini):
    trainer = make(mini, domain_splits=3, class_splits=3)
    drawn = record_draws(trainer)
    trainer.step()
    for step in drawn[0]:
        assert {cell[0] for cell in step[-1].cells} == {trainer.grid.held_out}
        assert {cell[0] for task in step for cell in task.cells} == {0, 1, 2}


def test_the_objective_goes_with_another_method(mini):
    plan, dataset, problem = loaded(dataset=mini, method="reptile", objective="ebil", batch_size=2)
    assert (plan.config.settings["head"], plan.config.settings["score"]) == ("branches", "bcls")
    trainer = build_trainer(plan, dataset, problem)
    assert trainer.step() + trainer.wait()
    assert trainer.grid.held_out is None
