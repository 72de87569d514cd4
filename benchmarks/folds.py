"""Describe runs that leave out classes and a domain of the sources, as stand-ins for what is unknown.

    python -m benchmarks.folds runs/digits runs/digits-folds
    ls runs/digits-folds/*.yaml | xargs -P 4 -I{} medic train --config {} --output runs/digits-folds --quiet

For every finished run, each fold leaves out one of its source domains and a part of its known classes, and is tested on
them. Neither the run's target nor its unknown classes are used. `benchmarks.thresholds` finds the folds of a run.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from medic.config.files import to_yaml
from medic.evaluation.evaluator import LabelledOutputs
from medic.openset import Score
from medic.runs.run import Run

SAME = ("dataset", "method", "objective", "seed")
"""Settings that a run shares with its folds."""


class Fold(NamedTuple):
    """The outputs of a fold's model for its validation images, for left-out classes, and for a left-out domain."""

    validation: LabelledOutputs
    classes: LabelledOutputs
    domain: LabelledOutputs

    def reads(self, score: Score) -> bool:
        """Whether the model has the outputs that a score reads."""
        return score.reads(self.validation.output)


def describe_folds(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the settings of every fold of a run: as many as it has source domains."""
    known = list(run.predictor.classes)
    sources = run.settings["sources"]
    for number, domain in enumerate(sources):
        left_out = known[number :: len(sources)]
        yield {
            **{name: value for name, value in run.user_settings.items() if name not in ("output", "name", "split")},
            "sources": [source for source in sources if source != domain],
            "target": [domain],
            "known": [name for name in known if name not in left_out],
            "unknown": left_out,
        }


def find_folds(run: Run, candidates: Sequence[Run]) -> list[Fold]:
    """Return the folds of a run among candidates."""
    sources = set(run.settings["sources"])
    return [
        Fold(*(candidate.outputs(split) for split in ("validation", "source-unknown", "target")))
        for candidate in candidates
        if all(candidate.settings[name] == run.settings[name] for name in SAME)
        and {*candidate.settings["sources"], *candidate.settings["target"]} == sources
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path in sorted(done.parent for done in arguments.runs.glob("*/done")):
        for number, settings in enumerate(describe_folds(Run(path))):
            (arguments.output / f"{path.name}-{number}.yaml").write_text(to_yaml(settings))
