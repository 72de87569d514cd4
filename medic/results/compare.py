"""The settings of runs, as tables compare them: which runs share a row."""

from collections.abc import Iterable
from typing import Any

from medic.runs.run import Run
from medic.utils.splits import is_drawn

_DERIVED = {"split": ("known", "unknown", "partial"), "images": ("batch_size",)}
"""Settings of a user that a complete configuration expresses by others."""
_VARIED = frozenset({"target", "sources", "seed", "trial_seed", "hparams_seed"})
"""Settings that may vary within a row of a table."""


def row_settings(run: Run) -> dict[str, Any]:
    """Return the settings that may tell a run from the runs of other rows, as the user wrote them.

    Weights always count, by their hash.
    """
    replaced = _DERIVED.keys() & run.user_settings
    derived = {name: run.user_settings[key] for key in replaced for name in _DERIVED[key]}
    written = {**derived, **run.user_settings}
    # The identity has no settings that only matter on one machine.
    chosen = {name: written[name] for name in (run.identity.keys() & written) - replaced}
    chosen["weights"] = complete_value(run, "weights")
    return {name: value for name, value in chosen.items() if name not in _VARIED}


def complete_value(run: Run, name: str) -> Any:
    """Return the complete value of a setting, for comparison with other runs."""
    if name == "weights":
        digest = run.environment.get("weights")
        return None if digest is None else str(digest)[:8]
    split = str(run.user_settings.get("split"))
    if name in _DERIVED["split"] and is_drawn(split):  # the classes differ between seeds
        return split
    value = run.identity.get(name)
    if name == "partial":  # the classes of each source differ between targets
        return bool(value)
    if name == "soup":  # and so do the runs of a soup
        return None if value is None else len(value)
    return None if value == "none" else value


def agree(first: Run, second: Run, names: Iterable[str]) -> bool:
    """Return whether two runs have the same values of some settings, complete or as the user wrote them.

    Runs with different numbers of source domains complete the same user settings differently.
    """
    ours, theirs = row_settings(first), row_settings(second)
    return all(
        complete_value(first, name) == complete_value(second, name) or ours.get(name) == theirs.get(name)
        for name in names
    )
