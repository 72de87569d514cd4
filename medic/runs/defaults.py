"""What of a complete configuration says no more than its other settings do."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from medic.runs.config import RunConfig
from medic.runs.plans import open_once
from medic.runs.resolve import resolve

_OPEN = tuple(
    each.name
    for each in dataclasses.fields(RunConfig)
    if each.default is None and not each.metadata["local"] and each.name != "target"
)
"""Settings that may be left to the method, the benchmark and other settings."""


def without_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a complete configuration without those that would be the same if they were left out.

    So one of them can be changed, and what follows from it follows: the tasks of another method, the sources of another
    target.
    """
    find = open_once()
    bare = {**settings, "weights": None}  # which follow from nothing, and are looked for when the run is planned
    complete = resolve(RunConfig(**bare), find).config
    kept = {name: value for name, value in bare.items() if name not in _OPEN}
    if kept["hparams_seed"]:  # whose draws are those of an optimizer
        kept["optimizer"] = settings["optimizer"]
    while True:
        found = resolve(RunConfig(**kept), find).config
        other = {name for name in _OPEN if getattr(found, name) != getattr(complete, name)}
        lost = other & settings.keys() - kept.keys()
        if not lost:
            return {name: value for name, value in settings.items() if name in kept}
        kept |= {name: settings[name] for name in lost}
