"""Runs: what they leave behind, and what is read of it."""

import importlib.util
import json
import shutil
import stat

import numpy as np
import pytest
import torch

import medic
from medic.config.files import read_settings, to_yaml
from medic.config.settings import SETTINGS
from medic.errors import MedicError
from medic.openset import SCORES
from medic.results.notes import differences
from medic.results.runs import find_runs
from medic.runs.reevaluate import recompute_outputs, review
from medic.runs.seal import make_seal
from medic.training import Trainer
from tests.messages import naming
from tests.runs.short import SHORT

LOGITS = {"cls", "max-logit", "energy", "gen", "temperature", "kl-matching"}
"""The scores of logits alone, of which some are fitted on validation images."""


def test_the_files_of_a_run(run):
    tracked = {"tensorboard"} if importlib.util.find_spec("tensorboard") else set()
    assert {path.name for path in run.path.iterdir()} - tracked == {
        "settings.json", "config.json", "environment.json", "results.jsonl", "model.safetensors", "model.json",
        "predictions.npz", "checkpoint", "done", ".lock",
    }  # fmt: skip
    for name in ("model.safetensors", "predictions.npz", "config.json"):
        assert stat.S_IMODE((run.path / name).stat().st_mode) == 0o644
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert len(environment["images"]) == 64


def test_a_run_stores_what_was_asked_and_what_it_became(finished, mini):
    run = medic.Run(finished)
    user_settings, became = read_settings(run.path / "settings.json"), read_settings(run.path / "config.json")
    settings = {name: value for name, value in SHORT.items() if name != "quiet"}
    assert user_settings == {"dataset": mini, "method": "medic++", "output": str(finished.parent), **settings}
    assert became == run.settings
    assert became.keys() == SETTINGS.keys()
    assert (became["target"], became["steps"], became["score"]) == (["street"], [3, 3, 3], "bcls")
    assert run.user_settings == user_settings
    assert all(record["hparams"].keys() >= {"lr", "weight_decay", "batch_size"} for record in run.records)


def test_a_run_of_version_0_3_is_read(run):
    """Its two files of settings were YAML."""
    for name, old in (("config.json", "config.yaml"), ("settings.json", "asked.yaml")):
        (run.path / old).write_text(to_yaml(read_settings(run.path / name)))
        (run.path / name).unlink()
    (run.path / "done").write_text(make_seal(run.path, 1.0))
    old = medic.Run(run.path)
    assert (old.config, old.user_settings) == (run.config, run.user_settings)
    assert [one.path for one in find_runs([run.path.parent]).finished] == [run.path]
    assert find_runs([run.path]).table().rows[0].method == "medic++"


@pytest.mark.usefixtures("mini")
def test_both_files_repeat_a_run(finished, monkeypatch):
    monkeypatch.setattr(Trainer, "step", lambda self: pytest.fail("trained again"))
    for name in ("settings.json", "config.json"):
        assert medic.train(**read_settings(finished / name)).path == finished


def test_the_papers_result_is_in_a_run_with_averaged_weights(run, mini, tmp_path):
    """Averaging changes no iteration, so both rules can be shown of one training."""
    plain = medic.train(dataset=mini, method="medic++", averaging="none", output=tmp_path, **SHORT)
    assert (len(plain.records), len(run.records)) == (2, 3)
    for ours, theirs in zip(run.records, plain.records, strict=False):
        assert (ours["target"], ours["validation"], ours["loss"]) == (
            theirs["target"], theirs["validation"], theirs["loss"],
        )  # fmt: skip
    assert run.record["averaged"]
    assert run.best_evaluation["target"] == plain.metrics
    assert run.best_evaluation["iteration"] == plain.record["iteration"]


@pytest.mark.parametrize(("overrides", "method", "said"), [
    ({}, "erm", False), ({"averaging": "swad"}, "erm", True), ({}, "swad", True),
])  # fmt: skip
def test_a_valley_that_was_not_found_is_news_only_if_one_was_asked_for(overrides, method, said, mini, tmp_path, caplog):
    settings = {**SHORT, "iterations": 2, "quiet": False}
    caplog.set_level("INFO", "medic")
    run = medic.train(dataset=mini, method=method, output=tmp_path, **settings, **overrides)
    assert not run.records[-1]["converged"]
    assert ("did not converge" in caplog.text) == said


def test_records_have_our_keys_and_domainbeds(run):
    first, _, last = run.records
    assert (first["iteration"], last["iteration"], last["averaged"]) == (2, 4, True)
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
    assert set(again) == {*LOGITS, "bcls", "platt"}
    assert set(review(run, None, "fixed")) == {"cls", "bcls", "temperature", "platt"}
    (at_half,) = review(run, None, 0.5).values()
    assert at_half == review(run, "bcls", "fixed")["bcls"]
    with pytest.raises(MedicError, match=naming("'bcls' probability 1.5")):
        review(run, None, 1.5)


def test_the_model_gives_its_predictions_again(run):
    again = recompute_outputs(run, "cpu")
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
    assert (run.settings["score"], run.settings["threshold"]) == ("openmax", "hard")
    assert run.metrics["threshold"] == 0
    again = review(run, "openmax", "hard")["openmax"]["target"]
    assert {k: v for k, v in again.items() if "/" not in k} == {k: v for k, v in run.metrics.items() if "/" not in k}
    assert set(review(run, None, "source")) == {*LOGITS, "openmax"}
    assert set(review(run, None, "hard")) == {"openmax"}
    with pytest.raises(MedicError, match=naming("score 'knn' --rerun")):
        review(run, "knn", "source")
    rerun = review(run, None, "source", recompute_outputs(run, "cpu"))
    assert set(rerun) == SCORES.keys() - {"bcls", "platt", "reject"}
    assert 0 <= rerun["knn"]["target"]["auroc"] <= 1
    with pytest.raises(MedicError, match=naming("'reject' unknown")):
        review(run, "reject", "hard")


def test_scores_are_fitted_on_features_that_were_kept(mini, tmp_path):
    run = medic.train(dataset=mini, method="erm", save_features=True, output=str(tmp_path), **SHORT)
    assert run.splits == ["validation", "source-unknown", "target", "train"]
    kept, again = review(run, None, "source"), review(run, None, "source", recompute_outputs(run, "cpu"))
    assert set(kept) == set(again) == SCORES.keys() - {"bcls", "platt", "reject"}
    for score, metrics in kept.items():
        assert metrics["target"]["auroc"] == pytest.approx(again[score]["target"]["auroc"], abs=1e-6)


def test_a_system_with_an_output_for_unknown(mini, tmp_path):
    run = medic.train(dataset=mini, method="onering", output=str(tmp_path), **SHORT)
    assert (run.settings["score"], run.settings["threshold"]) == ("reject", "hard")
    output = run.outputs("target").output
    said = torch.cat([output.logits, output.unknown[:, None]], dim=1).argmax(1)
    decided = run.predictions["prediction"][run.predictions["split"] == "target"]
    assert (decided == torch.where(said == 6, -1, said).numpy()).all()


def test_a_system_of_several_networks(mini, tmp_path):
    run = medic.train(dataset=mini, method="daml", output=str(tmp_path), **SHORT)
    assert run.description["model"] == {"backbone": "small", "head": "close", "networks": 3}
    assert len(run.model.networks) == 3
    again = recompute_outputs(run, "cpu")
    for split in run.splits:
        torch.testing.assert_close(again[split].output.logits, run.outputs(split).output.logits)


def test_the_description_is_enough_to_use_the_model(run):
    described = run.description
    assert described["classes"] == list("012345")
    normalised = {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert described["preprocessing"] == {"upright": True, "resampling": "bilinear", "decoded": 32, **normalised}
    assert described["threshold"]["rule"] == "source"
    assert described["threshold"]["value"] == run.metrics["threshold"]
    assert described["provenance"]["iteration"] in (2, 4)


def test_the_threshold_accepts_nine_of_ten_validation_images(run):
    accepted = run.predictions["prediction"][run.predictions["split"] == "validation"] >= 0
    assert accepted.sum() == len(accepted) - (len(accepted) + 1) // 10 + 1


def test_the_directory_is_named_by_what_changes_the_result(run, mini, tmp_path):
    def name(**settings):
        return medic.train(
            **{"dataset": mini, "method": "medic++", "output": str(tmp_path / "b"), **SHORT, **settings}
        ).path

    assert name().name == run.path.name
    assert name(device="auto", checkpoint_every=7).name == run.path.name
    assert name(seed=1).name != run.path.name


def test_the_best_weights_are_the_ones_that_are_kept(mini, tmp_path, monkeypatch):
    """The first of two evaluations is made the better one; the model must be that of iteration 2, not of 4."""
    with monkeypatch.context() as patched:
        patched.setattr("medic.runs.unfinished.select", lambda records: 0)
        first = medic.train(dataset=mini, method="erm", output=str(tmp_path / "a"), **SHORT)
    settings = {**SHORT, "iterations": 2, "schedule": "constant", "averaging": "none"}
    short = medic.train(dataset=mini, method="erm", output=str(tmp_path / "b"), **settings)
    assert first.description["provenance"]["iteration"] == 2
    for a, b in zip(first.model.parameters(), short.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_that_another_process_finished_meanwhile_is_not_done_again(mini, tmp_path, monkeypatch):
    settings = {"dataset": mini, "target": "street", "method": "erm", "output": tmp_path, **SHORT}
    path = medic.train(**settings).path
    shutil.rmtree(path / "checkpoint")  # as runs come home from other machines
    done, times = path / "done", {file: file.stat().st_mtime_ns for file in path.glob("*.*")}
    done.rename(tmp_path / "elsewhere")

    def late(plan):  # called when the session is made, before the directory is locked
        (tmp_path / "elsewhere").rename(done)
        return ()

    monkeypatch.setattr("medic.runs.train.notes", late)
    assert medic.train(**settings).path == path
    assert times == {file: file.stat().st_mtime_ns for file in path.glob("*.*")}


def test_weights_count_by_content(mini, tmp_path):
    from safetensors.torch import save_file

    from medic.models import create_backbone

    names = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(seed)
        save_file(create_backbone("small").module.state_dict(), tmp_path / f"{name}.safetensors")
        weights = str(tmp_path / f"{name}.safetensors")
        names.append(medic.train(dataset=mini, method="erm", weights=weights, output=str(tmp_path / "o"), **SHORT).path)
    assert names[0] == names[1] != names[2]


class TestReading:
    def test_not_a_run(self, tmp_path):
        with pytest.raises(MedicError, match=naming(str(tmp_path / "nothing"))):
            medic.Run(tmp_path / "nothing")
        with pytest.raises(MedicError, match=naming(f"{tmp_path} config.json")):
            medic.Run(tmp_path)

    def test_unfinished(self, run):
        (run.path / "done").unlink()
        with pytest.raises(MedicError, match=naming(str(run.path))):
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
        assert run.predictions["features"].shape == (400, 32)
        assert run.predictions["features"].dtype == np.float32
        assert "ova_logits" not in run.predictions
        with pytest.raises(MedicError, match=naming("'bcls' one-vs-all")):
            review(run, "bcls", "source")


def test_a_threshold_chosen_by_target_labels_is_not_kept_with_the_model(mini, tmp_path):
    run = medic.train(dataset=mini, method="erm", output=tmp_path, threshold="oracle-10", **SHORT)
    assert run.metrics["threshold_rule"] == "oracle-10"
    assert run.description["threshold"]["rule"] == "source"
    assert run.description["threshold"]["value"] != run.metrics["threshold"]
    [result] = find_runs([tmp_path]).finished
    assert any("oracle-10" in note and "target labels" in note for note in differences([result]))
