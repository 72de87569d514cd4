"""An exported graph decides as its model does, in its own runtime."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import scipy.special
import torch

import medic
from medic.data.inputs import to_pixels
from medic.deploy.export import export
from medic.errors import MedicError
from medic.openset import SCORES, Threshold
from medic.openset.thresholds import fixed
from tests.messages import naming


@pytest.fixture(scope="module")
def pixels(trained, images):
    rows = trained.predictions["split"] == "target"
    paths = [images / path for path in trained.predictions["path"][rows]]
    return torch.from_numpy(np.stack([to_pixels(path, trained.predictor.decoded) for path in paths]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bcls", "cls", "temperature", "platt"])
def test_onnx(trained, pixels, name, tmp_path):
    outputs = trained.predictor.outputs(pixels)
    score = SCORES[name].fit(outputs, torch.arange(len(pixels)) % 2)
    confidence = score(outputs).sort().values
    gap = int(confidence[4:-4].diff().argmax()) + 4  # a threshold on which rounding does not decide
    middle = float(confidence[gap : gap + 2].mean())
    model = dataclasses.replace(trained.predictor, score=score, threshold=Threshold(middle, "fixed"))
    assert export(model, tmp_path / "m.onnx", "onnx", pixels) < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    assert shapes == {
        "images": ["batch", 3, 36, 36],
        "label": ["batch"],
        "score": ["batch"],
        "logits": ["batch", 2],
    }
    for count in (1, 2, len(pixels)):
        label, scores, logits = session.run(None, {"images": pixels[:count].numpy()})
        predictions = model.decide(model.outputs(pixels[:count]))
        assert [model.classes[k] if k >= 0 else "unknown" for k in label] == [one.label for one in predictions]
        assert scores == pytest.approx([one.score for one in predictions], rel=1e-4)
        assert logits.shape == (count, 2)
        likeliest = [one.top[0][1] for one in predictions]
        assert scipy.special.softmax(logits, axis=1).max(1) == pytest.approx(likeliest, abs=1e-5)
    assert {"unknown"} < {one.label for one in predictions}  # the graph rejects some and accepts some
    noted = session.get_modelmeta().custom_metadata_map
    assert json.loads(noted["classes"]) == list(model.classes)
    assert "36 × 36" in noted["input"]


@pytest.mark.slow
def test_the_program_on_the_page_decides_like_the_model(trained, images, tmp_path, capsys, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "use.md").read_text()
    (program,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "onnxruntime" in block)
    paths = sorted((images / "z").rglob("*.png"))  # some are rotated by their EXIF
    scores = sorted(found.score for found in trained.predictor.predict(paths))
    gap = max(range(3, len(scores) - 3), key=lambda i: scores[i] - scores[i - 1])  # rounding does not decide there
    model = trained.predictor.at(fixed(trained.predictor.score, probability=(scores[gap - 1] + scores[gap]) / 2))
    (tmp_path / "runs" / "product").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    medic.export(model, "runs/product/model.onnx", images=paths)
    decided = set()
    for path in paths:
        shutil.copy(path, "photos/1.png")
        exec(program, {})
        label, score, threshold = capsys.readouterr().out.split()
        (found,) = model.predict(path)
        assert label == found.label
        assert float(score) == pytest.approx(found.score, rel=1e-4)
        assert float(threshold) == pytest.approx(model.display_threshold)
        decided.add(label)
    assert len(decided) > 1


@pytest.mark.slow
def test_torch_export(trained, pixels, tmp_path):
    model = trained.predictor
    assert export(model, tmp_path / "m.pt2", "torch-export", pixels) < 1e-6
    extra = {"model.json": ""}
    graph = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
    label, _, logits = graph(pixels[:5])
    torch.testing.assert_close(logits.detach(), model.outputs(pixels[:5]).logits)
    assert label.tolist() == trained.predictions["prediction"][trained.predictions["split"] == "target"][:5].tolist()
    assert json.loads(extra["model.json"])["classes"] == list(model.classes)


def test_a_graph_that_decides_otherwise_is_not_written(trained, pixels, tmp_path, monkeypatch):
    """The graph gets another threshold than the model that it is compared with."""
    from medic.deploy import export as module

    confidence = trained.predictor.score(trained.predictor.outputs(pixels))
    apart = Threshold(float(confidence.max()) + 1, "fixed")
    monkeypatch.setattr(module, "DecisionGraph", lambda p, make=module.DecisionGraph: make(p.at(apart)))
    with pytest.raises(MedicError, match=naming("decisions differ")):
        export(trained.predictor.at(Threshold(-apart.value, "fixed")), tmp_path / "m.pt2", "torch-export", pixels)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"), [({"views": 4}, "4 views"), ({"score": SCORES["knn"]}, "'knn' fitted cls")]
)
def test_what_has_no_graph(trained, pixels, change, message, tmp_path):
    with pytest.raises(MedicError, match=naming(message)):
        export(dataclasses.replace(trained.predictor, **change), tmp_path / "m.onnx", "onnx", pixels)


def test_the_command(trained, capsys, tmp_path):
    from medic.cli.main import main

    assert main(["export", str(trained.path), "--format", "torch-export", "-o", str(tmp_path / "a.pt2")]) == 0
    assert "same decisions" in capsys.readouterr().out
    assert main(["export", str(trained.path), "--format", "tflite"]) == 2
    assert main(["export", str(trained.path), "-o", str(tmp_path / "no" / "a.onnx")]) == 2
    assert "no/a.onnx cannot be written" in capsys.readouterr().err
