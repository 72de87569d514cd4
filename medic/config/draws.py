"""DomainBed's random search: hyperparameters drawn from a seed, each by a generator named after it."""

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
"""The ranges that all methods share: for images of up to 32 pixels, for larger ones, and for DomainNet."""


def draw(law: Law, hparams_seed: int, trial_seed: int) -> float | int:
    """Draw DomainBed's value of a hyperparameter."""
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
    """Return the settings that `hparams_seed` draws; settings of the user are left out.

    DomainBed's batch size is per source domain; here it is divided between the tasks of an iteration.
    """
    own = method.preset.get("optimizer", "sgd")
    if "lr" in search and "lr" not in user and user.get("optimizer", own) != own:
        raise MedicError(
            f"method {method.name!r} interpolates weights, for which optimizer {user['optimizer']!r} has no usual "
            "rate: leave out --optimizer, or give --lr"
        )
    number = user.get("hparams_seed", 0)
    if number == 0:
        return {}
    if layered["optimizer"] == "sgd" and "lr" not in search:
        raise MedicError(f"hparams_seed {number} draws learning rates of Adam, as DomainBed: add --optimizer adam")
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
    if "lr" in laws:  # the interpolation factor of the outer step; DomainBed's rate is that of the inner steps
        settings |= {"inner_lr": settings["lr"], "lr": drawn(laws.pop("lr")), "weight_decay": 0.0}
    values = {name: drawn(law) for name, law in laws.items()}
    if method.strategy.values.get("inner") == "adam":  # whose inner steps have the weight decay too
        values["decay"] = decay
    hparams = {**values, **parse_hparams(user.get("hparams"))}
    kept = {name: value for name, value in settings.items() if name not in user}
    return {**kept, **({"hparams": hparams} if hparams else {})}
