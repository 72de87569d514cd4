"""Training recipes for pretrained weights, to be compared by the judges of `benchmarks.judges`.

A recipe is a set of settings. The trials of a method are named `METHOD @ RECIPE` in a study:

    python -m benchmarks.study run pacs --output DIR --methods "erm @ frozen 0.0054" "medic++ @ frozen 0.0054" \
        --targets sketch photo,sketch --seeds 0 --iterations 500 --evaluations 1 --averages swad --interpolate 0.8 …

A run with two targets is a rehearsal: some of its known classes are left out and play the unknown ones.
"""

from collections.abc import Mapping
from typing import Any

from medic.config.starts import SGD_DECAY

_SGD: Mapping[str, Any] = {
    "optimizer": "sgd", "weight_decay": SGD_DECAY, "schedule": "step", "warmup": 0, "clip_norm": 0.0,
    "layer_decay": 1.0, "head_first": 0, "batch_norm": "local", "augment": "medic",
}  # fmt: skip
"""Settings of every recipe that it does not change. A recipe names them all, since medic's defaults change."""
_FROZEN: Mapping[str, Any] = {**_SGD, "batch_norm": "frozen"}
_ADAMW: Mapping[str, Any] = {**_SGD, "optimizer": "adamw", "schedule": "cosine", "warmup": 50}

SHARED: Mapping[str, Mapping[str, Any]] = {
    "0.3": {**_SGD, "lr": 0.0018},
    "local 0.016": {**_SGD, "lr": 0.016},
    "frozen 0.0018": {**_FROZEN, "lr": 0.0018},
    "frozen 0.0054": {**_FROZEN, "lr": 0.0054},
    "frozen 0.0054 warm": {**_FROZEN, "lr": 0.0054, "warmup": 50},
    "frozen 0.0054 warm cosine": {**_FROZEN, "lr": 0.0054, "warmup": 50, "schedule": "cosine"},
    "frozen 0.0054 clip": {**_FROZEN, "lr": 0.0054, "clip_norm": 1.0},
    "frozen 0.0054 clip 5": {**_FROZEN, "lr": 0.0054, "clip_norm": 5.0},
    "frozen 0.016 clip": {**_FROZEN, "lr": 0.016, "clip_norm": 1.0},
    "frozen 0.016 warm": {**_FROZEN, "lr": 0.016, "warmup": 50},
    "frozen adamw": {**_ADAMW, "lr": 1e-4, "weight_decay": 0.01, "batch_norm": "frozen"},
}
"""Recipes by name. Warm-up takes 50 of 500 iterations."""

PROBES: Mapping[str, Mapping[str, Any]] = {
    f"head {lr:g}": {**_SGD, "augment": "none", "lr": lr} for lr in (0.0018, 0.0054, 0.018, 0.054, 0.18)
}
"""Recipes by name for a head on frozen features (`--option tune=head`)."""

_VIT: Mapping[str, Any] = {**_ADAMW, "weight_decay": 0.05, "clip_norm": 1.0}
_DECAY: Mapping[str, Any] = {"layer_decay": 0.75}
_HEAD: Mapping[str, Any] = {"head_first": 50}
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "vit 0.3": {**_SGD, "lr": 0.0018},
    "vit sgd": {**_SGD, "lr": 0.0054, "clip_norm": 5.0},
    "vit adamw 3e-5": {**_VIT, "lr": 3e-5},
    "vit adamw 1e-4": {**_VIT, "lr": 1e-4},
    "vit adamw 1e-4 decay": {**_VIT, "lr": 1e-4, **_DECAY},
    "vit adamw 3e-4 decay": {**_VIT, "lr": 3e-4, **_DECAY},
    "vit adamw 1e-4 head": {**_VIT, "lr": 1e-4, **_HEAD},
    "vit adamw 3e-4 head": {**_VIT, "lr": 3e-4, **_HEAD},
    "vit adamw 1e-4 decay head": {**_VIT, "lr": 1e-4, **_DECAY, **_HEAD},
    "vit adamw 3e-4 decay head": {**_VIT, "lr": 3e-4, **_DECAY, **_HEAD},
    "vit adamw 1e-3 decay head": {**_VIT, "lr": 1e-3, **_DECAY, **_HEAD},
    "vit adamw 1.8e-3 decay head": {**_VIT, "lr": 1.8e-3, **_DECAY, **_HEAD},
}
"""Recipes by name for networks without batch norm. Warm-up and the head alone take 50 of 500 iterations."""

_GREY: Mapping[str, Any] = {"augment": "scale=0.8:1.0,flip=0.5,jitter=0.4,grey=0.5"}
_GREY_CROPS: Mapping[str, Any] = {"augment": "scale=0.4:1.0,flip=0.5,jitter=0.4,grey=0.5"}
_LORA: Mapping[str, Any] = {**_VIT, "lr": 0.001, "weight_decay": 0.0, "tune": "adapters"}
AT_224: Mapping[str, Mapping[str, Any]] = {
    **{name.replace("vit", "vit-224"): settings for name, settings in TRANSFORMERS.items()},
    "vit-224 adamw 1e-3 decay head grey": {**TRANSFORMERS["vit adamw 1e-3 decay head"], **_GREY},
    "vit-224 adamw 1e-3 decay head grey crops": {**TRANSFORMERS["vit adamw 1e-3 decay head"], **_GREY_CROPS},
    "lora-224 adamw 0.001": _LORA,
    "lora-224 adamw 0.001 grey crops": {**_LORA, **_GREY_CROPS},
}
"""The same recipes at 224 pixels, the default with more augmentation, and adapters."""

ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    f"lora adamw {lr:g}": {**_VIT, "lr": lr, "weight_decay": 0.0} for lr in (0.0003, 0.001, 0.003)
}
"""Recipes by name for low-rank adapters (`--option tune=adapters`)."""

RECIPES = {**SHARED, **PROBES, **TRANSFORMERS, **AT_224, **ADAPTERS}
"""Recipes by name, for every method."""

INNER = {
    **dict.fromkeys(("0.3", "local 0.016", *PROBES, "vit 0.3", *AT_224), 0.01),
    **dict.fromkeys(TRANSFORMERS.keys() - {"vit 0.3"}, 0.001),
    **dict.fromkeys(ADAPTERS, 0.2 * 0.0018),
    "frozen 0.0018": 0.0009,
    "frozen 0.0054": 0.0027,
    "frozen 0.0054 warm": 0.0027,
    "frozen 0.0054 warm cosine": 0.0027,
    "frozen 0.0054 clip": 0.0011,
    "frozen 0.0054 clip 5": 0.0011,
    "frozen 0.016 clip": 0.003,
    "frozen 0.016 warm": 0.003,
    "frozen adamw": 0.001,
}
"""Inner learning rates of MEDIC++ by recipe: with frozen batch norm, about half the outer rate or less."""

OTHER_INNER: Mapping[str, Mapping[str, Any]] = {
    "frozen 0.0054 inner 0.2": {**_FROZEN, "lr": 0.0054, "inner_lr": 0.0011},
    **{f"{name} inner": {**PROBES[name], "inner_lr": 0.2 * PROBES[name]["lr"]} for name in list(PROBES)[1:]},
    **{
        f"{name} inner 0.01": {**TRANSFORMERS[name], "inner_lr": 0.01}
        for name in ("vit adamw 1e-4 head", "vit adamw 1e-3 decay head")
    },
}
"""Recipes by name with another inner learning rate, for MEDIC++ only."""

BASES: Mapping[str, Mapping[str, Any]] = {
    "erm": {"method": "erm"},
    "erm ova": {"method": "erm", "objective": "ce+ova"},
    "medic++": {"method": "medic++"},
}
"""Methods by name: ERM with its softmax and with a one-vs-all head, and MEDIC++."""


def trials() -> dict[str, dict[str, Any]]:
    """Return the settings of all trials by name: the same number for every method."""
    named: dict[str, dict[str, Any]] = {}
    for base, settings in BASES.items():
        for recipe, changes in RECIPES.items():
            inner = {"inner_lr": INNER[recipe]} if base == "medic++" else {}
            named[f"{base} @ {recipe}"] = {**settings, **changes, **inner}
        # One trial more for the setting that matters to the method: the inner rate, or the outer one.
        others = OTHER_INNER if base == "medic++" else {"frozen 0.003": {**_FROZEN, "lr": 0.003}}
        named |= {f"{base} @ {recipe}": {**settings, **changes} for recipe, changes in others.items()}
    return named
