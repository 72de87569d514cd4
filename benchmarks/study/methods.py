"""The methods that a study can train, by name."""

import itertools
from typing import Any

from benchmarks.recipes import trials

METHODS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "medic": {"method": "medic"},
    "medic++": {"method": "medic++"},
    "erm frozen": {"method": "erm", "batch_norm": "frozen"},
    "medic++ frozen": {"method": "medic++", "batch_norm": "frozen"},
    "erm per domain": {"method": "coral", "hparams": {"gamma": 0}},
    "erm adam": {"method": "erm", "batch_norm": "frozen", "optimizer": "adam", "lr": 5e-5, "schedule": "constant"},
    "fish": {"method": "fish"},
    "fish frozen": {"method": "fish", "batch_norm": "frozen"},
    "fish interpolate": {"method": "fish", "bn_buffers": "interpolate"},
    **{
        f"medic++ {sampling}{' step' if separate == 'step' else ''}": {
            "method": "medic++", "sampling": sampling.removesuffix("-short"), "separate": separate,
            **({"hparams": {"decay": 0.5, "lag": 1}} if sampling.endswith("-short") else {}),
        }
        for sampling, separate in itertools.product(("adaptive", "adaptive-short", "probe", "random"), ("task", "step"))
        if (sampling, separate) not in {("adaptive", "task"), ("random", "step")}
    },
    **trials(),
}  # fmt: skip
"""Settings by name. `medic++` itself samples adaptively, with confusable classes in different tasks.

`erm per domain` normalises every domain separately, as Fish does: the penalty of its method has weight 0.
"""
