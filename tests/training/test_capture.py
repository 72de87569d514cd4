"""The fast path on a GPU: the same numbers as the eager one."""

import logging
import re
from logging.handlers import BufferingHandler

import pytest
import torch

from medic.evaluation.evaluator import Evaluator, measure
from medic.methods import METHODS as TABLE
from medic.openset import get_score
from medic.runs.build import build_trainer
from tests.built import built, loaded
from tests.messages import naming

pytestmark = pytest.mark.gpu


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(mini, iterations=20, **settings):
    """Return the trainer after some iterations, its losses, and what was logged meanwhile."""
    logger, kept = logging.getLogger("medic.training.capture"), BufferingHandler(100)
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    try:
        trainer = built(dataset=mini, batch_size=4, iterations=iterations, device="cuda", **settings)
        trainer.model.train()
        losses = [loss for _ in range(iterations) for loss in trainer.step()] + trainer.wait()
    finally:
        logger.removeHandler(kept)
    return trainer, losses, [record.getMessage() for record in kept.buffer]


METHODS = [
    "erm",
    "maml",
    "reptile",
    "mldg",
    "mldg-domainbed",
    "fish",
    "fish-domainbed",
    "medic",
    "medic-fo",
    "medic++",
    "arith",
    "ebil-hads",
    "crossmatch",
    "cirl",
    "daml",
    "arpl-cs",
]


@pytest.mark.parametrize("method", METHODS)
def test_captured_is_eager_to_the_bit(mini, deterministic, method):
    settings = {"method": method, "precision": "fp32", "backbone": "resnet10t", "schedule": "cosine", "clip_norm": 5.0}
    (a, losses, said), (b, eager_losses, _) = (trained(mini, capture=mode, **settings) for mode in ("on", "off"))
    assert losses == eager_losses
    assert not said
    assert a._run._graphs
    assert not b._run._graphs
    for (name, one), other in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("method", TABLE)
def test_every_method_is_captured(mini, method):
    trainer, losses, said = trained(mini, iterations=6, method=method, capture="on", lr=1e-3)
    assert trainer._run._graphs
    assert (len(losses), said) == (6, [])


def test_tasks_that_are_tried_leave_graphs_as_they_are(mini, deterministic):
    """The callback of `informative` moves the weights and puts them back between two launches."""
    settings = {"sampling": "informative", "precision": "fp32", "backbone": "resnet10t", "iterations": 12}
    settings["hparams"] = {"every": 4}
    (_, losses, said), (_, eager_losses, _) = (trained(mini, capture=mode, **settings) for mode in ("on", "off"))
    assert losses == eager_losses
    assert not said


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimizers(mini, deterministic, optimizer):
    runs = [trained(mini, optimizer=optimizer, precision="fp32", capture=mode) for mode in ("on", "off")]
    assert runs[0][1] == runs[1][1]


def test_images_in_memory(mini, deterministic):
    """Pixels that are not on the GPU are copied there, with the same result."""
    on_gpu, in_memory = (trained(mini, precision="fp32", store=where) for where in ("gpu", "ram"))
    assert on_gpu[1] == in_memory[1]


def test_bf16_stays_close(mini):
    (_, low, _), (_, full, _) = (trained(mini, precision=precision, lr=1e-3) for precision in ("bf16", "fp32"))
    assert low == pytest.approx(full, rel=0.05)


def test_resumed_is_the_same(mini, deterministic):
    whole, _, _ = trained(mini, precision="fp32", iterations=12)
    half, _, _ = trained(mini, precision="fp32", iterations=12)
    fresh, _, _ = trained(mini, precision="fp32", iterations=1)
    state = half.state_dict()
    fresh.load_state_dict(state)
    for trainer in (whole, fresh):
        for _ in range(6):
            trainer.step()
        trainer.wait()
    for one, other in zip(whole.model.state_dict().values(), fresh.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_a_part_that_cannot_be_captured_is_named(mini, monkeypatch):
    from medic.strategies import MultiStep

    original = MultiStep.__call__

    def waits(self, *arguments):
        update = original(self, *arguments)
        float(update.risks.sum())  # asks the device for a value
        return update

    monkeypatch.setattr(MultiStep, "__call__", waits)
    trainer, losses, said = trained(mini, method="medic++", capture="auto", iterations=6)
    assert len(losses) == 6
    assert re.search(naming("MultiStep CUDA graph"), said[0])
    assert trainer._run.mode == "off"


def test_evaluation_is_the_same_captured_and_not(mini):
    trainer, _, _ = trained(mini, precision="fp32", iterations=5)
    infer = trainer.inference()
    assert infer.captured
    indices = torch.arange(trainer.images.shape[0])
    first = infer(indices)
    trainer.step()
    trainer.wait()
    second = infer(indices)
    infer.captured = False
    torch.testing.assert_close(infer(indices), second, rtol=1e-4, atol=1e-5)
    assert not torch.equal(first.logits, second.logits)  # the graph sees the weights of now


@pytest.mark.parametrize("rule", ["source", "fixed", "oracle-10"])
def test_metrics_on_the_device_are_those_on_the_cpu(mini, rule):
    """From the same outputs; integers are counted, so they are equal, and means agree to rounding."""
    plan, dataset, problem = loaded(dataset=mini, device="cuda", threshold=rule)
    trainer = build_trainer(plan, dataset, problem)
    score = get_score("bcls")
    outputs = Evaluator(dataset.domains, problem, trainer.inference(), score, rule).infer_all()
    assert outputs["target"].label.is_cuda
    there = measure(outputs, dataset.domains, score, rule)
    here = measure({split: seen.cpu() for split, seen in outputs.items()}, dataset.domains, score, rule)
    for name, value in here["target"].items():
        assert there["target"][name] == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_compiled_is_uncompiled_to_rounding(mini, precision, tolerance):
    """The second loss is met after a whole update; later ones drift apart, as rounding does in batch norm of few."""
    settings = {"precision": precision, "backbone": "resnet10t", "iterations": 2}
    losses, plain = (trained(mini, compile=mode, **settings)[1] for mode in ("on", "off"))
    assert losses == pytest.approx(plain, rel=tolerance)


def test_an_evaluation_that_cannot_be_captured_runs_eagerly(mini, caplog):
    """As one of a custom network that reads a value on the host."""
    trainer = built(dataset=mini, method="erm", batch_size=4, device="cuda")
    positions = torch.arange(10)
    expected = trainer.inference()(positions).logits
    inference = trainer.inference()
    forward = trainer.model.backbone.forward
    trainer.model.backbone.forward = lambda x: forward(x) * float(x.isfinite().any())
    with caplog.at_level("INFO", logger="medic"):
        eager = inference(positions).logits
        torch.testing.assert_close(eager, expected, rtol=0.02, atol=0.02)  # of another batch size, in bf16
        assert torch.equal(inference(positions).logits, eager)
    assert len([line for line in caplog.messages if "cannot be captured" in line]) == 1
