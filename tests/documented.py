"""A folder that has everything the documentation's commands name: images, runs, models, weights and lists.

Commands run in it as they are printed. The built-in benchmark and the networks are small ones of the same names.
"""

import csv
import dataclasses
import re
import shutil
from argparse import Namespace
from collections.abc import Iterable, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import medic
from medic.cli import main
from medic.data import BENCHMARKS, Dataset
from medic.models import HALVES, OURS, create_backbone
from tests.data.pictures import picture
from tests.data.trees import plant
from tests.deploy.hub import NAME
from tests.pages import ROOT, Command, blocks
from tests.small import Ready, record_no_chance, shrink_backbones, small_network

PLACEHOLDERS: dict[str, dict[str, str]] = {
    "DIR": {"folder": "own", "": "data"},
    "ROOT": {"": "own"},
    "DOMAIN": {"": "sketches"},
    "RUN": {"": "runs/first"},
    "RUN/config.json": {"": "runs/first/config.json"},
    "M": {"": "medic++"},
    "NAME": {"": "vrex"},
    "T": {"pacs": "sketch", "": "street"},
    "S": {"": "0"},
    "TABLE": {"": "pacs-resnet50"},
    "OWNER/NAME": {"": NAME},
    "{}": {"": "run.yaml"},
    "cat": {"folder": "cat", "table": "cat", "": "1"},
    "bird": {"": "2"},
    "runs/ONE": {"": "nine-runs/NINE"},
    "runs/NINE": {"": "nine-runs/NINE"},
    "runs/a": {"": "own-runs/a"},
    "runs/b": {"": "own-runs/b"},
    "runs/photographs": {"": "own-runs/photographs"},
    "rotation": {"": "runs"},
    "hparams_seed=1..19": {"": "hparams_seed=1..2"},
}
"""Values for placeholders such as DIR, by the command's dataset. Other names are files in this folder."""
PACS_RUNS = ("docs/analysis.md", "docs/tables.md")
"""Pages whose folder `runs` has runs on PACS; elsewhere they are on the built-in benchmark."""
ELLIPSIS = {"train": ("--target", "street"), "predict": ("photos",)}
"""Arguments for an ellipsis that no earlier command on the page explains."""


def resolve(command: Command) -> list[str]:
    """Return the words of a command with values for placeholders and ellipses."""
    name, *rest = command.words
    before = command.previous[1:]
    if "--span" in rest and "--span" in before:
        before = before[: before.index("--span")]
    words: list[str] = []
    for word in rest:
        if word != "…":
            words.append(word)
        elif not any(option.startswith("--") for option in words):  # otherwise it stands for further options
            words += before or ELLIPSIS[name]
    dataset = words[words.index("--dataset") + 1] if "--dataset" in words else words[1] if name == "data" else ""

    def value(word: str) -> str:
        if known := PLACEHOLDERS.get(word):
            return known.get(dataset, known[""])
        return f"pacs-{word}" if command.page in PACS_RUNS and word.split("/")[0] == "runs" else word

    values = list(map(value, words))
    if name == "soup":  # its runs are a pattern, which a shell expands
        values = [path for word in values for path in sorted(map(str, Path().glob(word))) or [word]]
    return [name, *values]


def make(folder: Path, digits: Dataset, patch: pytest.MonkeyPatch) -> None:
    """Make the folder; `digits` are the images of the built-in benchmark."""
    ready = Ready("digits", digits.domains, digits.classes, dataclasses.replace(digits, name="digits"))
    patch.setitem(BENCHMARKS, "digits", dataclasses.replace(BENCHMARKS["digits"], reader=lambda *_: ready))
    patch.setitem(OURS, "convnet", (lambda size: small_network(), HALVES))
    shrink_backbones(patch)
    record_no_chance(patch)
    patch.setenv("MEDIC_CACHE", str(folder / "cache"))
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hub"))
    with chdir(folder):
        _images()
        _weights()
        _code_and_settings()
        _runs()
        _models_and_lists()


def _draw(root: str, domains: Iterable[str], classes: Iterable[str], count: int = 5) -> None:
    for place, domain in enumerate(domains):
        for number, label in enumerate(classes):
            folder = Path(root, domain, label)
            folder.mkdir(parents=True)
            for index in range(count):
                picture(100 * place + 10 * number + index).save(folder / f"{index:03}.jpg")


def _images() -> None:
    plant(Path("data"))
    pacs = BENCHMARKS["pacs"]
    shutil.rmtree("data/PACS")
    _draw("data/PACS", pacs.domains, pacs.classes)
    shutil.make_archive("pacs", "zip", "data/PACS")
    _draw("own", ("paintings", "photos", "sketches"), ("cat", "dog", "horse"))
    _draw("photographs", ("art", "photo", "sketch"), ("ball", "box", "tent", "fence"))
    Path("photos/more").mkdir(parents=True)
    for index in range(24):
        picture(index).save(f"photos/{'more/' if index % 2 else ''}{index}.png")
    picture(0).save("a.jpg")
    picture(1).save("photos/1.png")
    Path("paths.txt").write_text("a.jpg\nphotos/0.png\n")


def _weights() -> None:
    for name, backbone in (
        ("resnet50", "resnet50"),
        ("lite0", "tf_efficientnet_lite0"),
        ("vit", "vit_tiny_patch16_224"),
        ("mobilenet", "mobilenetv2_100"),
        ("convnet", "convnet"),
    ):
        save_file(create_backbone(backbone).module.state_dict(), f"{name}.safetensors")
    for backbone in ("resnet18", "resnet50"):  # `--weights imagenet-v1` finds them in the cache of the hub
        cached = Path("hub", f"models--timm--{backbone}.tv_in1k")
        (cached / "snapshots" / "0").mkdir(parents=True)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("0")
        save_file(create_backbone(backbone).module.state_dict(), cached / "snapshots" / "0" / "model.safetensors")


def _code_and_settings() -> None:
    for language, text in blocks("docs/tutorials/method.md"):
        if language == "python" and (name := re.match(r"# (\w+\.py)", text)):
            with Path(name[1]).open("a") as file:
                file.write(text)
    settings = next(text for language, text in blocks("docs/sweeps.md") if language == "yaml")
    Path("sweep.yaml").write_text(settings.replace("/data", "data"))
    Path("run.yaml").write_text("target: street\n")
    torch.save({"model": {"norm.weight": torch.ones(2)}, "args": Namespace(epochs=300)}, "gfnet-h-ti.pth")
    shutil.copytree(ROOT / "benchmarks", "benchmarks", ignore=shutil.ignore_patterns("*.py", "records"))


def _train(output: str, name: str, **settings: Any) -> None:
    short = {"iterations": 2, "batch_size": 2, "method": "medic++", "device": "cpu", "output": output, "name": name}
    medic.train(**{**short, **settings}, quiet=True)


def _runs() -> None:
    digits: dict[str, Any] = {"target": "street", "objective": "ce+ova", "save_features": True, "holdout": 0.5}
    for method, names in {"medic++": ("first", "second"), "erm": ("plain", "plain-again")}.items():
        for seed, name in enumerate(names):
            _train("runs", name, **digits, method=method, seed=seed)
    shutil.copytree("runs", "digit-runs")
    for number, source in enumerate(("handwritten", "printed", "blended")):
        _train("rehearsed", f"without-{number}", **{**digits, "target": ["street", source]}, method="erm")
    shutil.copytree("runs/plain", "rehearsed/plain")
    shutil.copytree("runs/first", "runs/first-try")
    _train("runs", "product", **{**digits, "target": "none"})
    for name, rate in (("a", 0.01), ("b", 0.02), ("c", 0.03)):
        _train("candidates", name, **digits, lr=rate, weights="convnet.safetensors")
    pacs: dict[str, Any] = {"dataset": "pacs", "root": "data", "target": "sketch", "backbone": "convnet"}
    for method, names in {"medic++": ("THREE", "77ab"), "erm": ("ERM", "31e4")}.items():
        for seed, name in enumerate(names):
            _train("pacs-runs", name, **pacs, method=method, objective="ce+ova", seed=seed)
    _train("nine-runs", "NINE", **pacs, steps=9)
    own: dict[str, Any] = {"dataset": "folder", "backbone": "convnet", "image_size": 32}
    _train("own-runs", "a", **own, root="own", target="sketches", known=["cat", "dog"])
    _train("own-runs", "photographs", **own, root="photographs", target="sketch", known=["ball", "box", "tent"])
    shutil.copytree("own-runs/a", "own-runs/b")
    _train("calm-runs", "first", imports="calm.py", method="calm", target="street")
    _train("domainbed-runs", "one", method="erm", split="digits-10-0", validation="domainbed", target="street")


def _models_and_lists() -> None:
    assert main(["calibrate", "runs/first", "--accept", "0.5", "--output", "model"]) == 0
    assert main(["predict", "model", "photos", "-o", "rows.csv"]) == 0
    images = [*Path("photos").rglob("*.png"), *Path("photographs").rglob("*.jpg")]
    for name in ("true.csv", "some.csv"):
        _write(name, ("path", "class"), ((str(path), f"{index % 3 or 'unknown'}") for index, path in enumerate(images)))
    run = medic.Run("runs/first")
    paths = run.predictions["path"]
    _write("g.csv", ("path", "camera"), ((path, f"camera {index % 2}") for index, path in enumerate(paths)))
    own = sorted(Path("own").rglob("*.jpg"))
    _write("images.csv", ("path", "domain", "class"), ((str(path), *path.parts[1:3]) for path in own))
    draws = np.random.default_rng(0)
    np.savez("theirs.npz", label=np.arange(40) % 5 - 1, logits=draws.normal(size=(40, 4)))


def _write(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def clear(words: Sequence[str]) -> None:
    """Remove the folder that a command is about to write, which an earlier one may have written."""
    if words[0] == "pull":
        shutil.rmtree(words[2], ignore_errors=True)
    for option in ("-o", "--output"):
        if words[0] == "calibrate" and option in words:
            shutil.rmtree(words[words.index(option) + 1], ignore_errors=True)
