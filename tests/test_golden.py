"""Settings resolve to the values in `tests/golden`: every method, benchmark, protocol, starting point and draw.

`python -m tests.test_golden` writes the files anew, after a change of defaults that is meant.
"""

import contextlib
import gzip
import inspect
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from medic.config.resolve import resolve as make_plan
from medic.data import BENCHMARKS, make_augmentation
from medic.errors import MedicError
from medic.methods import METHODS
from medic.runs.build import compiles
from medic.runs.optimizer import rate_factor

NAMES: Mapping[str, str] = {}
"""The new names of settings and of other values that were renamed since the files were written, by the old ones."""


def resolve(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the settings of a run determine, by name. Nothing else here depends on how they do so.

    Datasets without a root are stand-ins with the benchmark's domains and classes.
    """

    def find(bench: Any, root: Path | None, seed: int) -> Any:
        if bench.built_in or root is not None:
            return bench.open(root, seed)
        classes = bench.classes or [f"class_{number:03d}" for number in range(345)]  # those of DomainNet
        return SimpleNamespace(domains=bench.domains, classes=classes, axes=())

    def describe(part: Any) -> Any:
        if isinstance(part, tuple):
            return list(map(describe, part))
        return part and {"name": part.name, **defaults(part.kind), **part.values}

    renamed = {NAMES.get(name, name): value for name, value in settings.items()}
    plan = make_plan(renamed, find)
    config, grid, data, optim = plan.config, plan.grid, plan.config.data, plan.config.optim
    end = optim.iterations
    shape = ("splits", "axes", "steps", "round", "sizes", "tasks", "pairing", "sampling", "separate", "separates")
    return {
        **config.settings,
        **{f"grid.{name}": getattr(grid, name) for name in (*shape, "class_groups", "repeat")},
        **{f"part.{name}": describe(part) for name, part in vars(plan.parts).items()},
        "start": plan.start,
        "identity": sorted(config.identity),
        "asked": {name: value for name, value in plan.user_settings.items() if value != renamed[name]},
        "search": {name: {"law": type(law).__name__, **asdict(law)} for name, law in plan.search.items()},
        "file of weights": plan.weights,
        "networks": plan.networks,
        "images per task": plan.batch_size,
        "compiled": [compiles(plan, torch.device(device)) for device in ("cpu", "cuda")],
        "plugins": [plugin.name for plugin in plan.plugins],
        "classes": {source: data.classes.of_source(source) for source in data.sources},
        "augmentation": asdict(make_augmentation(data.augment)),
        "rate factors": {at: rate_factor(optim, at) for at in (0, 1, end // 2, int(0.8 * end), end - 1)},
    }


@cache
def defaults(kind: Any) -> dict[str, Any]:
    """Return the default values of a class or function, except those that are made anew each time."""
    values = {name: one.default for name, one in inspect.signature(kind).parameters.items()}
    return {name: v for name, v in values.items() if v is not inspect.Parameter.empty and repr(v) != "<factory>"}


FOLDER = Path(__file__).parent / "golden"
USUAL = {"device": "cpu", "dataset": "digits"}
OWN = {"cmnist": "images", "folder": "images", "lists": "lists", "table": "table.csv"}
"""The roots of datasets that are read from disk, see `write_images`."""
PROTOCOLS = (None, "paper", "authors")
Case = dict[str, Any]

STARTS: Mapping[str, Case] = {
    "scratch": {},
    "batch norm": {"backbone": "resnet10t", "weights": "weights.safetensors"},
    "no batch norm": {"weights": "weights.safetensors"},
    "frozen": {"tune": "head"},
    "frozen from weights": {"tune": "head", "weights": "weights.safetensors"},
    "batch norm, Adam": {"backbone": "resnet10t", "weights": "weights.safetensors", "optimizer": "adam"},
    "no batch norm, rate": {"weights": "weights.safetensors", "lr": 0.01},
}
"""Starting points on digits, for every method."""

LARGE_STARTS: Mapping[str, Case] = {
    "resnet": {"dataset": "pacs", "weights": "weights.safetensors"},
    "resnet, paper": {"dataset": "pacs", "weights": "weights.safetensors", "protocol": "paper"},
    "resnet, authors": {"dataset": "domainnet", "weights": "weights.safetensors", "protocol": "authors"},
    "resnet, moving statistics": {"dataset": "vlcs", "weights": "weights.safetensors", "batch_norm": "local"},
    "vit": {"dataset": "office-home", "backbone": "vit_tiny_patch16_224", "weights": "weights.safetensors"},
    "frozen vit": {"dataset": "pacs", "backbone": "vit_tiny_patch16_224", "tune": "head"},
    "frozen, authors": {"dataset": "pacs", "tune": "head", "protocol": "authors"},
    "no file": {"dataset": "pacs", "weights": "missing.safetensors"},
    "no file, own backbone": {"weights": "missing.safetensors"},
}

DRAWS: Mapping[str, Case] = {
    "1": {"hparams_seed": 1},
    **{f"{seed}, adam": {"hparams_seed": seed, "optimizer": "adam"} for seed in (1, 2, 3, 17)},
    "2, adamw, pacs": {"hparams_seed": 2, "optimizer": "adamw", "dataset": "pacs"},
    "5, adam, domainnet": {"hparams_seed": 5, "optimizer": "adam", "dataset": "domainnet"},
    "3, adam, trial": {"hparams_seed": 3, "optimizer": "adam", "trial_seed": 2},
    "3, adam, seed": {"hparams_seed": 3, "optimizer": "adam", "seed": 2},
    "4, adam, rate": {"hparams_seed": 4, "optimizer": "adam", "lr": 0.003, "images": 60},
    "4, adam, authors": {"hparams_seed": 4, "optimizer": "adam", "dataset": "pacs", "protocol": "authors"},
}
"""Draws of hyperparameters, for every method."""

OVERRIDES: Mapping[str, Case] = {
    "lr": {"lr": 0.02},
    "inner_lr": {"inner_lr": 0.003},
    "order": {"order": "first"},
    "second order": {"order": "second"},
    "bn_buffers": {"bn_buffers": "restore"},
    "bn_buffers, interpolated": {"bn_buffers": "interpolate", "lr": 0.1},
    "momentum": {"momentum": 0.5},
    "optimizer": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd"},
    "schedule": {"schedule": "cosine", "warmup": 20, "iterations": 250},
    "averaging, none": {"averaging": "none"},
    **{f"sampling, {name}": {"sampling": name} for name in (
        "random", "balanced", "adaptive", "probe"
    )},
    "separate": {"separate": "step"},
    "penalty": {"penalty": "balance"},
    **{f"penalty, {name}": {"penalty": name} for name in (
        "coral", "groupdro", "miro", "transport", "vrex"
    )},
    "penalty, weighted": {"penalty": "vrex", "hparams": {"weight": 3}},
    "objective": {"objective": "ce+ova"},
    "objective, ova": {"objective": "ova", "ova_scale": 1.0, "ova_floor": 1e-6},
    "objective, ce": {"objective": "ce"},
    "objective, arpl": {"objective": "arpl"},
    "head": {"head": "shared", "objective": "ce+ova"},
    "head, close": {"head": "close"},
    "layer": {"layer": "mixstyle"},
    "layer, none": {"layer": "none"},
    "score": {"score": "max-logit"},
    "score, bcls": {"score": "bcls"},
    "threshold, fixed": {"threshold": "fixed"},
    "images": {"images": 60},
    "images, few": {"images": 1},
    "batch_size": {"batch_size": 7},
    "image_size, backbone": {"backbone": "resnet18", "image_size": 96},
    "batch_norm": {"batch_norm": "frozen", "backbone": "resnet10t"},
    "freeze": {"tune": "head", "lr": 0.5},
    "domain_splits": {"domain_splits": 2},
    "domain_splits, pooled": {"domain_splits": 0},
    "class_splits": {"class_splits": 4, "steps": 2},
    "class_splits, pooled": {"class_splits": 0},
    "steps": {"steps": "5,4"},
    "steps, one": {"steps": 1},
    "repeat": {"repeat": 2},
    "class_groups": {"class_groups": 4},
    "known": {"known": ["0", "1", "2"], "unknown": ["8", "9"]},
    "partial": {"partial": "handwritten=0,1,2,3"},
    "target, none": {"target": "none"},
    "target, three": {"target": "street,printed,blended"},
    "sources": {"sources": ["handwritten", "printed"]},
    "sources, one": {"sources": ["handwritten"], "target": None},
    "hparams": {"hparams": "weight=10"},
    "compile": {"compile": "on"},
}  # fmt: skip
"""Changes to a run on digits, for every method."""

COMMON: Mapping[str, Case] = {
    "lr, whole": {"lr": 1},
    "weight_decay": {"weight_decay": 0.001, "head_lr_scale": 10, "clip_norm": 1.0},
    "iterations": {"iterations": 2000},
    "averaging": {"averaging": "ema"},
    "averaging, tail": {"averaging": "tail"},
    "score, knn": {"score": "knn", "save_features": True},
    "threshold": {"threshold": "two-components"},
    "validation": {"validation": "domainbed", "holdout": 0.3, "trial_seed": 4},
    "validation, official": {"validation": "official"},
    "image_size": {"image_size": 64},
    "image_size, stored": {"image_size": 64, "store_size": 80},
    "label_noise": {"label_noise": 0.25},
    "augment": {"augment": "scale=0.8:1,jitter=0.4"},
    "augment, none": {"augment": "none"},
    "views": {"views": 3},
    "known, text": {"known": "0,1,2,3"},
    "unknown": {"unknown": ["9"]},
    "split": {"split": "digits-6-4-partial"},
    "target, several": {"target": ["street", "printed"]},
    "evaluate_every": {"evaluate_every": 50, "checkpoint_every": 5},
    "precision": {"precision": "bf16", "seed": 3},
    "execution": {"threads": 2, "track": "none", "output": "elsewhere", "name": "first", "store": "ram"},
    **{f"sampling, {name}": {"sampling": name} for name in ("confusable", "confusable-chain", "informative")},
    **{f"penalty, {name}": {"penalty": name} for name in ("fishr", "hgp", "hutchinson")},
}
"""Changes that act on most methods alike."""

REFUSED: Mapping[str, Case] = {
    "optimizer, momentum": {"optimizer": "adamw", "momentum": 0.5},
    "warmup, too long": {"warmup": 20, "iterations": 10},
    "averaging, unknown": {"averaging": "mean"},
    "objective, unknown": {"objective": "mse"},
    "threshold, unknown": {"threshold": "median"},
    "validation, official share": {"validation": "official", "holdout": 0.3},
    "images, twice": {"images": 60, "batch_size": 10},
    "label_noise, all": {"label_noise": 1.0},
    "freeze, augment": {"tune": "head", "augment": "medic"},
    "class_splits, too many": {"class_splits": 7},
    "partial, unknown domain": {"partial": "stone=0,1,2,3"},
    "target, each": {"target": "each"},
    "target, unknown": {"target": "road"},
    "target, default": {"target": None},
    "hparams, unknown": {"hparams": {"strength": 2}},
    "hparams, option": {"hparams": {"lr": 2}},
    "capture": {"capture": "on"},
    "name, reserved": {"name": "logs"},
    "axes": {"axes": "hospital=2"},
    "epochs": {"epochs": 3},
    "lr, text": {"lr": "high"},
    "lr, zero": {"lr": 0},
    "lr, several": {"lr": [0.1, 0.2]},
    "sampling, unknown": {"sampling": "greedy"},
    "penalty, unknown": {"penalty": "mmd"},
}
"""Mistakes, whatever the method."""

LARGE_OVERRIDES: Mapping[str, Case] = {
    "pacs, partial split": {"dataset": "pacs", "split": "pacs-6-1-partial"},
    "pacs, aliases": {"dataset": "PACS", "method": "MEDIC++", "target": "photo"},
    "pacs, known": {"dataset": "pacs", "known": "dog,horse", "target": ["photo"]},
    "pacs, all known": {"dataset": "pacs", "unknown": []},
    "pacs, separate, paper": {"dataset": "pacs", "protocol": "paper", "separate": "task"},
    "pacs, sampling, paper": {"dataset": "pacs", "protocol": "paper", "sampling": "adaptive"},
    "pacs, adam, paper": {"dataset": "pacs", "protocol": "paper", "optimizer": "adam"},
    "pacs, ova, authors": {"dataset": "pacs", "protocol": "authors", "objective": "ova", "averaging": "swad"},
    "pacs, iterations, authors": {"dataset": "pacs", "protocol": "authors", "iterations": 100},
    "pacs, target none, authors": {"dataset": "pacs", "protocol": "authors", "target": "none"},
    "pacs, convnext": {"dataset": "pacs", "backbone": "convnext_atto", "image_size": 128},
    "pacs, unknown backbone": {"dataset": "pacs", "backbone": "resnet49"},
    "pacs, stored": {"dataset": "pacs", "image_size": 128, "store_size": 160, "store": "map", "on_bad_image": "skip"},
    "pacs, stored smaller": {"dataset": "pacs", "image_size": 128, "store_size": 64},
    "office-home, all known, authors": {"dataset": "office-home", "unknown": [], "protocol": "authors"},
    "domainnet, all known, authors": {"dataset": "domainnet", "unknown": [], "protocol": "authors"},
    "domainnet, groups, authors": {"dataset": "domainnet", "protocol": "authors", "class_groups": 5},
    "terra-incognita, known": {"dataset": "terra-incognita", "known": "dog,cat,bird", "protocol": "paper"},
    "cmnist, jitter": {"dataset": "cmnist", "augment": "jitter=0.3", "root": "images"},
    "cmnist, resnet": {"dataset": "cmnist", "backbone": "resnet18", "root": "images"},
    "folder, partial": {"dataset": "folder", "root": "images", "target": "north", "partial": "auto"},
    "folder, known": {"dataset": "folder", "root": "images", "target": "north", "known": ["ant", "bee"]},
    "folder, no root": {"dataset": "folder", "root": "missing", "target": "north"},
    "lists, several targets": {"dataset": "lists", "root": "lists", "target": ["east", "west"], "unknown": ["2"]},
    "table, axes": {"dataset": "table", "root": "table.csv", "target": "north", "axes": "hospital=2,year=3"},
    "table, axis": {"dataset": "table", "root": "table.csv", "target": "north", "axes": {"year": 2}, "steps": 3},
    "table, unknown axis": {"dataset": "table", "root": "table.csv", "target": "north", "axes": "month=2"},
    "unknown dataset": {"dataset": "pasc"},
    "unknown method": {"method": "medic+"},
}
SOME = ("erm", "medic", "medic++", "fish-domainbed", "mvdg", "coral", "daml")
"""Methods for the other tables: one for each kind of grid and strategy."""


def target(dataset: str) -> str:
    """Return the last domain of a benchmark, or that of the files."""
    bench = BENCHMARKS.get(dataset)
    return bench.domains[-1] if bench and bench.domains else "north"


def complete(method: str, *layers: Case) -> Case:
    """Return the settings of a case; later layers override earlier ones."""
    settings = {**USUAL, "method": method}
    for layer in layers:
        settings |= layer
    return {"target": target(settings["dataset"]), **settings}


def by_benchmark(method: str) -> dict[str, Case]:
    """Return a case for every benchmark and protocol."""
    return {
        f"{name}, {protocol}": complete(method, {"dataset": name, "protocol": protocol, "root": OWN.get(name)})
        for name in BENCHMARKS
        for protocol in PROTOCOLS
    }


def by_row(method: str, *tables: Mapping[str, Case]) -> dict[str, Case]:
    """Return a case for every row of some tables."""
    return {name: complete(method, row) for table in tables for name, row in table.items()}


def make_cases(name: str, method: str) -> dict[str, Case]:
    """Return the settings of a method that a file has the outcomes of, by the name of the case."""
    if name == "benchmarks":
        return by_benchmark(method)
    every, others = TABLES[name]
    return by_row(method, every, *(others if method in SOME else ()))


TABLES: Mapping[str, tuple[Mapping[str, Case], tuple[Mapping[str, Case], ...]]] = {
    "starts": (STARTS, (LARGE_STARTS,)),
    "draws": (DRAWS, ()),
    "overrides": (OVERRIDES, (COMMON, LARGE_OVERRIDES, REFUSED)),
}
"""The tables of a file: that for every method, and those for some."""
FILES = ("benchmarks", *TABLES)


def write_images(folder: Path) -> None:
    """Write datasets as a folder, as lists and as a table, and a file of weights, all of them without content."""
    rows = ["path,class,domain,hospital,year"]
    for number, domain in enumerate(("east", "north", "south", "west")):
        lines = []
        for label, name in enumerate(("ant", "bee", "cat", "dog", "elk")[: 5 - number % 2]):
            image = folder / "images" / domain / name / "0.png"
            image.parent.mkdir(parents=True)
            image.touch()
            lines.append(f"{domain}/{name}/0.png {label}")
            rows += [f"{domain}/{name}/{year}.png,{name},{domain},{year % 2},{2020 + year}" for year in range(4)]
        (folder / "lists").mkdir(exist_ok=True)
        (folder / "lists" / f"{domain}.txt").write_text("\n".join(lines))
    (folder / "table.csv").write_text("\n".join(rows))
    (folder / "weights.safetensors").touch()


def outcome(settings: Case) -> dict[str, Any]:
    """Return the values that settings resolve to, as JSON has them, or the message with which they are refused."""
    try:
        return dict(json.loads(json.dumps(resolve(settings), default=written)))
    except MedicError as error:
        return {"error": str(error)}


def written(value: Any) -> str:
    """Return a path as text, and a function or a class by its name."""
    return str(value) if isinstance(value, Path) else value.__name__


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, in their types too. Other systems may round the last digits differently."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isclose(one, other, rel_tol=1e-12))


@cache
def read(name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the outcomes of a file by method and case.

    `values` holds every value once; all others are positions in this list. `usual` has the most frequent value by name,
    of all methods and of each; a case has the values that differ.
    """
    with gzip.open(FOLDER / f"{name}.json.gz", "rt") as file:
        stored = json.load(file)
    values = stored["values"]

    def expand(usual: Mapping[str, int], case: Mapping[str, int]) -> dict[str, Any]:
        positions = case if "error" in case else {**stored["usual"], **usual, **case}
        return {key: values[position] for key, position in positions.items()}

    return {
        method: {key: expand(of["usual"], case) for key, case in of["cases"].items()}
        for method, of in stored["methods"].items()
    }


def write(name: str, outcomes: Mapping[str, Mapping[str, dict[str, Any]]]) -> None:
    """Write the outcomes of a file."""
    positions: dict[str, int] = {}

    def intern(case: Mapping[str, Any]) -> dict[str, int]:
        return {key: positions.setdefault(json.dumps(value), len(positions)) for key, value in case.items()}

    def most(cases: Iterable[Mapping[str, int]]) -> dict[str, int]:
        resolved = [case for case in cases if "error" not in case]
        return {key: Counter(case[key] for case in resolved).most_common(1)[0][0] for key in resolved[0]}

    def without(usual: Mapping[str, int], case: Mapping[str, int]) -> dict[str, int]:
        return {key: position for key, position in case.items() if position != usual.get(key)}

    interned = {method: {key: intern(case) for key, case in of.items()} for method, of in outcomes.items()}
    usual = most(case for of in interned.values() for case in of.values())
    own = {method: most(of.values()) for method, of in interned.items()}
    methods = {
        method: {
            "usual": without(usual, own[method]),
            "cases": {key: without(own[method], case) for key, case in of.items()},
        }
        for method, of in interned.items()
    }
    stored = {"values": list(map(json.loads, positions)), "usual": usual, "methods": methods}
    content = json.dumps(stored, separators=(",", ":")).encode()
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(content, mtime=0))


def renamed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome of a file by the names of today."""
    today = {NAMES.get(name, name): value for name, value in case.items()}
    if "error" not in case:
        today["identity"] = sorted(NAMES.get(name, name) for name in case["identity"])
        today["asked"] = {NAMES.get(name, name): value for name, value in case["asked"].items()}
    return today


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that cases name."""
    made = tmp_path_factory.mktemp("golden")
    write_images(made)
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("method", METHODS)
def test_settings_resolve_as_they_did(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str) -> None:
    monkeypatch.chdir(folder)
    stored = read(name)
    assert method in stored, f"{method} is new: `python -m tests.test_golden` adds its settings to tests/golden"
    cases, expected = make_cases(name, method), stored[method]
    assert list(cases) == list(expected)
    differing: list[str] = []
    for key, settings in cases.items():
        before, after = renamed(expected[key]), outcome(settings)
        differing += (
            f"{key}: {value} was {before.get(value)}, is {after.get(value)}"
            for value in before | after
            if value not in before or value not in after or not same(before[value], after[value])
        )
    assert not differing, f"{len(differing)} values, of which the first are\n" + "\n".join(differing[:20])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        write_images(Path(place))
        for file in FILES:
            write(file, {of: {key: outcome(case) for key, case in make_cases(file, of).items()} for of in METHODS})
