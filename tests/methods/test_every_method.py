"""Every system of the table learns."""

import pytest

from medic.methods import METHODS
from medic.tasks.samplers import SAMPLERS
from tests.built import built
from tests.iterations import record_draws

pytestmark = pytest.mark.usefixtures("small_adversaries")

RATES = {"fish-domainbed": {"lr": 1.0}, "mvdg": {"lr": 1.0}, "onering": {"lr": 0.003}, "crossmatch": {"lr": 0.01}}
"""Rates for systems whose gradient has another scale: all are to learn within a few iterations."""


def losses(mini, iterations, same=False, **settings):
    """The losses of some iterations, on the same images if asked for."""
    trainer = built(dataset=mini, augment="none", schedule="constant", **settings)
    trainer.model.train()
    if same:
        record_draws(trainer, repeat=True)
    history = [loss for _ in range(iterations) for loss in trainer.step()]
    return history + trainer.wait()


@pytest.mark.parametrize("name", METHODS)
def test_its_loss_falls_on_images_it_can_fit(mini, name):
    settings = {"lr": 0.03, **RATES.get(name, {}), "batch_size": 2 if METHODS[name].grid.tasks > 4 else 4}
    # MAML descends the last step alone: the same one would teach it the classes of that step and nothing else.
    same = name != "maml"
    history = losses(mini, 12 if same else 40, same, method=name, **settings)
    assert sum(history[-3:]) < sum(history[:3]), history


@pytest.mark.parametrize("sampling", SAMPLERS)
@pytest.mark.parametrize("method", ["medic", "medic++"])
def test_every_sampler_goes_with_every_grid(mini, method, sampling):
    assert len(losses(mini, 3, method=method, sampling=sampling, batch_size=2)) == 3


@pytest.mark.parametrize("method", ["medic", "coral", "groupdro", "hgp"])
def test_the_ring_goes_with_passes_by_task_and_second_derivatives(mini, method):
    assert len(losses(mini, 2, method=method, objective="onering", batch_size=2)) == 2


def test_every_iteration_of_the_ring_begins_with_rows_of_length_one(mini):
    trainer = built(dataset=mini, method="onering", lr=1e-9, batch_size=2)
    trainer.step()
    trainer.wait()
    assert trainer.model.head.ring_head.weight.norm(dim=1).tolist() == pytest.approx([1.0] * 7)
