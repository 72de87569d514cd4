"""Settings reach the part of training that they are about."""

import pytest
import torch

import medic
from medic.models import create_backbone
from medic.objectives import Ova
from medic.runs.reevaluate import recompute_outputs
from medic.tasks.lagged import softmax_sums
from tests.built import built, plan_of
from tests.iterations import trained_on
from tests.runs.short import SHORT


@pytest.mark.parametrize("from_file", [True, False])
def test_networks_start_alike_only_from_a_file(mini, tmp_path, from_file):
    path = tmp_path / "small.pt"
    torch.save(create_backbone("small").module.state_dict(), path)
    weights = str(path) if from_file else None
    first, *others = built(dataset=mini, method="daml", weights=weights).model.networks
    for other in others:
        assert torch.equal(first.backbone.conv1.weight, other.backbone.conv1.weight) == from_file
        assert not torch.equal(first.head.close_head.weight, other.head.close_head.weight)


def test_the_callers_generator_is_left_alone(mini, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)
    assert torch.equal(torch.rand(1), expected)


class TestWiring:
    """What the trainer is given is what it uses."""

    def test_the_schedule_sets_the_rate(self, mini):
        trainer = built(dataset=mini, method="erm", iterations=5, batch_size=4, lr=0.1)
        rates = []
        for _ in range(5):
            trainer.step()
            rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert rates == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01])

    def test_training_images_are_augmented(self, mini):
        trainers = [built(dataset=mini, method="erm", batch_size=8, augment=name) for name in ("none", "digits")]
        (plain,), (varied,) = map(trained_on, trainers)
        assert torch.equal(plain.y, varied.y)
        assert not torch.equal(plain.x, varied.x)

    def test_clipping_limits_the_update(self, mini):
        moved = []
        for clip in (None, 1e-3):
            trainer = built(dataset=mini, method="erm", batch_size=8, lr=1.0, clip_norm=clip, weight_decay=0.0)
            before = [p.detach().clone() for p in trainer.model.parameters()]
            trainer.step()
            moved.append(
                sum((p - q).pow(2).sum() for p, q in zip(trainer.model.parameters(), before, strict=True)) ** 0.5
            )
        assert moved[1].item() == pytest.approx(1e-3, rel=1e-2)
        assert moved[0] > 2 * moved[1]

    def test_the_grid_hears_what_the_model_said(self, mini):
        trainer = built(dataset=mini, method="medic++", batch_size=2)
        for _ in range(4):
            trainer.step()
        assert trainer.grid.sampler.confusion([0, 1, 2]) is not None

    def test_a_probe_ends_an_iteration(self, mini, monkeypatch):
        """The next split follows what the new weights, in evaluation mode, make of fresh images."""
        trainer = built(dataset=mini, method="medic++", sampling="probe", augment="none", batch_size=2)
        drawn, probe = [], trainer.grid.probe

        def noted(cells, batch_size):
            drawn.append(probe(cells, batch_size))
            return drawn[-1]

        monkeypatch.setattr(trainer.grid, "probe", noted)
        for _ in range(2):
            trainer.step()
        samples, chosen = trainer.samples, drawn[-1].indices
        cells = len(trainer.cells.keys)
        assert len(drawn) == 2
        assert len(chosen) == cells * max(1, trainer.batch_size * trainer.grid.tasks // cells)
        logits = trainer.inference()(samples.indices[chosen]).logits
        sums = softmax_sums(logits, samples.label[chosen], samples.domain[chosen], trainer.domains)
        for domain in trainer.samples.domain.unique().tolist():
            expected = sums[domain, :, :-1] / sums[domain, :, -1:]
            torch.testing.assert_close(trainer.grid.sampler.confusion([domain]), expected, rtol=1e-5, atol=1e-6)
        assert trainer.model.training

    def test_order_of_the_inner_steps(self, mini):
        def settings(**options):
            return plan_of(dataset=mini, **options).parts.strategy.values

        assert settings(method="medic++", order="second")["second_order"]
        assert settings(method="medic", order="first") == settings(method="medic-fo")

    def test_seeds_and_scales_reach_their_place(self, mini):
        a, b = (built(dataset=mini, method="medic", seed=seed, batch_size=2) for seed in (0, 1))
        assert a.grid.generator.initial_seed() != b.grid.generator.initial_seed()
        assert a.objective.passes == "task"
        scaled = built(dataset=mini, method="medic", ova_scale=1.0, ova_floor=1e-8, batch_size=2)
        assert [trainer.objective.losses[1] for trainer in (a, scaled)] == [Ova(0.5), Ova(1.0, 1e-8)]

    def test_evaluation_uses_running_statistics(self, mini, tmp_path):
        run = medic.train(dataset=mini, method="erm", backbone="test_resnet", output=str(tmp_path), **SHORT)
        again = recompute_outputs(run, "cpu")
        for split in run.splits:
            torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)


def test_averaged_weights_keep_frozen_statistics(mini, tmp_path):
    """SWAD estimates batch-norm statistics anew, but not those that are frozen."""
    settings = {**SHORT, "backbone": "test_resnet", "averaging": "swad", "output": str(tmp_path)}
    frozen, trained = (
        medic.train(dataset=mini, method="erm", batch_norm=norm, **settings) for norm in ("frozen", "local")
    )
    assert frozen.model.backbone.bn1.running_mean.abs().sum() == 0  # as it came, without weights
    assert trained.model.backbone.bn1.running_mean.abs().sum() > 0
    assert trained.model.backbone.bn1.momentum == 0.1
    assert trained.record["averaged"]
    assert trained.description["provenance"]["selection"] == "averaged weights"


def test_only_a_method_that_is_an_average_requires_it(mini, tmp_path):
    settings = {**SHORT, "averaging": "swad", "output": str(tmp_path)}
    swad, erm = (medic.train(dataset=mini, method=method, **settings) for method in ("swad", "erm"))
    assert swad.record["required"]
    assert swad.best_evaluation == swad.record
    assert "required" not in erm.records[-1]


def test_views_are_averaged(mini, tmp_path):
    settings = {**SHORT, "output": str(tmp_path)}
    plain, several = (medic.train(dataset=mini, method="erm", views=views, **settings) for views in (1, 4))
    ours, theirs = (run.outputs("target").output.logits for run in (several, plain))
    assert not torch.equal(ours, theirs)
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.8
    again = recompute_outputs(several, "cpu")["target"].output.logits
    torch.testing.assert_close(again, ours)


def test_views_are_the_mean_of_passes(mini):
    """A model that gives the mean of its inputs, for images of one colour: all views are alike."""
    from medic.data.images import Resident
    from medic.models import HALVES
    from medic.training import Inference

    class Mean(torch.nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    images = Resident(torch.full((3, 3, 32, 32), 51, dtype=torch.uint8))
    for views in (1, 5):
        logits = Inference(Mean(), images, HALVES, torch.device("cpu"), views=views)(torch.arange(3)).logits
        torch.testing.assert_close(logits, torch.full((3, 3), (0.2 - 0.5) / 0.5))


def test_views_do_not_depend_on_batches(monkeypatch):
    from medic.data.images import Resident
    from medic.models import HALVES
    from medic.training import Inference, inference

    class Corner(torch.nn.Module):
        def forward(self, x):
            return x[:, :, 0, 0]

    images = Resident(torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8))
    logits = []
    for batch in (256, 4):
        monkeypatch.setattr(inference, "BATCH", batch)
        logits.append(Inference(Corner(), images, HALVES, torch.device("cpu"), views=3)(torch.arange(6)).logits)
    assert torch.equal(*logits)
    features = Resident(torch.zeros(1, 8, 1, 1))
    assert Inference(Corner(), features, HALVES, torch.device("cpu")).batch_size == inference.LARGE_BATCH
