"""Analyses of finished runs. Each computes numbers and draws a figure.

An analysis module is imported on first use, so that listing the analyses does not import torch.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from medic.analysis.result import Result

Takes = Literal["nothing", "run", "runs", "folders"]
"""The input of an analysis: nothing, one run, several runs, or folders of runs."""
_FEATURES = ("split", "rerun", "root", "device")


@dataclass(frozen=True)
class Analysis:
    """An analysis: its name, a description, the runs that it takes, and the names of its options.

    `medic/analysis/NAME.py` defines `measure`, which returns a `Result`, and `draw`, which returns a figure.
    """

    name: str
    about: str
    takes: Takes
    options: tuple[str, ...] = ()

    def measure(self, runs: Any = None, **options: Any) -> "Result":
        """Run the analysis. `takes` determines whether `runs` is one run or a list of runs."""
        measure = importlib.import_module(f"medic.analysis.{self.name}").measure
        return cast("Result", measure(**options) if self.takes == "nothing" else measure(runs, **options))


ANALYSES = {
    entry.name: entry
    for entry in (
        Analysis(
            "gradients",
            "agreement between task gradients during training, and the paper's regularisation term (replays training)",
            "runs",
            ("moments", "iterations", "root", "device"),
        ),
        Analysis("expansion", "residual of the gradient-matching expansion against the inner learning rate", "nothing"),
        Analysis("separation", "differences between class features, and matched task pairs", "runs", _FEATURES),
        Analysis(
            "boundary",
            "decision boundary, midpoint predictions λ and confidences of one-vs-all classifiers",
            "runs",
            ("classes", *_FEATURES),
        ),
        Analysis("embed", "t-SNE of target features, with known and unknown images", "runs", _FEATURES),
        Analysis("openness", "OSCR against the number of known classes", "folders"),
        Analysis("cost", "time and memory against the number of steps", "folders"),
        Analysis(
            "tasks",
            "class confusion and class chains of adaptive sampling (replays training)",
            "run",
            ("iterations", "root", "device"),
        ),
        Analysis("errors", "classes confused only in the target, and unknown classes mistaken for known ones", "run"),
    )
}
"""Analyses by name."""
