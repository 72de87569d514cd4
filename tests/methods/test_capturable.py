"""Whether an iteration can be a CUDA graph, tried without a GPU: it asks for no value and brings none from the host."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from medic.methods import METHODS
from medic.objectives import PENALTIES
from medic.objectives.penalties.coral import Coral
from medic.tasks.samplers import SAMPLERS
from medic.training.iteration import Iteration
from tests.built import built

HOST = {
    "aten::_local_scalar_dense": "asks for a value",
    "aten::equal": "asks for a value",
    "aten::nonzero": "has a shape that depends on values",
    "aten::masked_select": "has a shape that depends on values",
    "aten::_unique2": "has a shape that depends on values",
    "aten::lift_fresh": "makes a tensor of values of the host",
}


class Watched(TorchDispatchMode):
    """Refuses operations that a CUDA graph could not hold, but for those of optimizers, which on a GPU are others."""

    def __init__(self):
        super().__init__()
        self.on = True

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name
        by_mask = name == "aten::index" and any(i is not None and i.dtype == torch.bool for i in arguments[1])
        if self.on and (name in HOST or by_mask):
            raise AssertionError(f"{name} {HOST.get(name, 'has a shape that depends on values')}")
        return function(*arguments, **(options or {}))

    @contextmanager
    def outside_optimizers(self):
        hooks = [
            register_optimizer_step_pre_hook(lambda *_: setattr(self, "on", False)),
            register_optimizer_step_post_hook(lambda *_: setattr(self, "on", True)),
        ]
        with self:
            yield
        for hook in hooks:
            hook.remove()


def iterate(mini, **settings):
    """Run one iteration, as it would be captured, and return its losses."""
    size = {"image_size": 64} if METHODS[settings.get("method", "medic++")].backbone == "gfnet_h_ti" else {}
    trainer = built(dataset=mini, batch_size=2, **size, **settings)
    trainer.model.train()
    run = Iteration.__call__

    def watched(self, batch):
        with Watched().outside_optimizers():
            return run(self, batch)

    with patch.object(Iteration, "__call__", watched):
        return trainer.step() + trainer.wait()


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """On a CPU `one_hot` looks at the classes before it trusts them."""
    monkeypatch.setattr(functional, "one_hot", lambda y, classes: (y[:, None] == torch.arange(classes)).long())


@pytest.mark.parametrize("name", METHODS)
def test_an_iteration_asks_for_nothing(mini, name):
    assert len(iterate(mini, method=name)) == 1


@pytest.mark.parametrize("protocol", ["paper", "authors"])
def test_a_protocol(mini, protocol):
    assert len(iterate(mini, protocol=protocol)) == 1


@pytest.mark.parametrize("penalty", [name for name in PENALTIES if name not in ("groupdro", "fishr")])
def test_every_penalty_goes_with_a_chain(mini, penalty):
    assert len(iterate(mini, method="reptile", penalty=penalty)) == 1


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_samplers_ask_outside_of_it(mini, sampling):
    assert len(iterate(mini, method="medic++", sampling=sampling)) == 1


@pytest.mark.parametrize("asks", [
    lambda tasks: float(tasks[0]),
    lambda tasks: bool(tasks.sum() > 0),
    lambda tasks: tasks[[0]],
    lambda tasks: tasks[tasks > 0],
    lambda tasks: tasks * torch.tensor([1.0] * len(tasks)),
])  # fmt: skip
def test_what_asks_is_found(mini, asks, monkeypatch):
    class Asking(Coral):
        def forward(self, tasks, output, step):
            asks(tasks)
            return super().forward(tasks, output, step)

    monkeypatch.setitem(PENALTIES, "coral", Asking)
    with pytest.raises(AssertionError, match="aten::"):
        iterate(mini, method="coral")
