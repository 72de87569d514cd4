"""Scores of runs: fitted when a run ends, written with its model, and fitted later for finished runs."""

import pytest
import torch

import medic
from medic.errors import MedicError
from medic.openset import SCORES
from medic.runs.reevaluate import review
from tests.built import plan_of
from tests.messages import naming

SHORT = {
    "target": "street", "iterations": 2, "batch_size": 4, "device": "cpu", "track": "none", "quiet": True,
}  # fmt: skip
LINEAR = [name for name, score in SCORES.items() if "head" in score.needs]


@pytest.mark.parametrize("name", ["vim", "temperature", "rmds"])
def test_a_written_model_has_its_fitted_score(mini, tmp_path, name):
    run = medic.train(dataset=mini, **SHORT, score=name, output=str(tmp_path))
    assert run.description["score"] == {"name": name}
    score = medic.load(run.path).score
    for split in run.splits:
        output = run.outputs(split).output
        expected = torch.from_numpy(run.predictions["confidence"][run.predictions["split"] == split])
        torch.testing.assert_close(score(output), expected, rtol=1e-6, atol=1e-6)


def test_a_finished_run_with_features_has_every_score(mini, tmp_path):
    run = medic.train(dataset=mini, **SHORT, save_features=True, all_scores=True, output=str(tmp_path))
    by_score = review(run, None, "source")
    assert set(LINEAR) | {"knn", "rmds", "nnguide", "temperature", "kl-matching", "gen"} <= by_score.keys()
    for name, metrics in by_score.items():
        assert metrics["target"]["oscr"] == pytest.approx(run.metrics[f"oscr/{name}"], abs=1e-9), name


def test_a_finished_run_without_features_has_those_of_the_logits(mini, tmp_path):
    run = medic.train(dataset=mini, **SHORT, output=str(tmp_path))
    names = review(run, None, "source").keys()
    assert {"temperature", "kl-matching", "gen", "cls"} <= names
    assert not names & {*LINEAR, "knn", "rmds", "openmax"}
    with pytest.raises(MedicError, match=naming("'vim' --rerun --save-features")):
        review(run, "vim", "source")


@pytest.mark.parametrize(("method", "message"), [("arpl", "'react' linear --score"), ("daml", "'react' daml several")])
def test_heads_that_a_score_cannot_read(mini, method, message):
    with pytest.raises(MedicError, match=naming(message)):
        plan_of(dataset=mini, target="street", method=method, score="react")
