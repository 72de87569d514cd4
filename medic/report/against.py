"""The paper's numbers beside ours."""

from collections.abc import Mapping

from medic.experiments.paper import Mismatch, PaperTable, mismatch
from medic.experiments.tables import Metric, Row
from medic.methods import METHODS
from medic.report.formats import Against, Reference

PUBLISHED = Mismatch("published", "published numbers, which were not run")

_KEYS = {
    "Acc": Metric("acc"),
    "H-score": Metric("hscore/oracle-10"),
    "OSCR": Metric("oscr"),
    "conf_p": Metric("conf_p"),
    "conf_n": Metric("conf_n"),
}
"""The paper's H-score is at the best of ten thresholds on the target."""


def paper_metrics(name: str) -> Mapping[str, Metric]:
    """The metrics of a table of the paper, by title."""
    return {title: _KEYS[title] for title in PaperTable(name).metrics}


def column_title(column: str, titles: tuple[str, ...]) -> str | None:
    """What the paper calls a domain, or None: it writes Art for art_painting, clip for clipart."""
    folded = _folded(column)
    longest = sorted(titles, key=len, reverse=True)  # MNIST-M before MNIST
    return next((title for title in longest if folded.startswith(_folded(title))), None)


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def against_paper(name: str) -> Against:
    """What stands in the paper for a cell of ours; where the conditions differ, which of them."""
    paper = PaperTable(name)

    def reference(metric: str, row: Row, column: str) -> Reference | None:
        known = METHODS.get(row.method)
        method = row.paper or (None if known is None else known.paper)
        title = column_title(column, paper.columns)
        if method is None or title is None:
            return None
        value = paper.value(metric, method, title, row.variant)
        if value is None:
            return None
        obstacle = mismatch(name, row.settings, row.weights) if row.settings else PUBLISHED
        return Reference(value, None if obstacle is None else obstacle.word)

    return reference
