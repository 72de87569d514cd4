"""Comparison of run settings, to decide which runs share a table row."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from medic.errors import respelled
from medic.runs.run import Run
from medic.utils.splits import is_drawn

_DERIVED = {"split": ("known", "unknown", "partial"), "images": ("batch_size",)}
"""User settings, with the settings that replace them in a complete configuration."""
_VARIED = frozenset({"target", "sources", "seed", "trial_seed", "hparams_seed", "all_scores", "save_features"})
"""Settings that may vary within a table row. The last two only add to what a run writes."""


def row_settings(run: Run) -> dict[str, Any]:
    """Return the user settings that may distinguish a run's row from other rows.

    The weights are always included, represented by their hash.
    """
    replaced = _DERIVED.keys() & run.user_settings
    derived = {name: run.user_settings[key] for key in replaced for name in _DERIVED[key]}
    written = {**derived, **run.user_settings}
    # The identity excludes settings that only matter on one machine.
    chosen = {name: written[name] for name in (run.identity.keys() & written) - replaced}
    chosen["weights"] = complete_value(run, "weights")
    return {name: value for name, value in chosen.items() if name not in _VARIED}


def complete_value(run: Run, name: str) -> Any:
    """Return a setting's resolved value, in a form that can be compared between runs."""
    if name == "weights":
        digest = run.environment.get("weights")
        return None if digest is None else str(digest)[:8]
    if name in _DERIVED["split"] and (split := drawn_split(run)):  # the classes differ between seeds
        return split
    value = run.identity.get(name)
    if name == "partial":  # the classes of each source differ between targets
        return bool(value)
    if name == "soup":  # the runs in a soup also differ between targets
        return None if value is None else len(value)
    return None if value == "none" else value


def drawn_split(run: Run) -> str | None:
    """Return the name of a run's split if its classes depend on the seed."""
    split = str(run.user_settings.get("split"))
    return split if is_drawn(split) else None


def has_value(run: Run, name: str, value: Any) -> bool:
    """Return whether a run's complete setting has a value, or one of the values in a list.

    Names are case-insensitive. A list with one entry, such as `target`, equals this entry. A mapping, such as
    `hparams`, may have more entries than `value`.
    """
    return _equal((run.user_settings if name in _DERIVED else run.settings).get(name), value)


def _equal(actual: Any, value: Any) -> bool:
    if isinstance(actual, str) and isinstance(value, str):
        return respelled(value, [actual]) == actual
    if isinstance(actual, Mapping) and isinstance(value, Mapping):
        return all(key in actual and _equal(actual[key], part) for key, part in value.items())
    if isinstance(actual, float) and isinstance(value, int | float):
        return math.isclose(actual, value)
    several = value if isinstance(value, list | tuple | set | range) else ()
    alone = isinstance(actual, list) and len(actual) == 1 and _equal(actual[0], value)
    return alone or actual == value or any(_equal(actual, one) for one in several)


def agree(first: Run, second: Run, names: Iterable[str]) -> bool:
    """Return whether two runs agree on the settings `names`, either as resolved or as the user wrote them.

    The same user settings resolve differently for runs with different numbers of source domains.
    """
    ours, theirs = row_settings(first), row_settings(second)
    return all(
        complete_value(first, name) == complete_value(second, name) or ours.get(name) == theirs.get(name)
        for name in names
    )
