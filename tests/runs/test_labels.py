"""Labels that are probably wrong: confident learning, and flipped labels in a folder of pictures."""

import csv
import random
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

import medic
from medic.analysis.wrong_labels import HeldOut, confident_classes, held_out, wrong_labels
from medic.cli import main
from medic.errors import MedicError


def test_thresholds_are_mean_self_confidences():
    """By hand: t = (0.6, 0.7), so the second image reaches class 1 alone, and the third reaches none."""
    probability = np.array([[0.9, 0.1], [0.3, 0.7], [0.1, 0.9], [0.5, 0.5]])
    label = np.array([0, 0, 1, 1])
    assert confident_classes(probability, label).tolist() == [0, 1, 1, 1]
    suspects = wrong_labels(HeldOut(["a", "b"], list("wxyz"), label, probability))
    assert [(one.path, one.label, one.probably, one.confidence) for one in suspects] == [("x", "a", "b", 0.3)]


def test_the_confident_joint_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    probability, label = rng.dirichlet(np.ones(4), 500), rng.integers(0, 4, 500)
    confident = confident_classes(probability, label)
    for row in range(500):
        reached = [j for j in range(4) if probability[row, j] >= probability[label == j, j].mean()]
        assert confident[row] == max(reached, key=lambda j: probability[row, j], default=label[row])


def test_a_class_without_images_is_never_suggested():
    assert confident_classes(np.array([[0.1, 0.2, 0.7]] * 3), np.array([0, 0, 1])).tolist() == [1, 1, 1]


def test_predictions_of_several_runs_are_averaged_by_path():
    def run(classes, paths, names, logits, split=None):
        return SimpleNamespace(
            path="r", classes=classes, true_classes=np.array(names),
            predictions={
                "path": np.array(paths), "split": np.array(split or ["validation"] * len(paths)),
                "label": np.array([classes.index(name) for name in names]), "logits": np.log(np.array(logits)),
            },
        )  # fmt: skip

    labels = {"x": "a", "y": "b", "moved": "a"}
    one = run(["a", "b"], ["x", "y", "gone", "moved"], ["a", "b", "a", "b"], [[0.8, 0.2]] * 4)
    two = run(["b", "a"], ["x", "y"], ["a", "b"], [[0.6, 0.4]] * 2, ["validation", "target"])
    averaged = held_out([one, two], labels)
    assert (averaged.classes, averaged.path, averaged.label.tolist()) == (["a", "b"], ["x", "y"], [0, 1])
    np.testing.assert_allclose(averaged.probability, [[0.6, 0.4], [0.8, 0.2]])
    with pytest.raises(MedicError, match="different known classes"):
        held_out([one, run(["a", "c"], ["x"], ["a"], [[0.5, 0.5]])], labels)
    with pytest.raises(MedicError, match="held out none of these images"):
        held_out([one], {"other": "a"})


@pytest.mark.slow
def test_flipped_labels_are_found(tmp_path, monkeypatch, capsys):
    """A tenth of the pictures of three shapes is in the folder of another shape."""
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    random.seed(0)
    root, flips = tmp_path / "root", set()
    for domain, colours in {"day": ("white", "navy"), "night": ("black", "gold"), "wood": ("green", "white")}.items():
        for shape in ("ball", "bar", "frame"):
            for number in range(40):
                image = Image.new("RGB", (32, 32), colours[0])
                draw, x, y = ImageDraw.Draw(image), random.randint(1, 8), random.randint(1, 8)
                draw.point((31, 31), (number, number, 9))  # so that no two are equal
                if shape == "ball":
                    draw.ellipse((x, y, x + 20, y + 20), fill=colours[1])
                elif shape == "bar":
                    draw.rectangle((x, y + 8, x + 20, y + 12), fill=colours[1])
                else:
                    draw.rectangle((x, y, x + 20, y + 20), outline=colours[1], width=3)
                folder = random.choice([n for n in ("ball", "bar", "frame") if n != shape]) if number < 4 else shape
                path = root / domain / folder / f"{shape}{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
                flips |= {path.relative_to(root).as_posix()} if folder != shape else set()
    run = medic.train(
        dataset="folder", root=str(root), target="none", known=["ball", "bar", "frame"], backbone="convnet", images=36,
        image_size=32, iterations=60, lr=0.05, holdout=0.4, augment="none", method="erm", track="none", device="cpu",
        output=tmp_path / "runs", quiet=True,
    )  # fmt: skip
    output = tmp_path / "found.csv"
    assert main(["data", "check", "folder", "--root", str(root), "-o", str(output), "--runs", str(run.path)]) == 0
    held = set(run.predictions["path"].tolist())
    with output.open() as file:
        flagged = {row["path"]: row for row in csv.DictReader(file) if row["finding"] == "label"}
    there = flips & held
    assert len(there) >= 5
    assert len(flagged.keys() & there) / len(there) >= 0.8  # recall
    assert len(flagged.keys() & there) / len(flagged) >= 0.8  # precision
    right = [row["path"].rpartition("/")[2].startswith(row["other_class"]) for row in flagged.values()]
    assert np.mean(right) >= 0.8
    out = capsys.readouterr().out
    assert f"labels that are probably wrong: {len(flagged)} of {len(held)} held-out images" in out
    assert f"labels not checked: {360 - len(held)} images" in out
