"""Runs: what they leave behind, and that they can be stopped anywhere."""

import importlib.util
import json
import signal
import stat

import numpy as np
import pytest
import torch

import medic
from medic.errors import MedicError, TrainingError
from medic.experiments import progress
from medic.experiments.build import make_trainer
from medic.experiments.config import RunConfig
from medic.experiments.interrupts import Stopped
from medic.experiments.resolve import resolve
from medic.experiments.review import infer_again, review
from medic.experiments.selection import select, shown
from medic.methods import METHODS
from medic.models import create_backbone
from medic.report.page import write_page
from medic.training import Trainer

SHORT = {"target": "street", "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "quiet": True}


@pytest.fixture
def run(mini, tmp_path):
    return medic.train(dataset=mini, method="medic++", output=tmp_path, **SHORT)


def test_the_files_of_a_run(run):
    tracked = {"tensorboard"} if importlib.util.find_spec("tensorboard") else set()
    assert {path.name for path in run.path.iterdir()} - tracked == {
        "config.yaml", "environment.json", "results.jsonl", "model.safetensors", "model.json", "predictions.npz",
        "checkpoint", "done", ".lock",
    }  # fmt: skip
    for name in ("model.safetensors", "predictions.npz", "config.yaml"):
        assert stat.S_IMODE((run.path / name).stat().st_mode) == 0o644
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert len(environment["images"]) == 64


def test_records_have_our_keys_and_domainbeds(run):
    first, last = run.records
    assert (first["iteration"], last["iteration"]) == (2, 4)
    for key in ("step", "epoch", "loss", "step_time", "mem_gb", "args", "hparams"):
        assert key in last
    for domain in range(4):
        for split in ("in", "out"):
            assert 0 <= last[f"env{domain}_{split}_acc"] <= 1
    assert last["args"]["test_envs"] == [3]
    assert {"acc", "hscore", "threshold", "threshold_rule", "oscr_c", "oscr_b", "auroc", "fpr95"} <= last[
        "target"
    ].keys()
    assert last["epoch"] == pytest.approx(4 * 9 * 2 / (3 * 6 * 8))


def test_predictions_repeat_every_metric(run):
    arrays = run.predictions
    rows = arrays["split"] == "target"
    assert rows.sum() == 100
    assert (arrays["split"] == "validation").sum() == 3 * 6 * 2
    assert (arrays["split"] == "source-unknown").sum() == 3 * 4 * 10
    assert (arrays["label"][arrays["split"] == "source-unknown"] == -1).all()
    assert arrays["path"].dtype.kind == "U"
    assert set(arrays["domain"][rows]) == {"street"}
    assert (arrays["label"][rows] == -1).sum() == 40
    assert set(arrays["prediction"]) <= set(range(-1, 6))
    again = review(run, None, "source")
    for part in ("target", "source"):
        assert again["bcls"][part].keys() == run.record[part].keys()
        for key, value in again["bcls"][part].items():
            assert run.record[part][key] == pytest.approx(value, nan_ok=True)
    assert run.record["targets"] == {"street": run.metrics}
    assert set(again) == {"cls", "bcls", "max-logit", "energy"}
    assert set(review(run, None, "fixed")) == {"cls", "bcls"}


def test_the_model_gives_its_predictions_again(run):
    again = infer_again(run, "cpu")
    assert list(again) == [*run.splits, "train"] == ["validation", "source-unknown", "target", "train"]
    for split in run.splits:
        output, label, _ = again[split]
        kept, kept_label, _ = run.outputs(split)
        torch.testing.assert_close(output.logits, kept.logits)
        torch.testing.assert_close(output.ova, kept.ova)
        assert torch.equal(label, kept_label)
    assert not run.model.training


def test_scores_that_are_fitted(mini, tmp_path):
    run = medic.train(dataset=mini, method="openmax", output=str(tmp_path), **SHORT)
    assert (run.config.score, run.config.threshold) == ("openmax", "hard")
    assert run.metrics["threshold"] == 0
    assert (run.path / "score.safetensors").exists()
    again = review(run, "openmax", "hard")["openmax"]["target"]
    assert {k: v for k, v in again.items() if "/" not in k} == {k: v for k, v in run.metrics.items() if "/" not in k}
    assert set(review(run, None, "source")) == {"cls", "max-logit", "energy", "openmax"}
    assert set(review(run, None, "hard")) == {"openmax"}
    with pytest.raises(MedicError, match="score 'knn' is fitted on the training images: add --rerun"):
        review(run, "knn", "source")
    rerun = review(run, None, "source", infer_again(run, "cpu"))
    assert set(rerun) == {"cls", "max-logit", "energy", "openmax", "knn", "mahalanobis"}
    assert 0 <= rerun["knn"]["target"]["auroc"] <= 1
    with pytest.raises(MedicError, match="needs an output for unknown"):
        review(run, "reject", "hard")


def test_a_system_with_an_output_for_unknown(mini, tmp_path):
    run = medic.train(dataset=mini, method="onering", output=str(tmp_path), **SHORT)
    assert (run.config.score, run.config.threshold) == ("reject", "hard")
    output = run.outputs("target").output
    said = torch.cat([output.logits, output.unknown[:, None]], dim=1).argmax(1)
    decided = run.predictions["prediction"][run.predictions["split"] == "target"]
    assert (decided == torch.where(said == 6, -1, said).numpy()).all()


def test_a_system_of_several_networks(mini, tmp_path):
    run = medic.train(dataset=mini, method="daml", output=str(tmp_path), **SHORT)
    assert run.description["model"] == {"backbone": "convnet", "head": "close", "networks": 3}
    assert len(run.model.networks) == 3
    again = infer_again(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)


@pytest.mark.parametrize("from_file", [True, False])
def test_networks_start_alike_only_from_a_file(mini, tmp_path, from_file):
    path = tmp_path / "convnet.pt"
    torch.save(create_backbone("convnet").module.state_dict(), path)
    weights = str(path) if from_file else None
    plan = resolve(RunConfig(dataset=mini, target="street", method="daml", device="cpu", weights=weights))
    dataset = plan.data.load(lambda line: None)
    first, *others = make_trainer(plan, dataset, plan.data.split(dataset)).model.networks
    for other in others:
        assert torch.equal(first.backbone.conv1.weight, other.backbone.conv1.weight) == from_file
        assert not torch.equal(first.head.close_head.weight, other.head.close_head.weight)


def test_the_description_is_enough_to_use_the_model(run):
    described = run.description
    assert described["classes"] == list("012345")
    assert described["preprocessing"] == {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert described["threshold"]["rule"] == "source"
    assert described["threshold"]["value"] == run.metrics["threshold"]
    assert described["provenance"]["iteration"] in (2, 4)


def test_the_threshold_keeps_95_percent_of_validation(run):
    kept = run.predictions["prediction"][run.predictions["split"] == "validation"] >= 0
    assert kept.mean() >= 0.95


def test_a_finished_run_is_not_done_again(run, mini, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in run.path.iterdir()}
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("trained again"))
    again = medic.train(dataset=mini, method="medic++", output=str(run.path.parent), **SHORT)
    assert again.path == run.path
    assert {path: path.stat().st_mtime_ns for path in run.path.iterdir()} == before


def test_the_directory_is_named_by_what_changes_the_result(run, mini, tmp_path):
    def name(**settings):
        return medic.train(
            **{"dataset": mini, "method": "medic++", "output": str(tmp_path / "b"), **SHORT, **settings}
        ).path

    assert name().name == run.path.name
    assert name(device="auto", checkpoint_every=7).name == run.path.name
    assert name(seed=1).name != run.path.name


def test_the_callers_generator_is_left_alone(mini, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)
    assert torch.equal(torch.rand(1), expected)


SOONER = {
    "hyprometa": {"batch_size": 36, "hparams": {"trust": 1}},
    "mvdg": {"hparams": {"persist_inner_state": 1}},
}
"""Settings with which a system has, within four iterations, all the state that it can: here an epoch is one of them."""


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_when_interrupted(method, mini, tmp_path, monkeypatch):
    """Stopped after its first iteration and its third, and started again: the same bytes as when left alone."""
    settings = {"dataset": mini, "method": method, **SHORT, "batch_size": 2 if method in ("medic++", "arith") else 8}
    settings |= SOONER.get(method, {})
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    step = Trainer.step

    def interrupted(self):
        loss = step(self)
        if self.iteration in (1, 3):
            signal.raise_signal(signal.SIGINT)
        return loss

    monkeypatch.setattr(Trainer, "step", interrupted)
    for iteration in (1, 3):
        with pytest.raises(Stopped, match=f"stopped at iteration {iteration}") as stopped:
            medic.train(**settings, output=str(tmp_path / "parts"))
        assert stopped.value.exit_code == 130
    parts = medic.train(**settings, output=str(tmp_path / "parts"))
    for name in ("model.safetensors", "predictions.npz", "model.json"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    losses = [[record["loss"] for record in run.records] for run in (whole, parts)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dropout_draws_are_in_the_checkpoint(mini, tmp_path, monkeypatch, device):
    """A backbone with dropout draws from the global generator, whose state must be saved too."""
    from medic.models import HALVES, OURS, ConvNet

    class Dropped(ConvNet):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.5, self.training)

    monkeypatch.setitem(OURS, "dropped", (Dropped, HALVES))
    settings = {"dataset": mini, "method": "erm", "backbone": "dropped", **SHORT, "device": device}
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    step = Trainer.step

    def interrupted(self):
        loss = step(self)
        if self.iteration == 1:
            signal.raise_signal(signal.SIGTERM)
        return loss

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(Stopped) as stopped:
        medic.train(**settings, output=str(tmp_path / "parts"))
    assert stopped.value.exit_code == 143
    parts = medic.train(**settings, output=str(tmp_path / "parts"))
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_batch_norm_and_adam_resume(mini, tmp_path, monkeypatch):
    """A timm backbone with batch norm, trained with Adam, clipping and a larger rate for the heads."""
    settings = {
        "dataset": mini, "method": "fish-domainbed", "backbone": "resnet10t", "optimizer": "adamw", "clip_norm": 1.0,
        "head_lr_scale": 10.0, "lr": 1e-3, **SHORT,
    }  # fmt: skip
    whole = medic.train(**settings, output=str(tmp_path / "whole"))
    step = Trainer.step

    def interrupted(self):
        loss = step(self)
        if self.iteration == 3:
            signal.raise_signal(signal.SIGINT)
        return loss

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(Stopped):
        medic.train(**settings, output=str(tmp_path / "parts"))
    parts = medic.train(**settings, output=str(tmp_path / "parts"))
    assert (parts.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_loss_that_is_not_a_number_stops_the_run(mini, tmp_path):
    settings = {**SHORT, "iterations": 50, "checkpoint_every": 1, "evaluate_every": 50}
    with pytest.raises(TrainingError, match=r"at iteration (\d+); the checkpoint of iteration \d+ is kept") as error:
        medic.train(dataset=mini, method="erm", lr=1e6, batch_size=8, output=str(tmp_path), **{
            key: value for key, value in settings.items() if key != "batch_size"})  # fmt: skip
    assert "learning rate below 1e+06" in str(error.value)
    (directory,) = tmp_path.iterdir()
    kept = torch.load(directory / "checkpoint" / "last.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in kept["trainer"]["model"].values())
    assert not (directory / "done").exists()


def test_outputs_that_are_not_numbers_stop_the_run(mini, tmp_path):
    """The training loss is finite, but what an evaluation sees is not."""
    settings = {**SHORT, "batch_size": 8, "evaluate_every": 1, "iterations": 30}
    with pytest.raises(TrainingError, match=r"at iteration \d+; the checkpoint of iteration \d+ is kept"):
        medic.train(dataset=mini, method="erm", lr=1e6, output=str(tmp_path), **settings)


class TestWiring:
    """What the trainer is given is what it uses."""

    def trainer(self, mini, tmp_path, **settings):
        plan = resolve(RunConfig(dataset=mini, target="street", device="cpu", **settings))
        dataset = plan.data.load(lambda line: None)
        return make_trainer(plan, dataset, plan.data.split(dataset))

    def test_the_schedule_sets_the_rate(self, mini, tmp_path):
        trainer = self.trainer(mini, tmp_path, method="erm", iterations=5, batch_size=4, lr=0.1)
        rates = []
        for _ in range(5):
            trainer.step()
            rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert rates == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.01])

    def test_training_images_are_augmented(self, mini, tmp_path):
        trainers = [
            self.trainer(mini, tmp_path, method="erm", batch_size=8, augment=name) for name in ("none", "digits")
        ]
        plain, varied = (next(trainer._body.load(trainer._batch(trainer._next()))) for trainer in trainers)
        assert torch.equal(plain.y, varied.y)
        assert not torch.equal(plain.x, varied.x)

    def test_clipping_limits_the_update(self, mini, tmp_path):
        moved = []
        for clip in (None, 1e-3):
            trainer = self.trainer(mini, tmp_path, method="erm", batch_size=8, lr=1.0, clip_norm=clip, weight_decay=0.0)
            before = [p.detach().clone() for p in trainer.model.parameters()]
            trainer.step()
            moved.append(
                sum((p - q).pow(2).sum() for p, q in zip(trainer.model.parameters(), before, strict=True)) ** 0.5
            )
        assert moved[1].item() == pytest.approx(1e-3, rel=1e-2)
        assert moved[0] > 2 * moved[1]

    def test_the_grid_hears_what_the_model_said(self, mini, tmp_path):
        trainer = self.trainer(mini, tmp_path, method="medic++", batch_size=2)
        for _ in range(4):
            trainer.step()
        assert trainer.grid.sampler.confusion([0, 1, 2]) is not None

    def test_seeds_and_scales_reach_their_place(self, mini, tmp_path):
        a, b = (self.trainer(mini, tmp_path, method="medic", seed=seed, batch_size=2) for seed in (0, 1))
        assert a.grid.seed != b.grid.seed
        assert a.objective.passes == "task"
        scaled = self.trainer(mini, tmp_path, method="medic", ova_scale=1.0, batch_size=2)
        assert [trainer.objective.losses[1].scale for trainer in (a, scaled)] == [0.5, 1.0]

    def test_evaluation_uses_running_statistics(self, mini, tmp_path):
        run = medic.train(dataset=mini, method="erm", backbone="resnet10t", output=str(tmp_path), **SHORT)
        again = infer_again(run, "cpu")
        for split in run.splits:
            torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)


def test_the_best_weights_are_the_ones_that_are_kept(mini, tmp_path, monkeypatch):
    """The first of two evaluations is made the better one; the model must be that of iteration 2, not of 4."""
    from medic.experiments import run as module

    with monkeypatch.context() as patched:
        patched.setattr(module, "select", lambda records: 0)
        first = medic.train(dataset=mini, method="erm", output=str(tmp_path / "a"), **SHORT)
    short = medic.train(
        dataset=mini, method="erm", output=str(tmp_path / "b"), schedule="constant", **{**SHORT, "iterations": 2}
    )
    assert first.description["provenance"]["iteration"] == 2
    for a, b in zip(first.model.parameters(), short.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_count_by_content(mini, tmp_path):
    from safetensors.torch import save_file

    from medic.models import ConvNet

    names = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(seed)
        save_file(ConvNet().state_dict(), tmp_path / f"{name}.safetensors")
        weights = str(tmp_path / f"{name}.safetensors")
        names.append(medic.train(dataset=mini, method="erm", weights=weights, output=str(tmp_path / "o"), **SHORT).path)
    assert names[0] == names[1] != names[2]


def test_a_damaged_checkpoint_is_named(mini, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "step", lambda self: signal.raise_signal(signal.SIGINT) or [0.0])
    settings = {"dataset": mini, "method": "erm", "output": str(tmp_path), **SHORT, "iterations": 10**6}
    with pytest.raises(Stopped):
        medic.train(**settings)
    (path,) = tmp_path.glob("*/checkpoint/last.pt")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(MedicError, match="truncated or not one of ours; delete it"):
        medic.train(**settings)


def test_an_output_that_cannot_be_written(mini, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MedicError, match=r"output .*file cannot be written: Not a directory"):
        medic.train(dataset=mini, method="erm", output=str(tmp_path / "file"), **SHORT)


def test_two_processes_do_not_do_the_same_run(mini, tmp_path, monkeypatch):
    def also(self):
        with pytest.raises(MedicError, match="is being written by another process"):
            medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)
        pytest.skip("held")

    monkeypatch.setattr(Trainer, "step", also)
    with pytest.raises(pytest.skip.Exception):
        medic.train(dataset=mini, method="erm", output=str(tmp_path), **SHORT)


@pytest.mark.parametrize(("seconds", "said"), [(5, "2.0 it/s"), (40, "4.0 s/it"), (300, "30.0 s/it")])
def test_how_fast_a_run_is(monkeypatch, capsys, seconds, said):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = progress.Lines("erm", start=5, iterations=20, every=1)
    now = seconds
    lines.advance(15, 0.5)
    assert f"  15/20  loss 0.500  {said}  left {seconds / 2:.0f} s" in capsys.readouterr().err


def test_a_page_where_every_class_is_known(mini, tmp_path):
    run = medic.train(dataset=mini, method="erm", known=list("0123456789"), output=tmp_path / "runs", **SHORT)
    (tmp_path / "pages").mkdir()
    page = write_page(tmp_path / "pages" / "index.html", [run], "all known").read_text()
    assert "There is no image of an unknown class here" in page
    assert "known, named correctly" in page
    assert f'<a href="../runs/{run.path.name}">' in page
    for absent in ("nan %", "<svg", "unknown, called unknown", "0 more classes", "not a result"):
        assert absent not in page


def test_nothing_is_written_for_a_mistake(mini, tmp_path):
    mistakes = (
        {"backbone": "resnet5O"},
        {"backbone": "mnist-cnn"},
        {"backbone": "vit_tiny_patch16_224", "image_size": 96},
        {"weights": __file__},
        {"class_groups": 7},
        {"lr": 0.0},
        {"score": "energy", "threshold": "fixed"},
        {"known": list("0123456789"), "threshold": "oracle-10"},
    )
    for mistake in mistakes:
        with pytest.raises(MedicError):
            medic.train(dataset=mini, method="medic++", output=str(tmp_path / "out"), **{**SHORT, **mistake})
    assert not (tmp_path / "out").exists()


def test_unknown_settings_are_named():
    with pytest.raises(MedicError, match="unknown setting 'iteration', did you mean 'iterations'"):
        medic.train(target="street", iteration=3)


class TestSelection:
    RECORDS = [  # noqa: RUF012
        {
            "validation": {"acc": acc},
            "target": {"acc": 1 - acc},
            "targets": {},
            "source": {"oscr": 0.5},
            "env0_out_acc": acc,
            "env3_in_acc": 0.1,
            "env2_out_acc": 0.2,
        }
        for acc in (0.5, 0.8, 0.8, 0.7)
    ]

    def test_best_validation_first_on_ties(self):
        assert select(self.RECORDS) == 1

    def test_the_target_is_hidden(self):
        assert shown(self.RECORDS[0], [2, 3]) == {"validation": {"acc": 0.5}, "env0_out_acc": 0.5}

    def test_selected_weights_are_kept(self, run):
        best = run.description["provenance"]["record"]
        assert best == select([shown(record, [3]) for record in run.records])
        output, label, _ = run.outputs("validation")
        accuracy = (output.logits.argmax(1) == label).double().mean().item()
        assert accuracy == pytest.approx(run.records[best]["validation"]["acc"])


class TestReading:
    def test_not_a_run(self, tmp_path):
        with pytest.raises(MedicError, match="does not exist"):
            medic.Run(tmp_path / "nothing")
        with pytest.raises(MedicError, match=r"is not the directory of a run: it has no config\.yaml"):
            medic.Run(tmp_path)

    def test_unfinished(self, run):
        (run.path / "done").unlink()
        with pytest.raises(MedicError, match="is not finished"):
            medic.Run(run.path)

    @pytest.mark.parametrize("damage", [b"", b"x", b"[]"])
    def test_damaged(self, run, damage):
        for name, part in (
            ("predictions.npz", "predictions"), ("results.jsonl", "metrics"), ("model.safetensors", "model"),
            ("model.json", "description"),
        ):  # fmt: skip
            (run.path / name).write_bytes(damage or (run.path / name).read_bytes()[:-30])
            with pytest.raises(MedicError, match=r"run|weights"):
                getattr(medic.Run(run.path), part)

    def test_features_on_request(self, mini, tmp_path):
        run = medic.train(dataset=mini, method="erm", output=str(tmp_path), save_features=True, **SHORT)
        assert run.predictions["features"].shape == (256, 256)
        assert run.predictions["features"].dtype == np.float32
        assert "ova_logits" not in run.predictions
        assert set(review(run, None, "source")) == {"cls", "max-logit", "energy"}
        with pytest.raises(MedicError, match="needs a one-vs-all head"):
            review(run, "bcls", "source")


def test_averaged_weights_keep_frozen_statistics(mini, tmp_path):
    """SWAD estimates batch-norm statistics anew, but not those that are frozen."""
    settings = {**SHORT, "backbone": "resnet10t", "averaging": "swad", "output": str(tmp_path)}
    frozen, trained = (
        medic.train(dataset=mini, method="erm", batch_norm=norm, **settings) for norm in ("frozen", "local")
    )
    assert frozen.model.backbone.bn1.running_mean.abs().sum() == 0  # as it came, without weights
    assert trained.model.backbone.bn1.running_mean.abs().sum() > 0
    assert trained.model.backbone.bn1.momentum == 0.1
    assert trained.record["averaged"]
    assert trained.description["provenance"]["selection"] == "averaged weights"


def test_views_are_averaged(mini, tmp_path):
    settings = {**SHORT, "output": str(tmp_path)}
    plain, several = (medic.train(dataset=mini, method="erm", views=views, **settings) for views in (1, 4))
    ours, theirs = (run.outputs("target").output.logits for run in (several, plain))
    assert not torch.equal(ours, theirs)
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.8
    again = infer_again(several, "cpu")["target"].output.logits
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer": "mixstyle", "backbone": "mnist-cnn"}, "has no stages"),
        ({"layer": "aloft-e"}, "ALOFT perturbs global filters"),
        ({"method": "ebil-hads", "backbone": "gfnet_h_ti"}, "has no stages"),
        ({"method": "aloft-e", "image_size": 50}, "use --image-size 64"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused_before_images_are_read(mini, tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr("medic.experiments.plans.DataPlan.load", lambda self, say: pytest.fail("images were read"))
    with pytest.raises(MedicError, match=message):
        medic.train(dataset=mini, output=tmp_path, **{**SHORT, "method": "erm", **settings})
