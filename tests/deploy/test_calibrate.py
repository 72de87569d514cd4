"""`medic calibrate`: what thresholds accept and reject, and the model with the chosen one."""

import csv
import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import medic
from medic.cli import main
from medic.deploy.calibration import Calibration, Labelled, label_images
from medic.errors import MedicError
from medic.evaluation.prediction_files import read_labels
from medic.openset import SCORES, Threshold, conformal, decide, hard_hscore, predicted_class
from medic.runs.left_out import left_out_settings
from medic.utils.outputs import Output
from tests.messages import naming
from tests.plugins import forgotten


@pytest.fixture
def labels(images, tmp_path):
    """A file with the true class of every image of the domain z; `bird` is no class of the model."""
    rows = [(str(path), path.parent.name) for path in sorted(images.glob("z/*/*.png"))]
    path = tmp_path / "labels.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return path


def calibrate(*arguments):
    return main(["calibrate", *map(str, arguments)])


def test_everything_is_shown_and_nothing_written(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert calibrate(trained.path) == 0
    out = capsys.readouterr().out
    assert "probability 0.5" in out
    assert "• current threshold" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("few", "noted"), [(100, True), (1, False)])
def test_percentages_of_few_images_are_uncertain(trained, labels, capsys, monkeypatch, few, noted):
    monkeypatch.setattr("medic.cli.calibrate.FEW", few)
    assert calibrate(trained.path, "--labels", labels) == 0
    out = capsys.readouterr().out
    count = int(re.search(r"(\d+) unknown images", out)[1])  # fewer than the known ones
    note = f"with only {count} images, a percentage can be wrong by {1.96 * 50 / math.sqrt(count):.0f} points"
    assert (note in out) == noted


def test_a_run_is_not_overwritten(trained, capsys):
    before = (trained.path / "model.json").read_bytes()
    assert calibrate(trained.path, "--threshold", 0.5, "--output", trained.path) == 2
    assert "contains other files" in capsys.readouterr().err
    assert (trained.path / "model.json").read_bytes() == before


def test_a_saved_model_is_replaced(trained, tmp_path, capsys):
    for threshold in (0.4, 0.5):
        assert calibrate(trained.path, "--threshold", threshold, "--output", tmp_path) == 0
        assert medic.load(tmp_path).threshold.display_value == pytest.approx(threshold)
    assert "replaced" in capsys.readouterr().out
    assert calibrate(tmp_path, "--threshold", 0.6, "--output", tmp_path) == 0
    assert medic.load(tmp_path).threshold.display_value == pytest.approx(0.6)


def test_a_folder_of_other_files_is_not_written_to(trained, tmp_path, capsys):
    (tmp_path / "photo.png").touch()
    assert calibrate(trained.path, "--threshold", 0.5, "--output", tmp_path) == 2
    assert "contains other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["photo.png"]


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_written_model_accepts_what_was_asked(trained, tmp_path, share, capsys):
    assert calibrate(trained.path, "--accept", share, "--output", tmp_path / "model") == 0
    assert "→" in capsys.readouterr().out
    model = medic.load(tmp_path / "model")
    assert model.threshold.rule == f"accept {100 * share:g}%"
    assert model.description["calibration"]["known"] == len(trained.outputs("validation").label)
    validation = trained.outputs("validation").output
    accepted = float((model.score(validation) >= model.threshold.value).double().mean())
    assert accepted >= share
    old = trained.predictor.network.state_dict()
    assert all(torch.equal(weights, old[name]) for name, weights in model.network.state_dict().items())


def test_labels_choose_the_best_hscore(trained, labels, tmp_path):
    assert calibrate(trained.path, "--labels", labels, "--output", tmp_path / "model") == 0
    model = medic.load(tmp_path / "model")
    labelled = label_images(model, read_labels(labels), "")
    confidence, prediction = model.score(labelled.output), predicted_class(labelled.output)

    def hscore(value):
        return hard_hscore(decide(confidence, prediction, value), labelled.label).hscore

    tried = np.linspace(float(confidence.min()) - 1, float(confidence.max()) + 1, 500)
    assert hscore(model.threshold.value) >= max(map(hscore, tried))


def test_without_unknown_images_a_note_says_how_to_add_some(trained, labels, images, tmp_path, capsys):
    known = tmp_path / "known.csv"
    known.write_text("\n".join(line for line in labels.read_text().splitlines() if "owl" not in line) + "\n")
    assert calibrate(trained.path, "--labels", known, "--accept", 0.5) == 0
    out = capsys.readouterr().out
    assert "and 0 unknown images: labelled images" in out
    assert "the table shows only what each threshold costs" in out
    assert "from the domains of these images" in out
    for arguments in (["--labels", labels], ["--labels", known, "--accept", 0.5, "--images", images]):
        assert calibrate(trained.path, *arguments) == 0
        assert "only what each threshold costs" not in capsys.readouterr().out


def test_predictions_are_no_labels(trained, images, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    assert main(["predict", str(trained.path), str(images / "z"), "-o", str(rows)]) == 0
    assert calibrate(trained.path, "--labels", rows) == 2
    error = capsys.readouterr().err
    assert f"file {rows} was written by `medic predict`, so its labels are predictions: add a column 'class'" in error
    assert "--labels" not in error


def test_an_effect_is_what_predictions_do(trained, labels):
    calibration = Calibration(trained.predictor, label_images(trained.predictor, read_labels(labels), ""))
    effect = calibration.effect(trained.predictor.at(0.5).threshold)
    predictions = trained.predictor.at(0.5).predict([path for path, _ in read_labels(labels)])
    known = [
        (one, label)
        for one, (_, label) in zip(predictions, read_labels(labels), strict=True)
        if label in ("cat", "dog")
    ]
    others = [
        one for one, (_, label) in zip(predictions, read_labels(labels), strict=True) if label not in ("cat", "dog")
    ]
    assert effect.accepted == np.mean([one.known for one, _ in known])
    assert effect.named == np.mean([one.label == label for one, label in known])
    assert effect.rejected == np.mean([not one.known for one in others])


def test_classes_that_test_a_target_do_not_choose(trained, settings, tmp_path, capsys):
    assert calibrate(trained.path, "--cost", 2) == 2
    assert "pass your own images with --labels" in capsys.readouterr().err
    assert calibrate(trained.path) == 0
    out = capsys.readouterr().out
    assert "unknown rejected" in out
    assert "best H-score" not in out
    product = medic.train(**{**settings, "target": "none"}, output=tmp_path, quiet=True)
    assert calibrate(product.path, "--cost", 2, "--force") == 0
    assert "cost 2" in capsys.readouterr().out


def test_images_without_labels_are_divided(trained, images, capsys):
    assert calibrate(trained.path, "--images", images) == 0
    out = capsys.readouterr().out
    assert "two components" in out
    assert "unlabelled image" in out


def test_a_model_alone_can_be_calibrated_on_images(trained, labels, tmp_path, capsys):
    trained.predictor.save(tmp_path / "alone")
    assert calibrate(tmp_path / "alone", "--labels", labels, "--cost", 2) == 0
    assert "cost 2" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "expected"), [
    ("", "labels.csv"),
    ("image,class\na.png,cat\n", "no column 'path'"),
    ("path,name\na.png,cat\n", "no column 'label'"),
    ("path,label\n", "no rows"),
    ("path,label\na.png,\n", "row 1: the label is empty"),
    ("path,label\na.png,cat\na.png,dog\n", "2 rows for a.png"),
    ("path,label\nmissing.png,cat\n", "missing.png"),
    ("path,label\na.png,zebra\n", "no label is a class of the model"),
])  # fmt: skip
def test_bad_labels(trained, tmp_path, capsys, content, expected):
    path = tmp_path / "labels.csv"
    path.write_text(content)
    assert calibrate(trained.path, "--labels", path) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("options", [
    ("--accept", "1.5"), ("--accept", "0"), ("--accept", "0.999"), ("--accept", "1"), ("--cost", "inf"),
    ("--threshold", "2"), ("--cost", "-1"), ("--labels", "/nowhere.csv"),
    ("--images", "/nowhere"), ("--output", "x"), ("--accept", "0.9", "--cost", "2"),
])  # fmt: skip
def test_mistakes_are_one_line(trained, capsys, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert calibrate(trained.path, *options) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_unreadable_images_are_left_out(trained, images, tmp_path, capsys):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    assert calibrate(trained.path, "--threshold", 0.5, "--images", images / "z", bad) == 0
    said = capsys.readouterr()
    assert "skipped 1 unreadable image" in said.err
    assert "images accepted" in said.out
    assert calibrate(trained.path, "--threshold", 0.5, "--images", bad) == 2


def scored(confidence):
    """Outputs of two classes whose largest logit is given."""
    values = torch.as_tensor(confidence, dtype=torch.float64)
    return Output(torch.stack([values, values - 1], dim=1))


@pytest.fixture
def predictor(trained):
    """The model with a score that is the largest logit itself."""
    return dataclasses.replace(trained.predictor, score=SCORES["max-logit"], threshold=Threshold(3.0, "fixed"))


def test_two_components_need_twenty_images(predictor):
    few, enough = (Calibration(predictor, None, scored(torch.linspace(0, 9, count))) for count in (19, 20))
    with pytest.raises(MedicError, match=naming("at least 20 images 19")):
        few.dividing()
    assert 0 < enough.dividing().value < 9
    assert [one.rule for one in few.comparisons()] == ["fixed"]
    assert [one.rule for one in enough.comparisons()] == ["fixed", "two components"]


@pytest.mark.parametrize(("count", "rates"), [(8, [0.8, 0.7]), (9, [0.9, 0.8, 0.7]), (19, [0.95, 0.9, 0.8, 0.7])])
def test_the_rates_that_so_many_known_images_allow(predictor, count, rates):
    labelled = Labelled(scored(torch.arange(10.0, 10 + count)), torch.zeros(count, dtype=torch.long), "")
    rules = [one.rule for one in Calibration(predictor, labelled).comparisons()]
    assert rules == ["fixed", *(f"accept {100 * rate:g}%" for rate in rates)]


def test_images_on_the_threshold_are_accepted(predictor):
    labelled = Labelled(scored([3.0, 4.0, 2.0, 3.0]), torch.tensor([0, 0, 0, -1]), "")
    effect = Calibration(predictor, labelled, scored([3.0, 2.0])).effect(predictor.threshold)
    assert (effect.accepted, effect.rejected, effect.unlabelled) == (pytest.approx(2 / 3), 0.0, 0.5)


@pytest.fixture
def own_run(settings, tmp_path):
    """A run with a folder of its own, beside which others are trained."""
    return medic.train(**settings, output=tmp_path / "runs", quiet=True)


def test_a_threshold_that_holds_in_left_out_domains(own_run, tmp_path, capsys):
    assert calibrate(own_run.path, "--left-out", "--accept", 0.5, "--output", tmp_path / "model", "--force") == 0
    out, err = capsys.readouterr()
    assert "accept 50% of left-out domains" in out
    assert "every class is known" not in err  # the runs that medic adds have no unknown classes
    assert "the percentages refer to held-out images from domains that the model was trained on" in out
    assert "accepts more images than `--accept`, including unknown images" in out
    others = [medic.Run(done.parent) for done in (own_run.path.parent / "left-out").glob("*/done")]
    assert {run.targets for run in others} == {("x",), ("y",)}
    assert all(run.config.data.known == own_run.config.data.known and run.config.data.unknown == [] for run in others)
    assert all("z" not in run.config.data.sources for run in others)
    confidence = {run.targets[0]: run.score(run.outputs("target").output) for run in others}
    model = medic.load(tmp_path / "model")
    assert model.threshold.value == min(conformal(values, 0.5) for values in confidence.values())
    assert {domain: len(values) for domain, values in confidence.items()} == model.description["calibration"][
        "left out"
    ]
    for domain, values in confidence.items():
        assert torch.equal(model.held_out.known[domain], values.double().sort().values)
    predictions = model.predict(sorted(Path(own_run.settings["root"]).glob("z/*/*.png")))
    assert all(prediction.known == (prediction.p_value > 0.5) for prediction in predictions)
    before = {run.path: (run.path / "done").stat().st_mtime_ns for run in others}
    assert calibrate(own_run.path, "--left-out", "--force") == 0  # reuses the runs
    assert {path: (path / "done").stat().st_mtime_ns for path in before} == before


def test_left_out_domains_in_python(own_run):
    model = medic.calibrate(own_run, left_out=True, accept=0.5, force=True)
    assert model.threshold.rule == "accept 50% of left-out domains"
    with pytest.raises(MedicError, match=naming("left_out threshold")):
        medic.calibrate(own_run, left_out=True, threshold=0.5, force=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--left-out", "--cost", 2], "--left-out --cost"),
        (["--left-out", "--threshold", 0.5], "--left-out --threshold"),
    ],
)
def test_left_out_domains_choose_alone(trained, options, words, capsys):
    assert calibrate(trained.path, *options) == 2
    assert re.search(naming(words), capsys.readouterr().err)


def test_a_model_without_its_run_has_no_domains_to_leave_out(trained, tmp_path, capsys):
    trained.predictor.save(tmp_path / "model")
    assert calibrate(tmp_path / "model", "--left-out", "--force") == 2
    assert re.search(naming("leaving out run directory"), capsys.readouterr().err)


def test_code_that_a_run_names_is_not_executed(settings, tmp_path, capsys):
    """A run of somebody else must not decide which code runs."""
    (tmp_path / "theirs.py").write_text("print('executed')\n")
    with forgotten():
        run = medic.train(**settings, imports=[str(tmp_path / "theirs.py")], output=tmp_path / "runs", quiet=True)
        capsys.readouterr()
    with forgotten():
        assert calibrate(run.path, "--left-out", "--force", "--accept", 0.5) == 2
        out, err = capsys.readouterr()
        assert "executed" not in out
        assert re.search(naming("--import theirs.py"), err)
        options = ("--left-out", "--force", "--accept", 0.5, "--import", tmp_path / "theirs.py")
        assert calibrate(run.path, *options) == 0


def test_runs_without_a_domain_keep_the_settings_of_the_run(settings, tmp_path):
    run = medic.train(**settings, lr=0.02, clip_norm=3.0, output=tmp_path / "runs", quiet=True)
    for source, own in left_out_settings(run):
        assert own["target"] == [source]
        assert (own["lr"], own["clip_norm"], own["iterations"]) == (0.02, 3.0, 2)
        assert own["hparams"] == run.settings["hparams"]
        assert not own.keys() & {"imports", "name", "split"}


def test_infinite_confidences_are_kept(trained, tmp_path):
    known = {"sources": torch.tensor([-torch.inf, 0.0, torch.inf, torch.inf], dtype=torch.float64)}
    held_out = dataclasses.replace(trained.predictor.held_out, known=known)
    dataclasses.replace(trained.predictor, held_out=held_out).save(tmp_path / "model")
    assert torch.equal(medic.load(tmp_path / "model").held_out.known["sources"], known["sources"])
