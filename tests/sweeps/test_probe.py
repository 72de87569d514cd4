"""A probe: heads of several methods on frozen features."""

import json
from pathlib import Path

import pytest

from medic.cli.main import main
from medic.errors import MedicError
from medic.openset import SCORES
from medic.results.runs import Runs
from medic.runs.train import train
from medic.sweeps.probe import compare_scores, plan_probe
from tests.messages import naming

SHORT = ["--iterations", "2", "--batch-size", "4", "--device", "cpu", "--quiet"]


def test_every_method_that_can_train_a_head(mini):
    jobs, left_out = plan_probe({"dataset": mini, "target": "street"}, [], ["0..1"])
    methods = {job.config.run.method for job in jobs}
    assert {"erm", "medic++", "coral", "onering"} <= methods
    assert {"mixstyle", "cirl", "daml"} <= left_out.keys()
    assert not methods & left_out.keys()
    assert len(jobs) == 2 * len(methods)
    assert all(job.config.model.tune == "head" and job.config.evaluation.all_scores for job in jobs)
    assert {job.directory.path.parent for job in jobs} == {Path("probe")}  # `runs` stays readable


def test_random_weights_are_noted(mini):
    with pytest.warns(UserWarning, match="backbone convnet has random weights: use --weights FILE"):
        plan_probe({"dataset": mini, "target": "street", "backbone": "convnet"}, ["erm"], [0])


def test_several_targets_are_left_out_in_turn(mini):
    jobs, _ = plan_probe({"dataset": mini, "target": ["street", "printed"]}, ["erm"], [0])
    assert [job.config.data.target for job in jobs] == [["street"], ["printed"]]


def test_another_folder(mini, tmp_path):
    jobs, _ = plan_probe({"dataset": mini, "target": "street", "output": tmp_path}, ["erm"], [0])
    assert [job.directory.path.parent for job in jobs] == [tmp_path]


def test_names_from_other_codebases(mini, tmp_path):
    jobs, _ = plan_probe({"dataset": mini, "target": "street", "output_dir": tmp_path}, ["erm"], [0])
    assert [job.directory.path.parent for job in jobs] == [tmp_path]
    with pytest.raises(MedicError, match="use --methods"):
        plan_probe({"dataset": mini, "algorithm": "erm"}, [], [0])


def test_it_prints_methods_and_scores(mini, tmp_path, capsys):
    arguments = ["probe", "--dataset", mini, "--methods", "erm", "medic++", "--seeds", "0", "--target", "street"]
    arguments += [*SHORT, "--executor", "here", "--output", str(tmp_path)]
    assert main(arguments) in (0, 1)  # two iterations may learn nothing
    printed = capsys.readouterr().out
    assert "H-score" in printed
    for name in ("mahalanobis", "openmax", "bcls", "vim"):
        assert name in printed
    assert f"2 runs are in {tmp_path}" in printed
    assert main([*arguments, "--json"]) == 0
    scores = {row["method"]: row for row in json.loads(capsys.readouterr().out)["oscr"]}
    assert scores["medic++"].keys() - {"method"} <= SCORES.keys()
    assert {"knn", "cls"} <= scores["erm"].keys()
    assert "bcls" not in scores["erm"]


@pytest.mark.parametrize(
    ("settings", "methods", "message"),
    [
        ({"tune": "all"}, [], "head --tune all"),
        ({"method": "erm"}, [], "methods --methods"),
        ({}, ["mixstyle"], "method 'mixstyle' freezes omit"),
        ({"target": "nowhere"}, [], "'nowhere'"),
    ],
)
def test_mistakes(mini, settings, methods, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_probe({"dataset": mini, **settings}, methods, [0])


def test_a_method_without_runs_on_a_target_has_no_means(mini, tmp_path):
    """It may have failed on the hardest target."""
    settings = {"dataset": mini, "target": ["street", "printed"], "output": tmp_path, "iterations": 2, "batch_size": 4}
    jobs, _ = plan_probe({**settings, "device": "cpu"}, ["erm", "medic++"], [0])
    runs = [train(job.user_settings, quiet=True) for job in jobs]
    whole = compare_scores(Runs(runs))
    assert [row.keys() > {"method", "energy"} for row in whole] == [True, True]
    assert compare_scores(Runs(runs[:3])) == [whole[0], {"method": "medic++"}]
