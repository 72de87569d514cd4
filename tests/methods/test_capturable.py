"""Whether an iteration can be a CUDA graph, tried without a GPU: it asks for no value and brings none from the host."""

import dataclasses
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from medic.methods import METHODS, OBJECTIVES, PENALTIES
from medic.objectives import Coral
from medic.runs.build import make_trainer
from medic.runs.config import RunConfig
from medic.runs.resolve import resolve
from medic.tasks.samplers import SAMPLERS
from medic.training.iteration import Iteration

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
    plan = resolve(RunConfig(dataset=mini, target="street", device="cpu", batch_size=2, **size, **settings))
    dataset = plan.data.load(lambda line: None)
    trainer = make_trainer(plan, dataset, plan.data.split(dataset))
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


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.capturable])
def test_an_iteration_asks_for_nothing(mini, name):
    assert len(iterate(mini, method=name)) == 1


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


def test_one_part_that_cannot_be_is_enough(monkeypatch):
    assert METHODS["coral"].capturable
    monkeypatch.setattr(Coral, "capturable", False)
    assert not METHODS["coral"].capturable
    assert METHODS["vrex"].capturable
    kind = type("Host", (OBJECTIVES["ce"].kind,), {"capturable": False})
    monkeypatch.setitem(OBJECTIVES, "ce", OBJECTIVES["ce"]._replace(kind=kind))
    assert not METHODS["vrex"].capturable
    assert METHODS["medic++"].capturable
    assert not dataclasses.replace(METHODS["medic++"], penalty="coral").capturable
