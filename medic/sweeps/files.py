"""Sweeps as users write them: settings, `span` and `variants`, in a YAML file or in Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medic.config.files import load_file
from medic.config.settings import check_settings, known_setting, setting_name
from medic.errors import MedicError
from medic.sweeps.sweep import RANGE, Sweep


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from a YAML file."""
    file = f"sweep {path}"
    values = load_file("sweep", path)
    if not isinstance(values, dict):
        raise MedicError(f"{file} does not hold settings: write one `name: value` per line")
    span, variants = values.pop("span", None) or {}, values.pop("variants", None) or []
    return make_sweep(values, span, variants, file, path)


def make_sweep(settings: Any, span: Any, variants: Any, origin: str = "sweep", path: Path | None = None) -> Sweep:
    """Check the parts of a sweep; `origin` names it in errors. A value of the span that is no list counts as one."""
    span = _named(span, f"span of {origin}")
    if not isinstance(variants, list | tuple):
        raise MedicError(f"{origin}: variants are a list: write `- {{method: erm, lr: 0.1}}` per line")
    settings, *checked_variants = [
        _named(settings, origin),
        *(_named(variant, f"variants of {origin}") for variant in variants),
    ]
    for name, value in (entry for part in (settings, *checked_variants) for entry in part.items()):
        if isinstance(value, str) and RANGE.fullmatch(value):
            raise MedicError(f"{origin}: {name} is {value!r}: give several values of a setting under `span`")
    for name, value in span.items():
        if value in (None, []):
            raise MedicError(f"{origin}: {name} has no values: give some, as in [0, 1]")
        if name in settings:
            raise MedicError(f"{origin}: {name} is in the span and beside it: leave one out")
    try:
        settings = check_settings(settings)
    except MedicError as error:
        raise MedicError(f"{origin}: {error}") from error
    if any("output" in part for part in (span, *checked_variants)):
        raise MedicError(f"{origin}: all runs have one output: give it once, beside span and variants")
    spans = {name: value if isinstance(value, list) else [value] for name, value in span.items()}
    return Sweep(settings, spans, checked_variants, path)


def check_shareable(sweep: Sweep, same_process: bool) -> None:
    """Raise an error if a sweep needs objects of this process that other processes cannot have."""
    from medic.config.imports import is_local  # now, because these import torch
    from medic.config.sources import is_live

    for name in ("backbone", "dataset"):
        values = [sweep.settings.get(name), *sweep.span.get(name, ())]
        if any(not isinstance(value, str | None) for value in values):
            raise MedicError(f"{name} in the span is an object: give names, or functions as MODULE:FUNCTION")
        if live := next(filter(is_live, values), None):
            raise MedicError(
                f"{live} is an object of this process, which a sweep cannot share: give a function of a module"
            )
    methods = [sweep.settings.get("method"), *sweep.span.get("method", ())]
    methods += [variant.get("method") for variant in sweep.variants]
    local = next((method for method in methods if is_local("method", str(method))), None)
    if local is not None and not same_process:
        raise MedicError(
            f"method {local!r} exists in this process only: put it into a file and give imports=, or use "
            "executor='here'"
        )


def _named(values: Any, where: str) -> dict[str, Any]:
    """Return settings by their canonical names; `where` is their part of the sweep."""
    if not isinstance(values, Mapping):
        raise MedicError(f"{where}: give settings, as in `name: value`")
    return {known_setting(setting_name(str(key)), f"in {where}"): value for key, value in values.items()}
