"""Training recipes for pretrained weights, to be compared by the judges of `benchmarks.judges`.

A recipe is a set of settings. The trials of a method are named `METHOD @ RECIPE` in a study:

    python -m benchmarks.study run pacs --output DIR --methods "erm @ frozen 0.0054" "medic++ @ frozen 0.0054" \
        --targets sketch photo,sketch --seeds 0 --iterations 500 --evaluations 1 --averages swad --interpolate 0.8 …

A run with two targets is a rehearsal: some of its known classes are left out and play the unknown ones.
"""

from collections.abc import Mapping
from typing import Any

_FROZEN = {"batch_norm": "frozen"}
_TRAINED = {"batch_norm": "local"}
_WARM = {"warmup": 50}
_ADAMW = {"optimizer": "adamw", "weight_decay": 0.01, **_FROZEN, **_WARM, "schedule": "cosine"}

SHARED: Mapping[str, Mapping[str, Any]] = {
    "0.3": {"lr": 0.0018, **_TRAINED},
    "local 0.016": {"lr": 0.016, **_TRAINED},
    "frozen 0.0018": {"lr": 0.0018, **_FROZEN},
    "frozen 0.0054": {"lr": 0.0054, **_FROZEN},
    "frozen 0.0054 warm": {"lr": 0.0054, **_FROZEN, **_WARM},
    "frozen 0.0054 warm cosine": {"lr": 0.0054, **_FROZEN, **_WARM, "schedule": "cosine"},
    "frozen 0.0054 clip": {"lr": 0.0054, **_FROZEN, "clip_norm": 1.0},
    "frozen 0.0054 clip 5": {"lr": 0.0054, **_FROZEN, "clip_norm": 5.0},
    "frozen 0.016 clip": {"lr": 0.016, **_FROZEN, "clip_norm": 1.0},
    "frozen 0.016 warm": {"lr": 0.016, **_FROZEN, **_WARM},
    "frozen adamw": {"lr": 1e-4, **_ADAMW},
}
"""Recipes by name. Warm-up takes 50 of 500 iterations."""

INNER = {
    "0.3": 0.01,
    "local 0.016": 0.01,
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

PROBES: Mapping[str, Mapping[str, Any]] = {
    **{f"head {lr:g}": {"lr": lr} for lr in (0.0018, 0.0054, 0.018, 0.054, 0.18)},
    **{f"head {lr:g} inner": {"lr": lr, "inner_lr": 0.2 * lr} for lr in (0.0054, 0.018, 0.054, 0.18)},
}
"""Recipes by name for a head on frozen features (`--option tune=head`)."""

_TRANSFORMER = {"optimizer": "adamw", "weight_decay": 0.05, "schedule": "cosine", **_WARM, "clip_norm": 1.0}
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "vit 0.3": {"lr": 0.0018},
    "vit sgd": {"lr": 0.0054, "clip_norm": 5.0},
    "vit adamw 3e-5": {"lr": 3e-5, **_TRANSFORMER},
    "vit adamw 1e-4": {"lr": 1e-4, **_TRANSFORMER},
    "vit adamw 1e-4 decay": {"lr": 1e-4, **_TRANSFORMER, "layer_decay": 0.75},
    "vit adamw 3e-4 decay": {"lr": 3e-4, **_TRANSFORMER, "layer_decay": 0.75},
    "vit adamw 1e-4 head": {"lr": 1e-4, **_TRANSFORMER, "head_first": 50},
    "vit adamw 3e-4 head": {"lr": 3e-4, **_TRANSFORMER, "head_first": 50},
    "vit adamw 3e-4 decay head": {"lr": 3e-4, **_TRANSFORMER, "layer_decay": 0.75, "head_first": 50},
    "vit adamw 1e-3 decay head": {"lr": 1e-3, **_TRANSFORMER, "layer_decay": 0.75, "head_first": 50},
}
"""Recipes by name for networks without batch norm. Warm-up and the head alone take 50 of 500 iterations."""

INNER_TRANSFORMER = {name: 0.01 if name == "vit 0.3" else 0.001 for name in TRANSFORMERS}
"""Inner learning rates of MEDIC++ by recipe."""

KEPT_INNER = ("0.3", "adamw 1e-4 head", "adamw 3e-4 decay", "adamw 3e-4 decay head", "adamw 1e-3 decay head")
"""Recipes for 224 pixels, `vit-224 NAME`: MEDIC++ keeps its inner learning rate, 0.01, in each of them."""

ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    f"lora adamw {lr:g}": {"lr": lr, **_TRANSFORMER, "weight_decay": 0.0} for lr in (0.0003, 0.001, 0.003)
}
"""Recipes by name for low-rank adapters (`--option tune=adapters`); MEDIC++ keeps its inner learning rate, 0.01."""

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
        for recipe, changes in SHARED.items():
            inner = {"inner_lr": INNER[recipe]} if base == "medic++" else {}
            named[f"{base} @ {recipe}"] = {**settings, **changes, **inner}
        for recipe, changes in PROBES.items():
            if base == "medic++" or "inner_lr" not in changes:
                named[f"{base} @ {recipe}"] = {**settings, **changes}
        for recipe, changes in TRANSFORMERS.items():
            inner = {"inner_lr": INNER_TRANSFORMER[recipe]} if base == "medic++" else {}
            named[f"{base} @ {recipe}"] = {**settings, **changes, **inner}
        named |= {f"{base} @ {recipe}": {**settings, **changes} for recipe, changes in ADAPTERS.items()}
        named |= {f"{base} @ vit-224 {recipe}": {**settings, **TRANSFORMERS[f"vit {recipe}"]} for recipe in KEPT_INNER}
        # One trial more for the setting that matters to the method: the inner rate, or the outer one.
        if base == "medic++":
            changes = {"lr": 0.0054, "inner_lr": 0.0011, **_FROZEN}
            named[f"{base} @ frozen 0.0054 inner 0.2"] = {**settings, **changes}
            for recipe in ("vit adamw 1e-4 head", "vit adamw 1e-3 decay head"):
                named[f"{base} @ {recipe} inner 0.01"] = {**settings, **TRANSFORMERS[recipe], "inner_lr": 0.01}
        else:
            named[f"{base} @ frozen 0.003"] = {**settings, "lr": 0.003, **_FROZEN}
    return named
