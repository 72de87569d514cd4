"""Settings by starting point: the table, what overrides it, and the page that prints it."""

import dataclasses

import pytest
from safetensors.torch import save_file
from torch import nn

from medic.config.resolve import resolve
from medic.config.starts import STARTS, find_start
from medic.data import BENCHMARKS
from medic.models import OURS, Preprocessing, create_backbone
from tests.pages import ROOT


class Normed(nn.Module):
    """A small network with batch norm."""

    num_features = 4

    def __init__(self, size):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(autouse=True)
def normed(monkeypatch):
    monkeypatch.setitem(OURS, "normed", (Normed, Preprocessing((0.5,) * 3, (0.5,) * 3, 32)))


@pytest.fixture
def plan(mini, tmp_path):
    """Complete settings of a run on small digits, whose benchmark has the rate 0.06."""

    def complete(backbone="normed", weights=True, **settings):
        if weights:
            file = tmp_path / f"{backbone}.safetensors"
            save_file(create_backbone(backbone).module.state_dict(), file)
            settings["weights"] = str(file)
        return resolve({"dataset": mini, "target": "street", "backbone": backbone, **settings})

    return complete


def test_each_starting_point_has_its_settings(plan):
    assert plan(weights=False).start == "scratch"
    assert plan(weights=False).config.model.batch_norm == "local"
    trained = plan()
    assert trained.start == "pretrained"
    assert (trained.config.model.batch_norm, trained.config.optim.iterations) == ("frozen", 1200)
    assert trained.config.optim.lr == pytest.approx(3 * 0.06)
    assert trained.config.objective.inner_lr == pytest.approx(0.2 * 3 * 0.06)
    assert trained.config.optim.clip_norm == 5
    assert plan(backbone="small").start == "pretrained without batch norm"
    assert plan(tune="head").start == "frozen backbone"
    assert find_start("file", "adapters", batch_norm=False) == "adapters"


def test_user_settings_win_and_the_inner_rate_follows(plan):
    chosen = plan(lr=0.01, batch_norm="local", iterations=30, averaging="none")
    assert chosen.config.model.batch_norm == "local"
    assert (chosen.config.optim.iterations, chosen.config.optim.averaging) == (30, "none")
    assert chosen.config.objective.inner_lr == pytest.approx(0.002)
    assert chosen.config.optim.clip_norm == 5
    assert plan(clip_norm=0).config.optim.clip_norm == 0
    assert plan(inner_lr=0.5).config.objective.inner_lr == 0.5


def test_another_optimizer_has_its_own_rates(plan):
    """Its rate says nothing about the inner steps, which are plain SGD."""
    adam = plan(optimizer="adam")
    assert (adam.config.optim.lr, adam.config.optim.weight_decay) == (1e-3, 0.0)
    assert adam.config.model.batch_norm == "frozen"
    assert adam.config.optim.clip_norm == 0
    assert adam.config.objective.inner_lr == pytest.approx(0.2 * 3 * 0.06)


def test_networks_without_batch_norm(plan):
    optim = plan(backbone="small", iterations=500).config.optim
    assert (optim.optimizer, optim.lr, optim.weight_decay, optim.schedule) == ("adamw", 1e-3, 0.05, "cosine")
    assert (optim.warmup, optim.head_first, optim.layer_decay, optim.clip_norm) == (50, 50, 0.75, 1.0)
    assert plan(backbone="small").config.data.augment == "digits"  # the benchmark has its own
    chosen = plan(backbone="small", iterations=500, warmup=7, head_first=0).config.optim
    assert (chosen.warmup, chosen.head_first) == (7, 0)


@pytest.mark.parametrize(("optimizer", "lr", "decay"), [("sgd", 0.06, 5e-4 / 9), ("adam", 1e-3, 0.0)])
def test_another_optimizer_has_plain_rates(plan, optimizer, lr, decay):
    optim = plan(backbone="small", optimizer=optimizer).config.optim
    assert (optim.optimizer, optim.lr, optim.weight_decay) == (optimizer, pytest.approx(lr), pytest.approx(decay))
    assert (optim.warmup, optim.head_first, optim.layer_decay, optim.clip_norm) == (0, 0, 1.0, 0.0)
    assert optim.schedule == "step"


def test_a_method_with_a_rate_of_its_own_keeps_sgd(plan):
    optim = plan(backbone="small", method="mvdg").config.optim
    assert (optim.optimizer, optim.lr, optim.layer_decay, optim.warmup) == ("sgd", 0.05, 1.0, 0)


def test_augmentation(plan, mini, monkeypatch):
    """Unless a benchmark has its own, the starting point sets it. A frozen backbone sees one plain view."""
    monkeypatch.setitem(BENCHMARKS, mini, dataclasses.replace(BENCHMARKS[mini], augment=None))

    def chosen(**settings):
        return plan(**settings).config.data.augment

    assert chosen(backbone="small") == "strong"
    assert chosen(backbone="small", augment="domainbed") == "domainbed"
    assert chosen(backbone="small", weights=False) == "medic"
    assert chosen(backbone="small", protocol="paper") == "medic"
    assert chosen(backbone="small", tune="head") == "none"
    assert chosen(backbone="small", tune="head", train_views=2) == "medic"
    assert chosen() == "medic"


def test_methods_keep_their_own_settings(plan):
    assert plan(method="mvdg").config.optim.lr == 0.05
    assert plan(method="mvdg").config.optim.clip_norm == 0
    assert plan(method="mldg-domainbed").config.optim.clip_norm == 0
    assert plan(method="mldg-domainbed", optimizer="sgd").config.optim.clip_norm == 5  # at the rate of the start
    assert plan(method="mvdg").config.objective.inner_lr == 1e-3
    assert plan(method="ebil-hads").config.objective.inner_lr == 1e-3
    assert plan(method="mldg-domainbed").config.objective.inner_lr == 1e-3
    assert plan(method="arpl-cs").config.model.batch_norm == "local"


@pytest.mark.parametrize("protocol", ["paper", "authors"])
def test_protocols_do_not_depend_on_it(plan, protocol):
    trained, plain = plan(protocol=protocol), plan(weights=False, protocol=protocol)
    local = {"weights"}
    assert {k: v for k, v in trained.config.settings.items() if k not in local} == {
        k: v for k, v in plain.config.settings.items() if k not in local
    }


def test_the_page_has_the_table():
    page = (ROOT / "docs" / "training.md").read_text()
    table = [
        line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `--") or "`scratch`" in line
    ]
    head = next(row for row in table if "`scratch`" in row[1])
    rows = {name.strip("`-").replace("-", "_"): cells for name, *cells in table if len(cells) == len(STARTS)}
    assert [name.strip("`") for name in head[1:]] == list(STARTS)
    for start, (name, column) in zip(STARTS.values(), enumerate(head[1:]), strict=True):
        printed = {setting: cells[name] for setting, cells in rows.items() if setting != "setting"}
        rate = f"{start.rate:g} × the benchmark's" if start.lr is None else f"{start.lr:g}"
        inner = "0.01" if start.inner is None else f"{start.inner:g} × `--lr`"
        warmup, head_first = (
            f"{share:.0%} of the iterations" if share else "0" for share in (start.warmup, start.head_first)
        )
        names = ("batch_norm", "optimizer", "schedule", "averaging", "augment")
        expected = {
            **{setting: getattr(start, setting) for setting in names},
            "lr": rate, "inner_lr": inner, "warmup": warmup, "iterations": str(start.iterations),
            "weight_decay": f"{start.weight_decay:.3g}", "clip_norm": f"{start.clip_norm:g}",
            "layer_decay": f"{start.layer_decay:g}", "head_first": head_first,
        }  # fmt: skip
        if column == "`frozen backbone`":
            expected["augment"] = "none, or medic with `--train-views`"
        assert printed == expected, column
