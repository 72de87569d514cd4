"""Continue a finished run to more iterations, as another run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medic.config.imports import execute
from medic.config.resolve import Plan
from medic.config.settings import SETTINGS, check_settings
from medic.config.sources import allow_sources, use_sources
from medic.errors import MedicError
from medic.runs.layout import CHECKPOINT, HASH
from medic.runs.run import Run


def check_extension(plan: Plan, base: Path) -> None:
    """Refuse to continue a run of an earlier version whose defaults were others; `base` is its checkpoint."""
    run = Run(base.parents[1])
    ours = plan.config.identity
    compared = (run.settings.keys() & ours.keys()) - {"extend", "iterations", "evaluate_every"}
    changed = sorted(name for name in compared if run.settings[name] != ours[name])
    if changed:
        options = " ".join(f"--{name.replace('_', '-')} {run.settings[name]}" for name in changed)
        raise MedicError(f"run {run.path} was trained with the defaults of an earlier version: add {options}")


def extended(user_settings: Mapping[str, Any]) -> tuple[dict[str, Any], Path | None]:
    """Return the settings of a run that may extend another, and the checkpoint that it then starts from.

    The setting `extend` becomes the hash of the extended run, which identifies it wherever it is. A run whose settings
    have the hash has started before, and resumes.
    """
    settings = check_settings(user_settings)
    place = settings.get("extend")
    if place is None or (HASH.fullmatch(place) and not Path(place).exists()):
        return settings, None
    base = Run(place)
    base.check()
    if base.config.soup:
        raise MedicError(f"run {base.path} is a soup, which has no training to continue: extend one of its runs")
    kept = check_settings(base.user_settings)
    free = {"extend", "iterations", *(name for name, setting in SETTINGS.items() if setting.local)}
    for name, value in settings.items():
        if name not in free and value not in (base.settings[name], base.user_settings.get(name)):
            option = name.replace("_", "-")
            raise MedicError(
                f"run {base.path} has {name} {base.settings[name]}, and --extend keeps it: leave out --{option}"
            )
    iterations, before = settings.get("iterations"), base.config.optim.iterations
    if iterations is None or iterations <= before:
        raise MedicError(f"run {base.path} has {before} iterations: give more of them in all with --iterations")
    if kept.get("imports") and not settings.get("imports"):
        names = " ".join(f"--import {name}" for name in kept["imports"])
        raise MedicError(f"run {base.path} was trained with code that is executed only if you name it: add {names}")
    imported = execute(settings.get("imports") or ())
    use_sources(settings)  # which the user has named
    allow_sources(kept, f"run {base.path}")
    recorded = {plugin.sha256 for plugin in base.plugins}
    if changed := [one.name for one in (*imported, *use_sources(kept)) if one.sha256 not in recorded]:
        raise MedicError(f"{changed[0]} has changed since run {base.path} was trained: restore it, or train anew")
    if not (base.path / CHECKPOINT).exists():
        raise MedicError(f"run {base.path} has no {CHECKPOINT} to continue from: train it again")
    inherited = {name: value for name, value in kept.items() if name not in ("name", "output")}
    # They lie in the past, and more iterations must not repeat them as larger shares.
    inherited |= {name: base.settings[name] for name in ("warmup", "head_first") if name in base.settings}
    return {**inherited, **settings, "extend": base.hash}, base.path / CHECKPOINT
