"""Sweep definitions written by users: settings, `span` and `variants`, in a YAML file or in Python."""

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
        raise MedicError(f"{file} must contain settings, one `name: value` per line")
    span, variants = values.pop("span", None) or {}, values.pop("variants", None) or []
    return make_sweep(values, span, variants, file, path)


def make_sweep(settings: Any, span: Any, variants: Any, origin: str = "sweep", path: Path | None = None) -> Sweep:
    """Check the parts of a sweep and create it. `origin` names the sweep in errors.

    A span value that is not a list is treated as a list with one element.
    """
    span = _named(span, f"span of {origin}")
    if not isinstance(variants, list | tuple):
        raise MedicError(
            f"{origin}: variants must be a list, one line per variant, such as `- {{method: erm, lr: 0.1}}`"
        )
    settings, *checked_variants = [
        _named(settings, origin),
        *(_named(variant, f"variants of {origin}") for variant in variants),
    ]
    for name, value in (entry for part in (settings, *checked_variants) for entry in part.items()):
        if isinstance(value, str) and RANGE.fullmatch(value):
            raise MedicError(f"{origin}: {name} {value!r} is a range: list several values of a setting under `span`")
    for name, value in span.items():
        if value in (None, []):
            raise MedicError(f"{origin}: {name} has no values: list at least one, as in [0, 1]")
        if name in settings:
            raise MedicError(f"{origin}: {name} is set both in the span and outside it: remove one of them")
    try:
        settings = check_settings(settings)
    except MedicError as error:
        raise MedicError(f"{origin}: {error}") from error
    if any("output" in part for part in (span, *checked_variants)):
        raise MedicError(f"{origin}: all runs share one output: set it once, outside span and variants")
    spans = {name: value if isinstance(value, list) else [value] for name, value in span.items()}
    return Sweep(settings, spans, checked_variants, path)


def check_shareable(sweep: Sweep) -> None:
    """Raise an error if a sweep needs objects, which exist only in this process."""
    from medic.config.sources import is_live  # here, because it imports torch

    for name in ("backbone", "dataset"):
        values = [sweep.settings.get(name), *sweep.span.get(name, ())]
        if any(not isinstance(value, str | None) for value in values):
            raise MedicError(f"{name} in the span must be a name or a function as MODULE:FUNCTION, got an object")
        if live := next(filter(is_live, values), None):
            raise MedicError(
                f"{live} exists only in this process, so a sweep cannot share it: pass a function from a module"
            )


def _named(values: Any, where: str) -> dict[str, Any]:
    """Return settings by their canonical names; `where` names the part of the sweep in errors."""
    if not isinstance(values, Mapping):
        raise MedicError(f"{where}: expected settings, such as `name: value`")
    return {known_setting(setting_name(str(key)), f"in {where}"): value for key, value in values.items()}
