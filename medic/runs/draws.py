"""DomainBed's random search: hyper-parameters that a number draws, each from a generator of its own name."""

from dataclasses import replace
from typing import Any, cast

import numpy as np

from medic.data.holdout import seed_hash
from medic.errors import MedicError
from medic.runs.config import RunConfig
from medic.methods import SHARED, Law, Method, Numbers, Range

SMALL = 32
"""The side in pixels up to which images are of DomainBed's small family."""


def draw(law: Law, hparams_seed: int, trial_seed: int) -> float | int:
    """The value that DomainBed draws for a number."""
    seed = seed_hash(seed_hash(hparams_seed, trial_seed), law.name)
    return law.draw(np.random.RandomState(seed))


def with_draws(config: RunConfig, method: Method, size: int, sources: int, tasks: int) -> RunConfig:
    """The settings with the numbers that `hparams_seed` stands for; what was given explicitly stays.

    DomainBed's batch is per source domain; here it is dealt over the tasks of an iteration.
    """
    if "lr" in method.search and config.lr is None and config.optimizer not in (None, method.training.optimizer):
        raise MedicError(
            f"the outer step of method {method.name!r} goes a part of the way, for which optimizer "
            f"{config.optimizer!r} has no usual rate: leave out --optimizer, or give --lr"
        )
    if config.hparams_seed == 0:
        return config
    if (config.optimizer or method.training.optimizer) == "sgd" and "lr" not in method.search:
        raise MedicError(f"hparams_seed {config.hparams_seed} draws rates of Adam, as DomainBed: add --optimizer adam")
    trial = config.seed if config.trial_seed is None else config.trial_seed

    def drawn(law: Law) -> Any:
        return draw(law, config.hparams_seed, trial)

    shared = SHARED["domainnet" if config.dataset == "domainnet" else "small" if size <= SMALL else "large"]
    sizes = cast(Range, shared["batch_size"])
    batch = max(1, drawn(replace(sizes, low=method.least_batch)) * sources // tasks)
    decay = drawn(shared["weight_decay"]) if "weight_decay" in shared else 0.0
    settings: dict[str, Any] = {"lr": drawn(shared["lr"]), "weight_decay": decay}
    if config.images is None:
        settings["batch_size"] = batch
    own = dict(method.search)
    if "lr" in own:  # the rate of the outer step, which goes a part of the way; DomainBed's is that of the inner ones
        settings |= {"inner_lr": settings["lr"], "lr": drawn(own.pop("lr")), "weight_decay": 0.0}
    numbers = {name: drawn(law) for name, law in own.items()}
    if getattr(method.strategy, "inner", None) == "adam":  # DomainBed's own, whose inner steps have the decay too
        numbers["decay"] = decay
    given = Numbers(config.hparams).given
    return replace(
        config,
        **{name: value for name, value in settings.items() if getattr(config, name) is None},
        hparams={**numbers, **given} or None,
    )
