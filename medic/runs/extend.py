"""Continue a finished run for more iterations, as a new run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medic.config.imports import execute
from medic.config.plan import Plan
from medic.config.settings import SETTINGS, check_settings
from medic.config.sources import allow_sources, use_sources
from medic.errors import MedicError
from medic.runs.layout import CHECKPOINT, HASH
from medic.runs.run import Run


def check_extension(plan: Plan, base: Path) -> None:
    """Raise an error if the run behind checkpoint `base` was trained with an earlier version whose defaults differ."""
    run = Run(base.parents[1])
    ours = plan.config.identity
    compared = (run.settings.keys() & ours.keys()) - {"extend", "iterations", "evaluate_every"}
    changed = sorted(name for name in compared if run.settings[name] != ours[name])
    if changed:
        options = " ".join(f"--{name.replace('_', '-')} {run.settings[name]}" for name in changed)
        raise MedicError(f"run {run.path} was trained with an earlier version's defaults: add {options}")


def extended(user_settings: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Return the run's settings and, if it extends another run, the checkpoint to start from.

    The `extend` setting is replaced by the hash of the extended run, which does not depend on its location. If `extend`
    is already a hash, the run has started before and resumes.
    """
    settings = check_settings(user_settings)
    place = settings.get("extend")
    if place is None or (HASH.fullmatch(place) and not Path(place).exists()):
        return settings, None
    base = Run(place)
    base.check()
    if base.config.soup:
        raise MedicError(f"run {base.path} is a soup and has no training to continue: extend one of its runs instead")
    kept = check_settings(base.user_settings)
    free = {"extend", "iterations", *(name for name, setting in SETTINGS.items() if setting.local)}
    for name, value in settings.items():
        if name not in free and value not in (base.settings[name], base.user_settings.get(name)):
            option = name.replace("_", "-")
            raise MedicError(f"--extend keeps {name} {base.settings[name]} from run {base.path}: omit --{option}")
    iterations, before = settings.get("iterations"), base.config.optim.iterations
    if iterations is None or iterations <= before:
        raise MedicError(f"run {base.path} already has {before} iterations: set --iterations to a larger total")
    if kept.get("imports") and not settings.get("imports"):
        names = " ".join(f"--import {name}" for name in kept["imports"])
        raise MedicError(
            f"run {base.path} was trained with custom code, which medic executes only on request: add {names}"
        )
    imported = execute(settings.get("imports") or ())
    use_sources(settings)  # the user has named them
    allow_sources(kept, f"run {base.path}")
    recorded = {plugin.sha256 for plugin in base.plugins}
    if changed := [one.name for one in (*imported, *use_sources(kept)) if one.sha256 not in recorded]:
        raise MedicError(f"{changed[0]} has changed since run {base.path} was trained: restore it, or train a new run")
    if not (base.path / CHECKPOINT).exists():
        raise MedicError(f"run {base.path} has no {CHECKPOINT} to continue from: train it again")
    inherited = {name: value for name, value in kept.items() if name not in ("name", "output")}
    # Phases that are over would start again if they were fractions of more iterations.
    fractions = ("warmup", "head_first", "hparams")
    inherited |= {name: base.settings[name] for name in fractions if base.settings.get(name) is not None}
    return {**inherited, **settings, "extend": base.hash}, base.path / CHECKPOINT
