"""Rehearsals: runs that test settings on an unseen domain and unseen classes, using source data only."""

from collections.abc import Iterator
from typing import Any

from medic.config.plan import Plan
from medic.config.resolve import open_once, resolve
from medic.errors import MedicError
from medic.runs.data import peek_images
from medic.runs.unfinished import divide

FOLDER = "rehearsals"
"""Folder for rehearsals inside the output directory. Tables do not search it for runs."""


def rehearsals(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield, for each source domain, the settings of a run tested on that domain and trained on the others.

    If the run has unknown classes, each rehearsal leaves out some of the known classes to act as unknown classes.
    Rehearsals never use images of the run's own unknown classes or from its target.
    """
    data = plan.config.data
    sources, known = data.sources, data.known
    if len(sources) < 2:
        raise MedicError(
            "leave-one-out requires at least two source domains: add some to --sources, or use --selection validation"
        )
    if data.partial:
        raise MedicError("leave-one-out does not support partial classes: use --selection validation")
    if data.unknown and len(known) < 3:
        raise MedicError(
            f"leave-one-out requires at least three known classes, because some act as unknown, got {len(known)}: "
            "add some to --known, or use --selection validation"
        )
    folds = min(max(len(sources), 3), len(known))  # at least two classes must stay known
    for number, source in enumerate(sources):
        left_out = known[number % folds :: folds] if data.unknown else []
        yield {
            **{name: value for name, value in plan.user_settings.items() if name not in ("split", "name", "output")},
            "target": [source],
            "sources": [name for name in sources if name != source],
            "known": [name for name in known if name not in left_out],
            "unknown": left_out,
            "output": f"{plan.config.execution.output}/{FOLDER}",
        }


def check_rehearsals(plan: Plan, metric: str) -> None:
    """Raise an error if a rehearsal cannot be trained, or if its target lacks unknown images that the metric needs."""
    opened = open_once()
    for settings in rehearsals(plan):
        rehearsal = resolve(settings, opened)
        problem = divide(rehearsal, peek_images(rehearsal))
        if metric != "acc" and not bool((problem.target.label < 0).any()):
            (source,), left_out = settings["target"], ", ".join(settings["unknown"])
            raise MedicError(
                f"leave-one-out leaves out {left_out}, but source domain {source!r} contains no images of them: "
                "use --metric acc or --selection validation"
            )
