"""The tutorials are run from top to bottom, on few images and for few iterations."""

from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import sklearn
from safetensors.torch import save_file
from torch import nn

import medic
import medic.objectives
from medic.models import HALVES, OURS
from tests.pages import DOCS, blocks, run_page
from tests.plugins import forgotten
from tests.small import record_no_chance, small_network

SMALLER = {
    r"--dataset digits": "--dataset mini",
    r'"digits"': '"mini"',
    r"digits-10-0": "mini-10-0",
    r"--iterations \d+": "--iterations 2",
    r'"iterations": \d+': '"iterations": 2',
}
LOOP = "docs/tutorials/loop.md"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory with an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_each_tutorial_is_run():
    run = ["domainbed", "loop", "method", "photographs", "report"]
    assert sorted(path.stem for path in (DOCS / "tutorials").glob("*.md")) == run


@pytest.mark.slow
def test_photographs(here, capsys, monkeypatch):
    """The weights that the page downloads lie in the hub's cache, with random values; images have 32 pixels."""
    cached = here / "hub" / "models--timm--resnet18.tv_in1k"
    (cached / "snapshots" / "0").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    save_file(medic.create_backbone("resnet18").module.state_dict(), cached / "snapshots" / "0" / "model.safetensors")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(here / "hub"))
    record_no_chance(monkeypatch)
    smaller = {**SMALLER, "--weights imagenet-v1": "--weights imagenet-v1 --image-size 32"}
    names = run_page("docs/tutorials/photographs.md", smaller)
    pretrained, product = (medic.Run(here / "runs" / name) for name in ("pretrained", "product"))
    assert pretrained.settings["tune"] == "head"
    assert pretrained.environment["weights"] is not None
    assert product.settings["target"] == ["none"]
    assert len((here / "product.csv").read_text().splitlines()) == 21
    assert len(list((here / "photographs").glob("*/*/*.jpg"))) == 320
    lines = capsys.readouterr().out.splitlines()
    prediction, rows = names["found"], names["rows"]
    assert any(line.startswith(f"{prediction.label} {prediction.score:.3f}"[:-1]) for line in lines)
    row = list(rows["path"]).index("sketch/fence/003.jpg")
    assert prediction.score == pytest.approx(1 / (1 + np.exp(-rows["confidence"][row])), abs=1e-4)
    assert prediction.known == (rows["prediction"][row] >= 0)
    assert len((here / "rows.csv").read_text().splitlines()) == 41
    assert sum(line.startswith("sketch/") for line in lines) == names["lost"].sum()


def test_report(here, mini, capsys):
    run_page("docs/tutorials/report.md", SMALLER)
    assert (here / "digit-runs" / "first" / "report.html").exists()
    assert (here / "digit-runs" / "report.html").exists()
    out = capsys.readouterr().out
    by_hand, recorded = (line for line in out.splitlines() if line.startswith(("HScore", "0.")))
    again = [float(part.split("=")[1]) for part in by_hand.strip("HScore()").split(", ")]
    assert again == pytest.approx([float(number) for number in recorded.split()])


def test_loop(here):
    names = run_page(LOOP, {})
    assert names["confidence"].shape == (4,)
    assert names["grid"].sampler.confusion([0, 1, 2]).shape == (6, 6)


@pytest.mark.parametrize("block", [1, 2])
def test_own_loop_learns(block):
    names: dict[str, Any] = {}
    setup, first, second = (text for _, text in blocks(LOOP)[:3])
    exec(setup, names)
    exec(first.split("for ")[0], names)  # the second loop goes on with `meta` and `loss` of the first

    def risk() -> float:
        x, y, _ = names["loader"].dataset.tensors
        return nn.functional.cross_entropy(names["model"](x), y).item()

    before = risk()
    for _ in range(30):
        exec((setup, first, second)[block], names)
    assert risk() < 0.8 * before


def test_method(here, mini, capsys):
    with forgotten():
        run_page("docs/tutorials/method.md", SMALLER)
    runs = [medic.Run(path) for path in (here / "calm-runs").iterdir() if path.is_dir()]
    assert sorted(run.settings["method"] for run in runs) == ["adversarial", "calm", "erm", "medic++"]
    assert {run.settings["method"]: run.settings["penalty"] for run in runs}["calm"] == "confidence"
    assert "calm" in capsys.readouterr().out


@pytest.mark.slow
def test_domainbed(here, mini, capsys):
    run_page("docs/tutorials/domainbed.md", SMALLER)
    (run,) = (medic.Run(path) for path in (here / "domainbed-runs").iterdir())
    assert run.settings["validation"] == "domainbed"
    assert run.settings["optimizer"] == "adam"
    assert run.settings["lr"] != medic.METHODS["erm"].preset.get("lr")
    assert not (run.predictions["label"] < 0).any()
    assert np.isfinite(run.metrics["acc"])
    assert "4 runs: 1 finished, 3 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_the_python_guide(here, monkeypatch, capsys):
    monkeypatch.syspath_prepend(here)
    monkeypatch.setitem(OURS, "convnet", (lambda size: small_network(), HALVES))
    record_no_chance(monkeypatch)
    quick = 'images=18, device="cpu"'
    smaller = {
        r"OpenSetClassifier\(method=\"erm\", iterations=50": f'OpenSetClassifier(method="erm", iterations=2, {quick}',
        r"iterations=\d\d+": f"iterations=2, {quick}, quiet=True",
        r"medic.sweep\(span,": 'medic.sweep(span, executor="here",',
    }
    with forgotten(), sklearn.config_context():
        names = run_page("docs/python.md", smaller)
    assert len(names["runs"]) == 4
    assert names["scores"].shape == (4,)
    assert (here / "model.onnx").exists()
    assert 0 <= names["metrics"]["oscr"] <= 1


@pytest.mark.slow
def test_the_gallery(here, monkeypatch):
    monkeypatch.setitem(OURS, "convnet", (lambda size: small_network(), HALVES))
    record_no_chance(monkeypatch)
    quick = 'iterations=2, images=18, device="cpu", quiet=True, executor="here"'
    names = run_page("docs/gallery.md", {r"iterations=300": quick})
    assert (here / "gallery" / "report.html").exists()
    assert (names["run"].path / "report.html").exists()
