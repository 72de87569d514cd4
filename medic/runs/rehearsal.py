"""Rehearsals: runs that test settings on a domain and on classes that they have not seen, with source data alone."""

from collections.abc import Iterator
from typing import Any

from medic.errors import MedicError
from medic.runs.recipe import Recipe

FOLDER = "rehearsals"
"""The folder for rehearsals inside the output directory, where tables do not look for runs."""


def rehearsals(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Yield the settings of one run per source domain, which trains on the other sources and is tested on it.

    If the run has unknown classes, each rehearsal leaves out some known classes in turn, which act as its unknown ones.
    Images of the run's own unknown classes and of its target have no part in a rehearsal.
    """
    data = recipe.data
    sources, known, partial = list(data.sources or ()), list(data.known or ()), data.classes.partial
    if len(sources) < 2:
        raise MedicError("leave-one-out needs two source domains: add some to --sources, or use --selection validation")
    if data.unknown and len(known) < 3:
        raise MedicError(
            f"leave-one-out needs three known classes, some of which act as unknown, but there are {len(known)}: "
            "add some to --known, or use --selection validation"
        )
    folds = min(len(sources), len(known))
    for number, source in enumerate(sources):
        left_out = known[number % folds :: folds] if data.unknown else []
        kept = [name for name in known if name not in left_out]
        others = [name for name in sources if name != source]
        of_others = {
            domain: [name for name in partial[domain] if name in kept] for domain in others if domain in partial
        }
        yield {
            **{name: value for name, value in recipe.asked.items() if name not in ("split", "name", "output")},
            "target": [source],
            "sources": others,
            "known": kept,
            "unknown": left_out,
            "partial": of_others or None,
            "output": f"{recipe.execution.output}/{FOLDER}",
        }
