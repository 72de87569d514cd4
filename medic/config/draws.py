"""DomainBed's random search: each hyperparameter has its own generator, seeded with the hyperparameter's name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from medic.config.objective import parse_hparams
from medic.data.holdout import seed_hash
from medic.errors import MedicError
from medic.systems.base import SMALL, Method
from medic.utils.parts import Law, Range, log10

_LARGE: Mapping[str, Law] = {
    "lr": log10("lr", -5, -3.5),
    "weight_decay": log10("weight_decay", -6, -2),
    "batch_size": Range("batch_size", 3, 5.5, 2.0, whole=True),
}

SHARED: Mapping[str, Mapping[str, Law]] = {
    "small": {"lr": log10("lr", -4.5, -2.5), "batch_size": Range("batch_size", 3, 9, 2.0, whole=True)},
    "large": _LARGE,
    "domainnet": {**_LARGE, "batch_size": Range("batch_size", 3, 5, 2.0, whole=True)},
}
"""Search ranges shared by all methods: for images up to 32 pixels, for larger images, and for DomainNet."""


def draw(law: Law, hparams_seed: int, trial_seed: int) -> float | int:
    """Draw a hyperparameter exactly as DomainBed does."""
    seed = seed_hash(seed_hash(hparams_seed, trial_seed), law.name)
    return law.draw(np.random.RandomState(seed))


def domainbed_draws(
    user: Mapping[str, Any],
    layered: Mapping[str, Any],
    method: Method,
    search: Mapping[str, Law],
    image_size: int,
    sources: int,
    tasks: int,
) -> dict[str, Any]:
    """Return the settings drawn with `hparams_seed`, except those that the user has set.

    DomainBed's batch size counts images per source domain. Here, these images are divided among the tasks of an
    iteration.
    """
    own = method.preset.get("optimizer", "sgd")
    if "lr" in search and "lr" not in user and user.get("optimizer", own) != own:
        raise MedicError(
            f"method {method.name!r} interpolates weights, so optimizer {user['optimizer']!r} has no default learning "
            "rate: omit --optimizer, or set --lr"
        )
    number = user.get("hparams_seed", 0)
    if number == 0:
        return {}
    if layered["optimizer"] == "sgd" and "lr" not in search:
        raise MedicError(
            f"--hparams-seed {number} draws learning rates for Adam, as DomainBed does: add --optimizer adam"
        )
    trial = user.get("trial_seed", user.get("seed", 0))

    def drawn(law: Law) -> Any:
        return draw(law, number, trial)

    family = "domainnet" if user.get("dataset") == "domainnet" else "small" if image_size <= SMALL else "large"
    shared = SHARED[family]
    sizes = cast(Range, shared["batch_size"])
    decay = drawn(shared["weight_decay"]) if "weight_decay" in shared else 0.0
    settings: dict[str, Any] = {"lr": drawn(shared["lr"]), "weight_decay": decay}
    if "images" not in user:
        batch = drawn(replace(sizes, low=method.min_log2_batch))
        settings["batch_size"] = max(1, batch * sources // tasks)
    laws = dict(search)
    if "lr" in laws:  # the outer step's interpolation factor; DomainBed's rate is for the inner steps
        settings |= {"inner_lr": settings["lr"], "lr": drawn(laws.pop("lr")), "weight_decay": 0.0}
    values = {name: drawn(law) for name, law in laws.items()}
    if method.strategy.values.get("inner") == "adam":  # weight decay applies to the inner steps too
        values["decay"] = decay
    hparams = {**values, **parse_hparams(user.get("hparams"))}
    kept = {name: value for name, value in settings.items() if name not in user}
    return {**kept, **({"hparams": hparams} if hparams else {})}
