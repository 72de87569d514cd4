"""The results of a study: the metrics of every run by every rule."""

from pathlib import Path
from typing import NamedTuple

from benchmarks.study.intervals import Values, mean
from benchmarks.study.methods import METHODS
from benchmarks.study.rules import apply_rules
from benchmarks.study.runs import Run, read_runs


class Study(NamedTuple):
    """The results of one study."""

    metrics: dict[Run, dict[str, dict[str, float]]]
    """Metrics by run and rule."""

    @classmethod
    def read(cls, place: Path, every: int = 1) -> "Study":
        """Read a folder or a packed file; rules see `every` n-th evaluation."""
        return cls({run: apply_rules(lines, every) for run, lines in read_runs(place).items()})

    @property
    def methods(self) -> list[str]:
        """The methods that were trained, in the order of `METHODS`."""
        return [method for method in METHODS if any(run.method == method for run in self.metrics)]

    @property
    def rules(self) -> list[str]:
        """The rules that apply to every run."""
        first, *others = self.metrics.values()
        return [rule for rule in first if all(rule in other for other in others)]

    def values(self, method: str, rule: str, metric: str) -> Values:
        """Return a metric of a method in percent."""
        return {
            (run.target, run.seed): 100 * by_rule[rule][metric]
            for run, by_rule in self.metrics.items()
            if run.method == method
        }

    def at_rate(self, lr: float | None) -> "Study":
        """Return the runs with a learning rate."""
        return Study({run: by_rule for run, by_rule in self.metrics.items() if run.lr == lr})

    def validation_by_rate(self, method: str, rule: str) -> dict[float | None, float]:
        """Return a method's mean validation accuracy by learning rate, over targets and seeds that all rates have."""
        rates = sorted({run.lr for run in self.metrics if run.method == method}, key=str)
        by_rate = {lr: self.at_rate(lr).values(method, rule, "validation") for lr in rates}
        shared = set.intersection(*map(set, by_rate.values()))
        return {lr: mean({key: values[key] for key in shared}) for lr, values in by_rate.items()}

    def at_best_rates(self, rule: str) -> "Study":
        """Return the runs of each method at its best learning rate by source validation."""
        validation = {method: self.validation_by_rate(method, rule) for method in self.methods}
        best = {method: max(by_rate, key=by_rate.__getitem__) for method, by_rate in validation.items()}
        return Study({run: by_rule for run, by_rule in self.metrics.items() if run.lr == best[run.method]})
