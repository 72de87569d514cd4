"""Comparison of run settings, to decide which runs share a table row."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medic.config.settings import check_settings
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


def alternatives(name: str, value: Any) -> list[Any]:
    """Return the values of a setting that a filter accepts, checked like settings: several values mean any of them."""
    if callable(to_list := getattr(value, "tolist", None)):  # NumPy and torch
        value = to_list()
    single = isinstance(value, str | Mapping) or not isinstance(value, Iterable)
    return [check_settings({name: one}).get(name) for one in ([value] if single else value)]


def has_value(run: Run, name: str, values: Sequence[Any]) -> bool:
    """Return whether a run's complete setting has one of the values.

    A list, such as `known`, must have all of the values, or a single entry that is one of them. Names are
    case-insensitive. A mapping, such as `hparams`, may have more entries than the value. `split` and `images` are
    compared with what the user wrote, because the complete settings do not contain them.
    """
    actual = (run.user_settings if name in _DERIVED else run.settings).get(name)
    if isinstance(actual, list):
        wanted = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
        return sorted(actual) == sorted(wanted) or (len(actual) == 1 and any(_same(actual[0], one) for one in wanted))
    return any(_same(actual, value) for value in values)


def _same(actual: Any, value: Any) -> bool:
    if isinstance(actual, str) and isinstance(value, str):
        return respelled(value, [actual]) == actual
    if isinstance(actual, Mapping) and isinstance(value, Mapping):
        return all(key in actual and _same(actual[key], part) for key, part in value.items())
    if isinstance(actual, float) and isinstance(value, int | float):
        return math.isclose(actual, value)
    return bool(actual == value)


def agree(first: Run, second: Run, names: Iterable[str]) -> bool:
    """Return whether two runs agree on the settings `names`, either as resolved or as the user wrote them.

    The same user settings resolve differently for runs with different numbers of source domains.
    """
    ours, theirs = row_settings(first), row_settings(second)
    return all(
        complete_value(first, name) == complete_value(second, name) or ours.get(name) == theirs.get(name)
        for name in names
    )
