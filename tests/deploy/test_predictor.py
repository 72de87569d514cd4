"""A model in use decides as it did in evaluation, on images of any kind."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import medic
from medic.data.decode import BadImage
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.errors import MedicError
from medic.openset import SCORES, Temperature, Threshold
from medic.utils.outputs import Output
from tests.messages import naming


@pytest.fixture(scope="module")
def target(trained, images):
    """The target images of the run, with its predictions."""
    rows = trained.predictions["split"] == "target"
    kept = {name: values[rows] for name, values in trained.predictions.items()}
    return [images / path for path in kept["path"]], kept


def alike(one, other):
    """Assert that two predictions are equal up to the last digits."""
    assert (one.label, one.known, [name for name, _ in one.top]) == (
        other.label,
        other.known,
        [n for n, _ in other.top],
    )
    assert [one.score, *(p for _, p in one.top)] == pytest.approx([other.score, *(p for _, p in other.top)], rel=1e-5)


def test_the_decisions_are_those_of_the_evaluation(trained, target):
    paths, kept = target
    predictions = trained.predictor.predict(paths)
    labels = [trained.predictor.classes.index(one.label) if one.known else -1 for one in predictions]
    assert labels == kept["prediction"].tolist()
    scores = torch.from_numpy(kept["confidence"]).sigmoid()
    torch.testing.assert_close(torch.tensor([one.score for one in predictions]).double(), scores, rtol=1e-5, atol=1e-6)
    probabilities = torch.from_numpy(kept["logits"]).double().softmax(1)
    for one, row in zip(predictions, probabilities, strict=True):
        assert [name for name, _ in one.top] == [trained.predictor.classes[k] for k in row.argsort(descending=True)]
        assert [value for _, value in one.top] == pytest.approx(row.sort(descending=True).values.tolist(), rel=1e-4)


def test_class_probabilities_have_the_temperature_of_the_score(trained, images):
    """The score of an image is then the probability of its class."""
    score = dataclasses.replace(SCORES["temperature"], function=Temperature(torch.tensor(0.3)), fitter=None)
    model = dataclasses.replace(trained.predictor, score=score, threshold=Threshold(0.0, "fixed", 0.5))
    for one in model.predict(images / "z"):
        assert one.top[0][1] == pytest.approx(one.score, abs=1e-9)
        assert sum(probability for _, probability in one.top) == pytest.approx(1.0)


def test_a_folder_stands_for_its_images(trained, images, tmp_path):
    model = trained.predictor
    paths = sorted(images.glob("z/*/*.png"))
    for folder in (images / "z", str(images / "z")):
        assert model.predict(folder) == model.predict(paths)
    with pytest.raises(MedicError, match=naming("no images")):
        model.predict(tmp_path)
    with pytest.raises(BadImage, match=naming(f"{tmp_path} folder")):
        model.predict([tmp_path])


def test_a_model_is_printed_in_one_line(trained):
    model = trained.predictor.at(0.75)
    assert repr(model) == "Predictor(2 classes, convnet at 32 px, score bcls, threshold 0.75)"
    assert repr(dataclasses.replace(model, description={})).startswith("Predictor(2 classes, 32 px, ")


def test_any_kind_of_image_gives_the_same_prediction(trained, target):
    path = target[0][1]
    opened = Image.open(path)
    array = np.asarray(opened.convert("RGB"))
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    kinds = [path, str(path), path.read_bytes(), opened, array, tensor, array / 255, tensor.float() / 255]
    predictions = trained.predictor.predict(kinds)
    assert all(one == predictions[0] for one in predictions)
    for some in (path, torch.stack([tensor, tensor]), np.stack([array])):  # other batches change the last digits
        alike(trained.predictor.predict(some)[-1], predictions[0])


def test_a_rotated_photograph_is_upright(trained, target):
    path = target[0][0]
    with Image.open(path) as opened:
        assert opened.getexif()[0x0112] == 6
        upright = np.asarray(opened.convert("RGB").rotate(-90, expand=True))
    assert trained.predictor.predict(path) == trained.predictor.predict(upright)


def test_an_unreadable_image_keeps_its_place(trained, target, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    mixed = [target[0][0], tmp_path / "bad.png", target[0][1]]
    first, bad, last = trained.predictor.stream(mixed, batch_size=2)
    for one, path in ((first, target[0][0]), (last, target[0][1])):
        alike(one, trained.predictor.predict(path)[0])
    assert isinstance(bad, BadImage)
    with pytest.raises(BadImage, match=naming("bad.png")):
        trained.predictor.predict(mixed)


@pytest.mark.parametrize(
    ("image", "message"),
    [(np.zeros((4, 4, 7), np.uint8), "(4, 4, 7) (H, W, 3)"), (np.full((4, 4), 2.0), "outside [0, 1]"),
     (np.zeros((4, 4), np.int64), "int64 uint8"), (torch.full((3, 4, 4), torch.nan), "outside"), (3, "got int")],
)  # fmt: skip
def test_what_is_not_an_image_is_said(trained, image, message):
    with pytest.raises(MedicError, match=naming(message)):
        trained.predictor.predict([image])


def test_images_are_read_as_they_are_needed(trained, target):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield target[0][0]

    stream = trained.predictor.stream(endless(), batch_size=2)
    for _ in range(6):
        next(stream)
    stream.close()
    assert len(taken) < 20


def test_views_of_an_image_do_not_depend_on_its_place(trained, target):
    several = dataclasses.replace(trained.predictor, views=4)
    paths = target[0][:3]
    together = several.predict(paths)
    for one, path in zip(together, paths, strict=True):
        alike(one, several.predict(path)[0])
    plain = [one.score for one in trained.predictor.predict(paths)]
    assert [one.score for one in together] != pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("score", ["bcls", "knn", "openmax"])
def test_two_files_suffice(settings, target, score, tmp_path):
    run = medic.train(**settings, score=score, output=tmp_path / "runs", quiet=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in (DESCRIPTION, WEIGHTS):
        shutil.copy(run.path / name, alone)
    model = medic.load(alone)
    assert model.predict(target[0]) == run.predictor.predict(target[0])
    model.save(tmp_path / "again")
    assert medic.load(tmp_path / "again").predict(target[0]) == model.predict(target[0])
    assert json.loads((tmp_path / "again" / DESCRIPTION).read_text()) == json.loads((alone / DESCRIPTION).read_text())


def test_another_threshold(trained, target):
    never = trained.predictor.at(Threshold(float("inf"), "fixed"))
    assert {one.label for one in never.predict(target[0])} == {"unknown"}
    always = trained.predictor.at(Threshold(float("-inf"), "fixed"))
    assert all(one.known for one in always.predict(target[0]))


def test_a_damaged_pil_image_is_an_unreadable_one(trained, images, tmp_path):
    content = next(images.glob("z/*/*.png")).read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "cut.png") as image:
        [outcome] = trained.predictor.stream([image])
    assert isinstance(outcome, BadImage)


def test_what_is_no_image_is_named(trained):
    with pytest.raises(MedicError, match="got int"):
        trained.predictor.predict(3)


def scored_by_max_logit(trained, threshold):
    """The model with a score that is the largest logit itself."""
    return dataclasses.replace(trained.predictor, score=SCORES["max-logit"], threshold=Threshold(threshold, "fixed"))


@pytest.mark.parametrize("logits", [[math.inf, 0.0], [1.0, -math.inf], [math.nan, 0.0]])
def test_logits_that_are_not_finite_decide_nothing(trained, logits):
    """The confidence may be a number all the same."""
    with pytest.raises(MedicError, match=naming("NaN infinity")):
        scored_by_max_logit(trained, 0.0).decide(Output(torch.tensor([[2.0, 1.0], logits])))


def test_an_image_on_the_threshold_is_known(trained):
    output = Output(torch.tensor([[2.0, 1.0], [1.0, 1.9999]]))
    predictions = scored_by_max_logit(trained, 2.0).decide(output)
    assert [one.label for one in predictions] == [trained.predictor.classes[0], "unknown"]
    assert [one.known for one in predictions] == [True, False]


def test_a_model_is_not_saved_among_other_files(trained, tmp_path):
    (tmp_path / "photo.png").touch()
    for place in (tmp_path, tmp_path / "photo.png"):
        with pytest.raises(MedicError, match="contains other files: choose a new folder"):
            trained.predictor.save(place)
    with pytest.raises(MedicError, match="threshold must be a number, got 'half'"):
        trained.predictor.at("half")
