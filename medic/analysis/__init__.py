"""Analyses of finished runs: each measures numbers and draws a figure.

Modules load when an analysis is first used, so that a list of them does not wait for torch.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from medic.analysis.result import Result

Takes = Literal["nothing", "run", "runs", "folders"]
"""The arguments of an analysis: nothing, one run, several runs, or folders of runs."""
_FEATURES = ("split", "rerun", "root", "device")


@dataclass(frozen=True)
class Analysis:
    """An analysis: its name, the runs that it takes, and the names of its options.

    `medic/analysis/NAME.py` has the functions `measure`, which returns a `Result`, and `draw`, which returns a figure.
    """

    name: str
    about: str
    takes: Takes
    options: tuple[str, ...] = ()

    def measure(self, runs: Any = None, **options: Any) -> "Result":
        """Return the numbers. `runs` is a run, a list of them, or results of folders, as `takes` says."""
        measure = importlib.import_module(f"medic.analysis.{self.name}").measure
        return cast("Result", measure(**options) if self.takes == "nothing" else measure(runs, **options))


ANALYSES = {
    entry.name: entry
    for entry in (
        Analysis(
            "gradients",
            "agreement of task gradients over training, and the paper's regularisation term (repeats training)",
            "runs",
            ("moments", "iterations", "root", "device"),
        ),
        Analysis("expansion", "residual of the gradient-matching expansion against the inner rate", "nothing"),
        Analysis("separation", "differences of class features, and matched pairs against steps", "runs", _FEATURES),
        Analysis(
            "boundary",
            "decision boundary of a one-vs-all classifier, λ and confidences",
            "runs",
            ("classes", *_FEATURES),
        ),
        Analysis("embed", "t-SNE of target features, known and unknown", "runs", _FEATURES),
        Analysis("openness", "OSCR against the number of known classes", "folders"),
        Analysis("cost", "time and memory against the number of steps", "folders"),
        Analysis(
            "tasks",
            "confusion that adaptive sampling used, and the chains that it drew (repeats training)",
            "run",
            ("iterations", "root", "device"),
        ),
        Analysis("errors", "classes confused in the target alone, and unknown classes taken for known ones", "run"),
    )
}
"""Analyses by name."""
