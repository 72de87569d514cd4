"""What the README says is run as it is printed."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import medic
from medic.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def user_setup(attributes: int) -> dict[str, object]:
    """What a user brings: a model, an optimizer, a loader of (x, y, domain)."""
    torch.manual_seed(0)
    cells = torch.cartesian_prod(torch.arange(attributes), torch.arange(6)).repeat(4, 1)
    x = torch.randn(len(cells), 5) + nn.functional.one_hot(cells[:, 1], 6)[:, :5]
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(x, cells[:, 1], cells[:, 0]), batch_size=36, shuffle=True)
    return {"model": model, "optimizer": optimizer, "loader": loader}


def test_there_is_something_to_run():
    assert len(BLOCKS) == 4


def test_train(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = (
        BLOCKS[0].replace('"digits"', f'"{mini}"').replace("iterations=300", "iterations=2, batch_size=2, quiet=True")
    )
    names: dict[str, object] = {}
    exec(block, names)
    assert isinstance(names["run"], medic.Run)
    assert -1 in medic.Run(names["run"].path).predictions["label"]


@pytest.mark.parametrize("block", [1, 2])
def test_own_loop_learns(block):
    names = user_setup(3)
    exec(BLOCKS[1].split("for ")[0], names)  # the second loop goes on with `meta` and `loss` of the first

    def risk() -> float:
        x, y, _ = names["loader"].dataset.tensors
        return nn.functional.cross_entropy(names["model"](x), y).item()

    before = risk()
    for _ in range(30):
        exec(BLOCKS[block], names)
    assert risk() < 0.8 * before


def test_adaptive_loop():
    names = user_setup(3)
    grid, meta, loss = medic.Grid(3, 3, sampling="adaptive"), medic.MultiStep(lr=1e-2), medic.objective(medic.ce)
    for _ in range(3):
        for x, y, domain in names["loader"]:
            update = meta(names["model"], grid(x, y, domain), loss)
            grid.observe(update.logits, update.y, update.domain)
    assert grid.sampler.confusion([0, 1, 2]).shape == (6, 6)


def test_metrics():
    names: dict[str, object] = {}
    exec(BLOCKS[3], names)
    triple = names["confidence"], names["prediction"], names["label"]
    assert medic.openset.oscr(*triple) == 0.5


def test_commands(capsys):
    """Every option that the README names exists."""
    for command in ("train", "evaluate", "demo", "sweep", "table", "search", "reproduce"):
        main([command, "--help"])
    known = capsys.readouterr().out
    for option in set(re.findall(r"--[a-z][a-z-]+", README)) - {
        "--help",
        "--nproc-per-node",
    }:  # the other is torchrun's
        assert option in known, option
