"""The tutorials are run from top to bottom, on few images and for few iterations."""

import re
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import medic
import medic.objectives
from tests.pages import DOCS, blocks, run_page
from tests.plugins import forgotten
from tests.small import record_no_chance

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
    assert pretrained.settings["freeze"] == "backbone"
    assert pretrained.environment["weights"] is not None
    assert product.settings["target"] == ["none"]
    assert len((here / "product.csv").read_text().splitlines()) == 21
    assert len(list((here / "photographs").glob("*/*/*.jpg"))) == 320
    lines = capsys.readouterr().out.splitlines()
    found, rows = names["found"], names["rows"]
    assert any(line.startswith(f"{found.label} {found.score:.3f}"[:-1]) for line in lines)
    row = list(rows["path"]).index("sketch/fence/003.jpg")
    assert found.score == pytest.approx(1 / (1 + np.exp(-rows["confidence"][row])), abs=1e-4)
    assert found.known == (rows["prediction"][row] >= 0)
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


class WithFeatures(nn.Module):
    """A model of one's own with all that the methods of the page need."""

    def __init__(self):
        super().__init__()
        self.features, self.ova = nn.Sequential(nn.Linear(5, 16), nn.ReLU()), nn.Linear(16, 12)
        self.close = nn.Linear(16, 6)

    def forward(self, x):
        return self.classify(self.features(x))

    def classify(self, features):
        return medic.Output(self.close(features), self.ova(features).view(-1, 2, 6), features)


NEEDS = {  # by the rows of the table of the page
    "names of `import medic`": set(),
    "penalties": {"penalties"},
    "strategy from": {"strategy"},
    "change": {"change"},
}
ROWS = [line.strip("|").split("|") for line in (DOCS.parent / LOOP).read_text().splitlines() if line.startswith("| `")]
IN_A_LOOP = {name: needs for names, needs in ROWS for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize("name", medic.METHODS)
def test_methods_that_work_in_a_loop(name):
    """With parts of the kinds that the page names, and no others; what is not on the page needs further parts."""
    method, preset = medic.METHODS[name], medic.METHODS[name].preset
    public = method.strategy.kind in (medic.Joint, medic.MultiStep, medic.TwoStep)
    needs = {"penalties": "penalty" in preset, "strategy": not public, "change": method.change is not None}
    more = method.callback or {"layer", "averaging", "score"} & preset.keys()
    if name not in IN_A_LOOP:
        assert more or preset.get("objective", "ce") not in ("ce", "ce+ova") or name in ("miro", "mvdg")
        return
    assert not more
    assert [{k for k, needed in needs.items() if needed}] == [v for k, v in NEEDS.items() if k in IN_A_LOOP[name]]
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(6)).repeat(4, 1)
    penalties = [medic.objectives.PENALTIES[preset["penalty"]]()] if "penalty" in preset else []
    change = None if method.change is None else method.change.build()
    losses = [medic.ce, medic.ova] if "objective" in preset else [medic.ce]
    risk = medic.objective(*losses, penalties=penalties, forward=method.forward, change=change)
    model = WithFeatures()
    method.strategy.build()(model, medic.Grid(method.grid)(torch.randn(72, 5), cells[:, 1], cells[:, 0]), risk)
    assert all(p.grad is not None and p.grad.any() for p in model.features.parameters())


def test_method(here, mini, capsys):
    with forgotten():
        run_page("docs/tutorials/method.md", SMALLER)
    runs = [medic.Run(path) for path in (here / "calm-runs").iterdir() if path.is_dir()]
    assert sorted(run.settings["method"] for run in runs) == ["calm", "erm", "medic++"]
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
