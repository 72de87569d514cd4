"""Comparison of run settings, to decide which runs share a table row."""

from collections.abc import Iterable
from typing import Any

from medic.runs.run import Run
from medic.utils.splits import is_drawn

_DERIVED = {"split": ("known", "unknown", "partial"), "images": ("batch_size",)}
"""User settings, with the settings that replace them in a complete configuration."""
_VARIED = frozenset({"target", "sources", "seed", "trial_seed", "hparams_seed"})
"""Settings that may vary within a table row."""


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
    split = str(run.user_settings.get("split"))
    if name in _DERIVED["split"] and is_drawn(split):  # the classes differ between seeds
        return split
    value = run.identity.get(name)
    if name == "partial":  # the classes of each source differ between targets
        return bool(value)
    if name == "soup":  # the runs in a soup also differ between targets
        return None if value is None else len(value)
    return None if value == "none" else value


def agree(first: Run, second: Run, names: Iterable[str]) -> bool:
    """Return whether two runs agree on the settings `names`, either as resolved or as the user wrote them.

    The same user settings resolve differently for runs with different numbers of source domains.
    """
    ours, theirs = row_settings(first), row_settings(second)
    return all(
        complete_value(first, name) == complete_value(second, name) or ours.get(name) == theirs.get(name)
        for name in names
    )
