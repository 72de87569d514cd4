"""Damaged and hostile model files, read by `medic.load` and `medic predict`, which then decide on an image."""

import contextlib
import copy
import functools
import hashlib
import io
import json
import math
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load, save

from benchmarks.fuzz.damage import damage, nested, replace_value
from benchmarks.fuzz.harness import Door, Fault, command

CLASSES = ["cat", "dog"]
BASES = {
    "cls": ("close", 1), "bcls": ("separate", 1), "energy": ("shared", 1), "max-logit": ("close", 2),
    "openmax": ("close", 1), "knn": ("close", 1), "mahalanobis": ("close", 1),
}  # fmt: skip
"""Scores, each with the head and the number of networks of a model that uses it."""
VALUES: dict[str, tuple[Any, ...]] = {
    "format": (1, 2.0, 3, True, "2", 10**400),
    "classes": ([], ["cat"], ["cat", "cat"], ["cat", ""], ["unknown", "dog"], ["\x1b[2J", "\n"], ["\ud800", "dog"],
                ["cat", "dog", "owl"], [[]], {"cat": 0, "dog": 1}, "cat", ["x" * 10**5, "dog"], ["cat"] * 10**4),
    "model/backbone": ("mnist-cnn", "hf-hub:x/y", "hf_hub:x/y", "local-dir:/etc", "timm/resnet18",
                       "../../etc/passwd", "/dev/zero", "*",
                       "[", "convnet.x", "resnet18.nope", "convnet\0", "x" * 10**6, "os.system", "", "*" * 1000 + "x"),
    "model/head": ("close", "separate", "shared", "", "../x", "__class__", "onering", "evidential"),
    "model/networks": (0, 1, 2, 3, 100, 101, -1, 10**30, True, 1.0, "1"),
    "preprocessing/size": (1, 8, 16, 31, 33, 64, 224, 4097, 10**9, True, 32.0, "32"),
    "preprocessing/decoded": (1, 2, 31, 33, 100, 4097, -32, True, 32.5),
    "preprocessing/mean": ([0.5] * 2, [0.5] * 4, [1e308] * 3, ["nan"] * 3, [], [True] * 3, [-1e30] * 3),
    "preprocessing/std": ([0] * 3, [1e-320] * 3, [-0.5] * 3, ["inf"] * 3, [1e308] * 3, [None] * 3),
    "preprocessing/resampling": ("nearest", None, "bilinear"),
    "preprocessing/upright": (False, 1, "true"),
    "views": (0, 1, 2, 3, -1, 1.9, "2", True, 10**6, 10**30, float("inf")),
    "score/name": (*BASES, "reject", "eval", "", "__call__", None),
    "threshold/value": (0, 1e308, -1e308, float("inf"), -float("inf"), float("nan"), "0.5", "1_0", True, 10**400),
    "threshold/probability": (None, 0, 0.5, 1, 2, -1, float("nan"), "0.5"),
    "threshold/rule": ("", "fixed", "\x1b[2J", None, [], "x" * 10**5),
    "sha256": ("", None, "0" * 64, "../x"),
    "checksum": ("", None, "0" * 64, [], nested(200)),
    "provenance": (None, [], {"images": "x"}, nested(200), "../../x"),
}  # fmt: skip
"""Values that each entry of a description is given, by its place."""
LARGE = (
    "gfnet_h_ti",
    "resnet18",
    "resnet152",
    "vit_tiny_patch16_224",
    "beit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
)
"""Backbones that take long to make, even without their weights."""
TENSORS = (
    lambda tensor: torch.full_like(tensor, math.nan), lambda tensor: torch.full_like(tensor, math.inf),
    lambda tensor: tensor.double(), lambda tensor: tensor.half(), lambda tensor: tensor.long(),
    lambda tensor: tensor > 0, lambda tensor: tensor.to(torch.complex64), lambda tensor: tensor[..., None],
    lambda tensor: tensor.to(torch.float8_e5m2),
    lambda tensor: tensor.flatten()[:1], lambda tensor: tensor.flatten()[:0], lambda tensor: torch.zeros(()),
    lambda tensor: -tensor, lambda tensor: 1e30 * tensor, lambda tensor: torch.zeros_like(tensor),
    lambda tensor: torch.cat([tensor.flatten()] * 2),
)  # fmt: skip
"""Other tensors in the place of one."""


@functools.cache
def image() -> bytes:
    """Return the image that every model decides on."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


@functools.cache
def bases() -> tuple[tuple[dict[str, Any], bytes], ...]:
    """Return the descriptions and weights of small models, which have no training behind them."""
    from medic.models import assemble, create_backbone
    from medic.openset import Fitted, get_score
    from medic.utils.outputs import Output

    torch.manual_seed(0)
    models = []
    for name, (head, networks) in BASES.items():
        network = assemble([create_backbone("convnet") for _ in range(networks)], len(CLASSES), head)
        label = torch.arange(40) % 2
        output = Output(4 * torch.nn.functional.one_hot(label, 2) + torch.rand(40, 2), features=torch.rand(40, 256))
        score = get_score(name).fit(output, label)
        fitted = score.function.tensors if isinstance(score.function, Fitted) else {}
        weights = save({**network.state_dict(), **{f"score/{key}": value for key, value in fitted.items()}})
        described = {
            "sha256": hashlib.sha256(weights).hexdigest(), "format": 2, "classes": CLASSES, "views": 1,
            "score": {"name": name}, "provenance": {"method": "erm"},
            "model": {"backbone": "convnet", "head": head, "networks": networks},
            "preprocessing": {"upright": True, "resampling": "bilinear", "decoded": 32, "mean": [0.5] * 3,
                              "std": [0.5] * 3, "size": 32},
            "threshold": {"value": 0.0, "rule": "fixed", "probability": 0.5 if score.probability else None},
        }  # fmt: skip
        models.append((described, weights))
    return tuple(models)


def make_model(draw: random.Random) -> tuple[bytes, bytes]:
    """Return the two files of a model with something wrong, mostly with the right checksum."""
    described, weights = draw.choice(bases())
    sealed, kind = copy.deepcopy(described), draw.random()
    if kind < 0.15:
        weights = _damage_weights(weights, draw)
        sealed["sha256"] = hashlib.sha256(weights).hexdigest()
    if 0.13 < kind < 0.5:
        for place in draw.sample(list(VALUES), draw.choice((1, 1, 1, 2, 3))):
            *outer, last = place.split("/")
            functools.reduce(dict.__getitem__, outer, sealed)[last] = draw.choice(VALUES[place])
        if draw.random() < 0.005:
            sealed["model"]["backbone"] = draw.choice(LARGE)
        elif draw.random() < 0.002:
            sealed["preprocessing"][draw.choice(("size", "decoded"))] = 4096
    elif 0.5 < kind < 0.8:
        sealed = replace_value(sealed, draw)
    text = json.dumps(sealed).encode()
    if 0.8 < kind < 0.97:
        text = damage(text, draw)
    if 0.95 < kind < 0.98:
        weights = damage(weights, draw)
    return text, weights


def _damage_weights(weights: bytes, draw: random.Random) -> bytes:
    chance = draw.random()
    if chance < 0.3:
        return damage(weights, draw)
    if chance < 0.65:
        length = int.from_bytes(weights[:8], "little")
        header = json.dumps(replace_value(json.loads(weights[8 : 8 + length]), draw)).encode()
        return len(header).to_bytes(8, "little") + header + weights[8 + length :]
    tensors = load(weights)
    name = draw.choice(list(tensors))
    tensor = tensors.pop(name)
    if draw.random() < 0.1:
        tensors[draw.choice(("x", "../x", "score/x", "score/", "networks.0.x", ""))] = tensor
    elif draw.random() < 0.9:
        with contextlib.suppress(RuntimeError):  # a whole number cannot be NaN
            tensors[name] = draw.choice(TENSORS)(tensor)
    return save(tensors)


def write_special(folder: Path, draw: random.Random) -> None:
    """Put something else than a file in the place of one of the two."""
    path = folder / draw.choice(("model.json", "model.safetensors"))
    path.unlink()
    match draw.randrange(5):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(draw.choice(("/dev/zero", "/dev/stdin", "/proc/self/mem", "/etc/passwd", "x", path.name)))
        case 2:
            with path.open("wb") as file:
                file.truncate(draw.choice((0, 7, 8, 2**24 + 1, 2**33)))
        case 3:
            path.mkdir()
        case _:
            pass


def prepare(folder: Path) -> None:
    """Use a model of each kind, and import what is imported late."""
    for described, weights in bases():
        _write(folder / "model", json.dumps(described).encode(), weights)
        assert _decide(folder / "model"), "the model is not damaged yet"
    (folder / "image.png").write_bytes(image())
    assert command("predict", str(folder / "model"), str(folder / "image.png"), "--quiet", "--device", "cpu")[0] == 0


def _skip_initial_weights() -> None:
    """Draw no initial weights any more, which take most of the time and are overwritten by those of a file."""
    from medic.models import create_backbone

    bases()
    create_backbone("resnet18")  # timm starts a program when it is imported
    for name in ("kaiming_normal_", "kaiming_uniform_", "uniform_", "normal_", "trunc_normal_"):
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def _write(folder: Path, text: bytes, weights: bytes) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "model.json").write_bytes(text)
    (folder / "model.safetensors").write_bytes(weights)


def attempt(folder: Path, draw: random.Random) -> bool:
    """Load a model and decide on an image; rarely by `medic predict`."""
    _write(folder / "model", *make_model(draw))
    if draw.random() < 0.005:
        write_special(folder / "model", draw)
    if draw.random() < 0.02:
        options = [str(folder / "model"), str(folder / "image.png"), "--quiet", "--device", "cpu"]
        return command("predict", *options, "--format", draw.choice(("csv", "jsonl")))[0] == 0
    return _decide(folder / "model")


def _decide(folder: Path) -> bool:
    """Return whether a model is accepted; its decision must then be one."""
    import medic
    from medic.errors import MedicError

    try:
        predictor = medic.load(folder)
        (prediction,) = predictor.predict(image())
    except MedicError as error:
        if "\n" in str(error):
            raise Fault(f"an error of several lines: {str(error)[:80]!r}") from error
        return False
    classes = set(predictor.classes)
    sane = (
        len(classes) == len(predictor.classes)
        and prediction.label in (classes if prediction.known else {"unknown"})
        and {name for name, _ in prediction.top} <= classes
        and all(0 <= value <= 1 for _, value in prediction.top)
        and not math.isnan(prediction.score)
        and (
            prediction.score == predictor.display_threshold  # both may be infinite
            or abs(prediction.score - predictor.display_threshold) < 1e-6
            or prediction.known == (prediction.score > predictor.display_threshold)
        )
    )
    if not sane:
        raise Fault(f"a wrong answer: {str(prediction)[:120]}")
    return True


DOOR = Door("model", prepare, attempt, 10_000, _skip_initial_weights)
