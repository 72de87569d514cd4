"""What the README and the page on training say is run as it is printed."""

import csv
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import medic
from medic.cli import main
from tests.pages import ROOT, blocks
from tests.small import record_no_chance


def test_the_loop_runs_with_a_model_that_meets_the_need():
    y, domain = torch.arange(36) % 6, torch.arange(36) // 12
    network = nn.Linear(4, 18)
    model = OneVsAll(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"medic": medic, "model": model, "optimizer": optimizer, "loader": [(torch.randn(36, 4), y, domain)] * 2}
    before = network.weight.detach().clone()
    exec(blocks("README.md")[1].text, names)
    assert names["learner"].iteration == 2
    assert not torch.equal(before, network.weight)


def test_the_loop_runs_with_the_class_that_the_page_names():
    y, domain = torch.arange(36) % 6, torch.arange(36) // 12
    expression = re.search(r"`(medic\.Classifier\(.*\))`", (ROOT / "README.md").read_text())[1]
    model = eval(expression, {"medic": medic})
    names = {"medic": medic, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    exec(blocks("README.md")[1].text, {**names, "loader": [(torch.rand(36, 3, 32, 32), y, domain)] * 2})


class OneVsAll(nn.Module):
    """A linear layer whose outputs are closed-set and one-vs-all logits of six classes."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        outputs = self.network(x)
        return medic.Output(outputs[:, :6], outputs[:, 6:].unflatten(1, (2, 6)))


def test_the_same_from_python(mini, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = blocks("README.md")[0].text
    quick = 'iterations=2, batch_size=2, device="cpu", quiet=True'
    smaller = text.replace('"digits"', f'"{mini}"').replace("iterations=300", quick)
    names: dict[str, object] = {}
    exec(smaller.replace("medic.sweep(span,", 'medic.sweep(span, executor="here",'), names)
    assert len(names["runs"]) == 6
    assert "medic++" in capsys.readouterr().out
    assert medic.load("calibrated").threshold == names["model"].threshold


def test_train(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/training.md")
    smaller = block.text.replace('"digits"', f'"{mini}"')
    names: dict[str, object] = {}
    exec(smaller.replace("iterations=300", "iterations=2, batch_size=2, quiet=True"), names)
    assert isinstance(names["run"], medic.Run)
    assert -1 in medic.Run(names["run"].path).predictions["label"]


@pytest.mark.slow
def test_the_tour(digits, tmp_path, monkeypatch):
    """From training to the service, the lines of the README, with fewer iterations."""
    httpx = pytest.importorskip("httpx")
    monkeypatch.chdir(tmp_path)
    record_no_chance(monkeypatch)
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(digits.images.gather(torch.arange(0, 4800, 200), torch.device("cpu"))):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{number}.png")
    lines = re.findall(r"^    (medic .*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    lines = [line for line in lines if "--root DIR" not in line]  # your own images
    commands = ["train", "report", "calibrate", "predict", "watch", "export", "serve"]
    assert [line.split()[1] for line in lines] == commands
    *lines, serve = lines
    for line in lines:
        smaller = line.replace("--iterations 300", "--iterations 3 --batch-size 4")
        # The photographs come from all domains, so they may differ from the sources.
        assert main(shlex.split(smaller)[1:]) in ((0, 1) if "watch" in line else (0,)), line
    rows = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert len(rows) == 24
    assert (tmp_path / "model" / "model.onnx").exists()
    command = [sys.executable, "-m", *shlex.split(serve), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        for row in rows:
            image, kind = Path(row["path"]).read_bytes(), {"content-type": "image/png"}
            answer = httpx.post(f"{url}/predict", content=image, headers=kind, timeout=20).json()
            assert answer["predictions"][0]["label"] == row["label"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
