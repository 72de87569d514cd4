"""The callback that tries tasks on the model: what it computes, what it leaves alone, and when it is asked."""

import copy

import pytest
import torch

import medic
from medic.errors import MedicError
from medic.tasks import Step
from medic.training.callbacks import informative as module
from medic.training.callbacks.informative import InformativeTasks
from medic.utils import distributed
from tests.built import built
from tests.messages import naming
from tests.runs.parts import in_parts


def made(mini, **settings):
    settings = {"method": "reptile", "sampling": "informative", "batch_size": 4, **settings}
    trainer = built(dataset=mini, **settings)
    trainer.model.train()
    return trainer


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Asks about few images, which is faster."""
    monkeypatch.setattr(module, "IMAGES_PER_DOMAIN", 4)


OFTEN = {"every": 2}
"""Asked before every other iteration."""


def tensors(trainer):
    return [*trainer.model.state_dict().values(), *trainer.objective.state_dict().values()]


@pytest.mark.parametrize("settings", [
    {"backbone": "test_resnet", "domain_splits": 1, "penalty": "miro"},
    {"penalty": "vrex"},
    {"penalty": "coral"},
    {"method": "medic"},
    {"method": "rsc", "domain_splits": 2, "class_splits": 2},
    {"tune": "head"},
])  # fmt: skip
def test_it_leaves_everything_but_the_tasks_alone(mini, settings):
    trainer = made(mini, **settings)
    trainer.step()
    trainer.wait()
    before, gradients = [t.clone() for t in tensors(trainer)], [p.grad.clone() for p in trainer.model.parameters()]
    trainer.grid.chosen = None
    InformativeTasks().on_iteration(trainer)
    assert len(trainer.grid.chosen) == sum(trainer.grid.spec.round)
    assert all(torch.equal(one, other) for one, other in zip(tensors(trainer), before, strict=True))
    assert all(torch.equal(p.grad, g) for p, g in zip(trainer.model.parameters(), gradients, strict=True))
    assert trainer.model.training


@pytest.mark.parametrize(("settings", "rate"), [
    ({"inner_lr": 0.3}, 0.3),
    ({"method": "erm", "domain_splits": 3, "class_splits": 3}, 0.01),
])  # fmt: skip
def test_a_candidate_is_known_by_one_plain_step(mini, settings, rate):
    """θ - α H'(θ) by hand, with batch norm in evaluation mode."""
    trainer = made(mini, backbone="test_resnet", **settings)
    model = trainer.model.eval()
    chosen, held = torch.arange(0, 12), torch.arange(40, 60)
    inputs = [module._inputs(trainer, held)]
    probabilities = module._after_a_step(trainer, chosen, inputs)
    by_hand = copy.deepcopy(model)
    step = Step(module._inputs(trainer, chosen), trainer.samples.label[chosen], (12,))
    gradients = torch.autograd.grad(trainer.objective(by_hand, step).total, list(by_hand.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
            parameter -= rate * gradient
        expected = by_hand(inputs[0]).logits.double().softmax(1)
        torch.testing.assert_close(probabilities, expected)
        assert not torch.allclose(probabilities, model(inputs[0]).logits.double().softmax(1), atol=1e-5)


def test_images_are_as_in_evaluation(mini):
    trainer = made(mini, augment="digits")
    positions = torch.arange(5)
    pixels = trainer.images.gather(trainer.samples.indices[positions], torch.device("cpu")).float() / 255
    assert torch.equal(module._inputs(trainer, positions), (pixels - 0.5) / 0.5)


@pytest.mark.parametrize(("most", "shown_of_each"), [(5, 5), (64, 48)])
def test_it_asks_about_images_of_every_source(mini, monkeypatch, most, shown_of_each):
    """As many of each as there are, if they are fewer."""
    trainer, batches = made(mini), []
    monkeypatch.setattr(module, "IMAGES_PER_DOMAIN", most)

    def inputs(trainer, chosen, original=module._inputs):
        batches.append(chosen)
        return original(trainer, chosen)

    monkeypatch.setattr(module, "_inputs", inputs)
    InformativeTasks().on_iteration(trainer)
    probes, tried = batches[:3], batches[3:]
    domains = [trainer.samples.domain[batch] for batch in probes]
    assert [batch.unique().tolist() for batch in domains] == [[0], [1], [2]]
    assert [len(batch.unique()) for batch in probes] == [shown_of_each] * 3
    assert 9 <= len(tried) <= 18
    for batch in tried:
        assert len(batch) == 4
        assert len(trainer.samples.domain[batch].unique()) == 1


def test_what_is_accepted_differs(mini):
    """With a delta that nothing reaches, the first that was visited is accepted, and the next are filled up with."""
    strict, lenient, visited = (made(mini, backbone="convnet") for _ in range(3))
    InformativeTasks(delta=100.0).on_iteration(strict)
    InformativeTasks(delta=0.0).on_iteration(lenient)
    candidates = visited.grid.candidates(visited.cells, splits=2)
    order = torch.randperm(len(candidates), generator=visited.grid.generator).tolist()
    assert len(strict.grid.chosen) == len(lenient.grid.chosen) == 9
    # Every step on a task makes an untrained model surer of something, so that all are relevant.
    assert strict.grid.chosen == lenient.grid.chosen == [candidates[position] for position in order[:9]]


def test_tasks_stay_until_the_next_turn(mini):
    trainer, met = made(mini, hparams=OFTEN), []
    for _ in range(4):
        trainer.step()
        met.append(trainer.grid.chosen)
    assert met[0] == met[1] != met[2] == met[3]
    assert made(mini).grid.chosen is None


def test_statistics_of_one_iteration_ask_once(mini, monkeypatch, tmp_path):
    """Averaged weights are followed by many draws at the last iteration, where no gradient is recorded."""
    calls, original = [], module.choose

    def counted(*arguments):
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(module, "choose", counted)
    settings = {
        "dataset": mini,
        "target": "street",
        "method": "reptile",
        "averaging": "swad",
        "backbone": "test_resnet",
    }
    settings |= {"domain_splits": 1, "class_splits": 2, "batch_size": 2, "output": tmp_path, "quiet": True}
    medic.train(**settings, sampling="informative", iterations=4, evaluate_every=4, hparams=OFTEN)
    assert len(calls) == 3  # before iterations 0 and 2, and after the last


@pytest.mark.parametrize("method", ["reptile", "medic"])
def test_interrupted_it_is_the_same(mini, monkeypatch, tmp_path, method):
    settings = {
        "dataset": mini, "target": "street", "method": method, "sampling": "informative", "batch_size": 2,
        "iterations": 4, "evaluate_every": 4, "device": "cpu", "quiet": True, "hparams": OFTEN,
    }  # fmt: skip
    whole = medic.train(**settings, output=tmp_path / "whole")
    parts = in_parts(settings, tmp_path / "parts", monkeypatch, (1, 2, 3))
    for name in ("model.safetensors", "predictions.npz"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_several_processes_are_refused(mini, monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(MedicError, match=naming("'informative' distributed process")):
        made(mini)
