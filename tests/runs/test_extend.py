"""A finished run can be continued, and no domain need be left out."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import medic
from medic.cli import main
from medic.config.files import read_settings, to_yaml
from medic.errors import MedicError
from medic.models import create_backbone
from tests.messages import naming
from tests.runs.short import SHORT

STEADY = {**SHORT, "schedule": "constant", "averaging": "none", "evaluate_every": 2}
"""Settings under which a run of twice the iterations begins like a shorter one."""


@pytest.fixture
def short(mini, tmp_path):
    return medic.train(dataset=mini, method="medic++", output=tmp_path, **STEADY)


def test_an_extended_run_is_the_longer_run(short, mini, tmp_path):
    """Its evaluations and weights are those of a run that was as long from the start."""
    longer = medic.train(extend=str(short.path), iterations=2 * SHORT["iterations"], output=tmp_path)
    whole = medic.train(
        dataset=mini, method="medic++", output=tmp_path, **{**STEADY, "iterations": 2 * SHORT["iterations"]}
    )
    assert len({short.path, longer.path, whole.path}) == 3
    assert [record["target"] for record in longer.records] == [record["target"] for record in whole.records]
    ours, theirs = (load_file(run.path / "model.safetensors") for run in (longer, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert longer.config.optim.iterations == longer.user_settings["iterations"] == 2 * SHORT["iterations"]
    again = medic.train(extend=str(short.path), iterations=2 * SHORT["iterations"], output=tmp_path)
    assert again.path == longer.path


def test_a_penalty_that_has_begun_does_not_begin_again(mini, tmp_path):
    """In a run that is longer from the start, the penalty begins later."""
    settings = {**STEADY, "dataset": mini, "method": "vrex", "output": tmp_path, "iterations": 20, "lr": 1e-3}
    base = medic.train(**settings)
    longer = medic.train(extend=str(base.path), iterations=40, output=tmp_path)
    assert base.settings["hparams"]["anneal"] == longer.settings["hparams"]["anneal"] == 2
    assert medic.train(**{**settings, "iterations": 40}).settings["hparams"]["anneal"] == 4


def test_an_extension_is_shown_before_it_is_trained(short, tmp_path, capsys):
    longer = ["--extend", str(short.path), "--iterations", "9", "--output", str(tmp_path)]
    assert main(["train", *longer, "--dry-run"]) == 0
    assert "9 iterations" in capsys.readouterr().out
    assert main(["train", *longer, "--print-config"]) == 0
    assert "iterations: 9" in capsys.readouterr().out


def test_an_unfinished_extension_resumes_by_the_command_that_is_advised(short, tmp_path, capsys):
    whole = medic.train(extend=str(short.path), iterations=2 * SHORT["iterations"], output=tmp_path)
    expected = (whole.path / "model.safetensors").read_bytes()
    (whole.path / "done").unlink()
    with pytest.raises(MedicError, match=naming("unfinished")) as error:
        medic.Run(whole.path)
    command = str(error.value).split("`")[1].split()[1:]
    assert main(command) == 0
    assert (whole.path / "model.safetensors").read_bytes() == expected
    shutil.rmtree(whole.path)
    config = tmp_path / "alone.yaml"
    config.write_text(to_yaml({**read_settings(short.path / "settings.json"), "extend": short.hash, "iterations": 99}))
    assert main(["train", "--config", str(config)]) == 2
    assert "has no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [({}, "larger --iterations"), ({"iterations": SHORT["iterations"]}, "larger --iterations"),
     ({"iterations": 99, "lr": 0.5}, "lr --extend omit --lr")],
)  # fmt: skip
def test_what_cannot_be_extended(short, settings, message, tmp_path):
    with pytest.raises(MedicError, match=naming(message)):
        medic.train(extend=str(short.path), output=tmp_path, **settings)


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(MedicError, match=naming("nowhere does not exist")):
        medic.train(extend=str(tmp_path / "nowhere"), iterations=9)


@pytest.mark.parametrize("method", ["erm", "medic++"])
def test_every_domain_is_trained_on(mini, method, tmp_path):
    """Held-out images and unknown classes of all domains are evaluated, domain by domain."""
    run = medic.train(dataset=mini, method=method, output=tmp_path, **{**SHORT, "target": "none"})
    domains = ["handwritten", "printed", "street", "blended"]
    assert sorted(run.settings["sources"]) == sorted(domains)
    assert run.settings["target"] == ["none"]
    assert sorted(run.record["targets"]) == sorted(domains)
    predictions = run.predictions
    target = predictions["split"] == "target"
    held_out = set(predictions["path"][np.isin(predictions["split"], ["validation", "source-unknown"])])
    assert set(predictions["path"][target]) == held_out
    assert (predictions["label"][target] < 0).any()
    assert run.metrics["oscr"] == pytest.approx(sum(run.record["targets"][name]["oscr"] for name in domains) / 4)
    assert run.predictor.classes == tuple(run.settings["known"])


def test_some_domains_without_a_target(mini, tmp_path):
    run = medic.train(
        dataset=mini, method="erm", output=tmp_path, **{**SHORT, "target": "none"}, sources=["street", "printed"]
    )
    assert set(run.record["targets"]) == {"street", "printed"}


def test_a_sweep_extends_nothing(short, tmp_path):
    from medic.sweeps.sweep import Planner

    with pytest.raises(MedicError, match=naming("--extend medic train")):
        Planner().jobs([{"extend": str(short.path), "iterations": 99, "output": str(tmp_path)}])


def test_the_training_of_an_extended_run_is_not_repeated(short, tmp_path):
    from medic.analysis.load import repeated

    longer = medic.train(extend=str(short.path), iterations=6, output=tmp_path)
    with pytest.raises(MedicError, match=naming("extends another")), repeated(longer):
        pass


def test_defaults_of_an_earlier_version_are_not_mixed_with_ours(short, tmp_path, monkeypatch):
    """The checkpoint was trained with them."""
    earlier = shutil.copytree(short.path, tmp_path / "earlier")
    settings = {**short.settings, "weight_decay": 0.25, "inner_lr": 0.5}
    monkeypatch.setattr(medic.Run, "settings", settings)
    with pytest.raises(MedicError, match=naming("earlier version add --weight-decay 0.25 --inner-lr 0.5")):
        medic.train(extend=str(earlier), iterations=9, output=tmp_path)


def test_shares_of_the_iterations_lie_in_the_past(mini, tmp_path):
    """Of a network without batch norm, the first tenth trains the head alone; an extension does not begin again."""
    settings = {name: value for name, value in STEADY.items() if name != "iterations"}
    weights = tmp_path / "small.safetensors"
    save_file(create_backbone("small").module.state_dict(), weights)
    shared = {**settings, "dataset": mini, "method": "erm", "backbone": "small", "weights": str(weights)}
    base = medic.train(**shared, iterations=20, output=tmp_path)
    assert (base.config.optim.head_first, base.config.optim.warmup) == (2, 2)
    longer = medic.train(extend=str(base.path), iterations=40, output=tmp_path)
    assert (longer.config.optim.head_first, longer.config.optim.warmup) == (2, 2)


@pytest.mark.parametrize("iterations", [40, 45])
def test_a_run_with_the_default_average_is_extended(mini, tmp_path, iterations):
    """It ends at the end of a segment of SWAD, of which the longer run has more or longer ones."""
    settings = {"dataset": mini, "method": "erm", "output": tmp_path, **SHORT, "iterations": 20, "evaluate_every": 20}
    base = medic.train(**settings)
    longer = medic.train(extend=str(base.path), iterations=iterations, output=tmp_path, quiet=True)
    assert longer.config.optim.averaging == "swad"
    assert longer.records[-1]["averaged"]
    assert longer.records[-1]["iteration"] == iterations
