"""Models go to the hub and come back as they were; the hub is a server of our own."""

import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

import medic
from medic.cli import main
from medic.deploy.hub import make_card, without_paths
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.errors import MedicError
from tests.deploy.hub import NAME, serve_hub
from tests.messages import naming


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub, which the hub's library asks."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home"))
    with serve_hub(monkeypatch) as hub:
        yield hub


@pytest.fixture
def pushed(hub, trained, capsys):
    """The hub with the model of a run."""
    assert main(["push", str(trained.path), NAME, "--private", "--license", "mit"]) == 0
    assert capsys.readouterr().out == f"{hub.url}/{NAME}\n"
    return hub


def test_a_model_comes_back_as_it_was(pushed, trained, images, tmp_path, capsys):
    assert set(pushed.files) == {"README.md", DESCRIPTION, WEIGHTS}
    created = pushed.created[0]
    assert created["name"] == "pets"
    assert created.get("visibility") == "private" or created["private"] is True  # which depends on the hub's library
    assert main(["pull", NAME, str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"
    assert {path.name for path in (tmp_path / "model").iterdir()} == set(pushed.files)
    paths = sorted((images / "z").rglob("*.png"))
    assert medic.load(tmp_path / "model").predict(paths) == trained.predictor.predict(paths)
    assert sorted(set(pushed.fetched)) == sorted(pushed.files)


def test_the_card_has_metadata_results_and_no_path(pushed, trained, images):
    card = pushed.files["README.md"].decode()
    _, header, text = card.split("---\n", 2)
    metadata = yaml.safe_load(header)
    assert metadata["library_name"] == "medic"
    assert metadata["pipeline_tag"] == "image-classification"
    assert metadata["license"] == "mit"
    assert "datasets" not in metadata  # a person's own folder is none of the hub
    (result,) = metadata["model-index"][0]["results"]
    assert "target z" in result["dataset"]["name"]
    measured = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert measured["acc"] == pytest.approx(trained.metrics["acc"], abs=1e-4)
    assert f'medic.pull("{NAME}"' in text
    assert "cat, dog" in text
    assert trained.predictor.threshold.rule in text
    for content in pushed.files.values():
        for path in (str(Path.home()), str(images), str(trained.path)):
            assert path.encode() not in content


def test_the_card_says_what_the_threshold_saw(trained):
    card = make_card(trained.predictor, NAME, trained.metrics, None)
    assert "Measured on the domain z, used neither for training nor for the threshold." in card
    assert "| H-score |" in card
    assert "medic calibrate" in card
    assert "model.at(X)" in card


@pytest.mark.parametrize("other", [{"threshold_rule": "oracle-10"}, {"threshold": 0.123}])
def test_the_card_has_no_metric_at_another_threshold(trained, other):
    card = make_card(trained.predictor, NAME, {**trained.metrics, **other}, None)
    assert "neither" not in card
    assert "These metrics do not depend on a threshold." in card
    assert f"by the rule {other.get('threshold_rule', 'source')!r}" in card
    assert "H-score" not in card
    assert "hscore" not in card
    assert "| OSCR |" in card


@pytest.mark.parametrize(("rule", "has_hscore", "words"), [
    ("oracle-10", False, "which was not used for training. These metrics do not depend on a threshold."),
    ("two-components", True, "The threshold was chosen on these images, without their labels."),
])  # fmt: skip
def test_the_card_of_a_run_with_a_rule_that_sees_the_target(settings, tmp_path, rule, has_hscore, words):
    run = medic.train(**settings, threshold=rule, output=tmp_path, quiet=True)
    card = make_card(run.predictor, NAME, run.metrics, None)
    assert words in card
    assert "neither" not in card
    assert ("| H-score |" in card) is has_hscore


def test_paths_of_a_machine_are_left_out():
    home = str(Path.home())
    settings = {
        "a": "/data/x",
        "b": {"c": "C:\\x", "d": "pacs"},
        "e": ["~/x", "photo"],
        "f": f"in {home}/x",
        "g": 3,
        "/h": 1,
    }
    assert without_paths(settings) == {"b": {"d": "pacs"}, "e": ["photo"], "g": 3}


def test_nothing_is_sent_to_a_public_model_with_private(hub, trained, capsys):
    hub.private = False
    assert main(["push", str(trained.path), NAME, "--private"]) == 2
    assert "public" in capsys.readouterr().err
    assert hub.files == {}
    assert main(["push", str(trained.path), NAME]) == 0


def refuses(hub, tmp_path, words):
    with pytest.raises(MedicError, match=naming(words)) as caught:
        medic.pull(NAME, tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists() or not list((tmp_path / "model").iterdir())


def test_what_is_no_model_is_not_fetched(hub, tmp_path):
    hub.files = {"README.md": b"", "pytorch_model.bin": b"x"}
    refuses(hub, tmp_path, f"{NAME} {DESCRIPTION}")
    assert hub.fetched == []


@pytest.mark.parametrize(("file", "size"), [("README.md", 2**20 + 1), (DESCRIPTION, 2**25), (WEIGHTS, 2**40)])
def test_what_is_too_large_is_not_fetched(pushed, tmp_path, file, size):
    pushed.sizes = {file: size}
    refuses(pushed, tmp_path, f"{NAME} {file} MiB")
    assert pushed.fetched == []


def test_other_files_of_a_repository_are_not_fetched(pushed, tmp_path):
    pushed.files["../evil"] = pushed.files["train.py"] = b"import os"
    medic.pull(NAME, tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"README.md", DESCRIPTION, WEIGHTS}
    assert not (tmp_path / "evil").exists()


def test_a_strangers_model_is_checked_before_it_is_there(pushed, tmp_path):
    described = json.loads(pushed.files[DESCRIPTION])
    pushed.files[DESCRIPTION] = json.dumps({**described, "classes": ["a", "b", "c"]}).encode()
    refuses(pushed, tmp_path, "checksum mismatch")
    del described["checksum"]
    pushed.files[DESCRIPTION] = json.dumps({**described, "classes": ["a", "b", "c"]}).encode()
    refuses(pushed, tmp_path, "weights")


def test_a_folder_that_has_a_model_is_kept(pushed, trained):
    with pytest.raises(MedicError, match=naming("exists another folder")):
        medic.pull(NAME, trained.path)


@pytest.mark.parametrize("name", ["pets", "a/b/c", "../x", "a/../b", "https://hf.co/a/b", "", "a/" + "b" * 200, "é/x"])
def test_names(name, trained, tmp_path, capsys):
    for command in (["push", str(trained.path), name], ["pull", name, str(tmp_path / "model")]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "OWNER/NAME" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_hub_that_refuses_or_does_not_answer(hub, trained, tmp_path, monkeypatch, capsys):
    for name in ("other/model", NAME):
        assert main(["pull", name, str(tmp_path / "model")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for command in (["push", str(trained.path), NAME], ["pull", NAME, str(tmp_path / "model")]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith("medic: error: could not ")
        assert NAME in error
        assert error.count("\n") == 1
    assert not (tmp_path / "model").exists()
