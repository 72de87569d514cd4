"""Charts for a run's report, as series of points."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from medic import openset
from medic.runs.run import Run

POINTS = 300
"""Maximum number of points in a curve."""
DASHES = ("6 3", "2 3", "9 3 2 3", "1 4", "12 4")
"""Dash patterns for scores other than the run's own, or for targets other than the first."""
FEW = 10
"""Minimum number of images in a bin for its accuracy to be drawn."""


class Part(NamedTuple):
    """A group of images: one target domain, or the held-out source images."""

    name: str
    rows: NDArray[np.bool_]
    source: bool


def score_name(run: Run) -> str:
    """Return the name of the run's score."""
    return str(run.description["score"]["name"])


def is_probability(run: Run) -> bool:
    """Return whether the sigmoid of the run's score, and so its threshold, is a probability."""
    return (run.description["threshold"] or {}).get("probability") is not None


def make_curves(run: Run, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Yield a run's charts: training, OSCR, full spectrum, risk-coverage, and reliability."""
    yield from _learning(run)
    for part in parts:
        if _is_open(run, part) and not part.source:
            yield _oscr(run, part)
    if spectrum := _spectrum(run, parts):
        yield spectrum
    yield _risk_coverage(run, [part for part in parts if not part.source])
    if is_probability(run):
        yield _reliability(run, parts)


def _is_open(run: Run, part: Part) -> bool:
    """Return whether a part contains both known and unknown images."""
    unknown = run.predictions["label"][part.rows] < 0
    return bool(unknown.any()) and not bool(unknown.all())


def _learning(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the learning curves: training loss, validation loss, and metrics."""
    records = [record for record in run.records if not record.get("averaged")]
    if len(records) < 2:
        return

    def series(
        name: str, colour: str, part: str | None, key: str, scale: float = 1.0, dash: str | None = None
    ) -> list[dict[str, Any]]:
        """Return a curve in a list, or an empty list if no record contains the key."""
        values = [(record if part is None else record[part]).get(key) for record in records]
        numbers = [None if value is None else scale * float(value) for value in values]
        if not any(value is not None and math.isfinite(value) for value in numbers):
            return []
        iterations = [record["iteration"] for record in records]
        return [{"name": name, "colour": colour, "x": iterations, "y": numbers, "dash": dash}]

    tested = "held-out images" if not run.config.data.target else "target"
    penalty = run.config.objective.penalty
    objective = f"{run.config.objective.objective}{f' with penalty {penalty}' if penalty else ''}"
    shares = [
        *series(f"Acc, {tested}", "var(--known)", "target", "acc", 100),
        *series("Acc, validation", "var(--known)", "validation", "acc", 100, "5 3"),
        *series(f"OSCR, {tested}", "var(--ink)", "target", "oscr", 100),
        *series(f"H-score, {tested}", "var(--soft)", "target", "hscore", 100, "2 3"),
    ]
    for title, y, lines in (
        (f"Training loss: {objective}", "loss", series("training", "var(--ink)", None, "loss")),
        ("Validation loss: cross-entropy", "loss", series("validation", "var(--ink)", "validation", "loss")),
        ("Metrics during training", "percent", shares),
    ):
        if lines:
            limits = [0, 100] if y == "percent" else None
            yield {"title": title, "series": lines, "x": "iteration", "y": y, "range": limits}


def _oscr(run: Run, part: Part) -> dict[str, Any]:
    """Return the OSCR curves for a target, one line per score, with the area in the line's name."""
    split = run.predictions["split"] == "target"
    output, label, _ = run.outputs("target").where(torch.from_numpy(part.rows[split]))
    prediction = openset.predicted_class(output)
    own = score_name(run)
    confidences = {own: run.predictions["confidence"][part.rows]}  # as recorded, because plug-in code is not executed
    confidences |= {
        name: np.asarray(one(output))
        for name, one in openset.SCORES.items()
        if one.fitter is None and one.reads(output) and name != own
    }
    series = []
    for number, (name, confidence) in enumerate(confidences.items()):
        ranking = openset.rank(confidence, prediction, label)
        x, y = (np.asarray(values) for values in ranking.oscr_curve())
        kept = thinned(len(x))
        series.append(
            {
                "name": f"{name} {100 * ranking.oscr():.1f}",
                "colour": "var(--soft)" if number else "var(--ink)",
                "dash": DASHES[(number - 1) % len(DASHES)] if number else None,
                "x": (100 * x[kept]).tolist(),
                "y": (100 * y[kept]).tolist(),
            }
        )
    return percent_chart(
        f"OSCR on {part.name}: area under the curve, by score",
        series,
        "% of unknown images accepted",
        "% of known images classified correctly",
    )


def _spectrum(run: Run, parts: Sequence[Part]) -> dict[str, Any] | None:
    """Return a chart of the share of images rejected in each group, against the share of known source images rejected.

    The area under a line is the AUROC of known source images against the group. If the score does not depend on the
    domain, known target images lie on the diagonal. Returns None if there is no target, or if there are no held-out
    source images.
    """
    columns, targets = run.predictions, [part for part in parts if not part.source]
    known = columns["label"] >= 0
    source = next((part.rows for part in parts if part.source), np.zeros_like(known))
    target = np.any([part.rows for part in targets], axis=0)
    if not (source & known).any():
        return None
    name = targets[0].name if len(targets) == 1 else "targets"
    groups = {
        f"{name}, known": (target & known, "var(--ink)", DASHES[0]),
        f"{name}, unknown": (target & ~known, "var(--ink)", None),
        "sources, unknown": (source & ~known, "var(--soft)", None),
    }
    series: list[dict[str, Any]] = [
        {"name": "sources, known", "colour": "var(--soft)", "dash": "1 4", "x": [0, 100], "y": [0, 100]}
    ]
    for group, (rows, colour, dash) in groups.items():
        if rows.any():
            ranking = openset.rank_groups(columns["confidence"][source & known], columns["confidence"][rows])
            # Rejected images come first: reverse the ranking to start with the least confident image.
            x, y = (1 - np.asarray(counts / counts[-1])[::-1] for counts in (ranking.known, ranking.unknown))
            kept = thinned(len(x))
            points = {"x": (100 * x[kept]).tolist(), "y": (100 * y[kept]).tolist()}
            title = f"{group}: AUROC {100 * ranking.auroc():.1f}"
            series.append({"name": title, "colour": colour, "dash": dash, **points})
    known, unknown = (columns["confidence"][(source | target) & kind] for kind in (known, ~known))
    overall = ""
    if len(unknown):
        ranking = openset.rank_groups(known, unknown)
        overall = f" (all domains: AUROC {100 * ranking.auroc():.1f}, FPR95 {100 * ranking.fpr95():.1f})"
    return percent_chart(
        f"Full spectrum: rejected images by domain{overall}",
        series,
        "% of known source images rejected",
        "% of group rejected",
    )


def _risk_coverage(run: Run, parts: Sequence[Part]) -> dict[str, Any]:
    """Return a chart of the error rate among the most confident images from each target; unknown images are errors."""
    series = []
    for part, style in zip(parts, _styles(parts), strict=True):
        confidence, correct = run.predictions["confidence"][part.rows], _correct(run, part)
        coverage, risk = (np.asarray(values) for values in openset.risk_coverage(confidence, correct))
        kept = thinned(len(risk))
        name = f"{part.name}: AURC {100 * openset.aurc(confidence, correct):.1f}"
        series.append({"name": name, **style, "x": (100 * coverage[kept]).tolist(), "y": (100 * risk[kept]).tolist()})
    # A chart with one line has no legend.
    area = f" ({series[0]['name']})" if len(series) == 1 else ""
    return percent_chart(
        f"Errors among the most confident images{area}",
        series,
        "% of images, most confident first",
        "% wrong or unknown",
    )


def _reliability(run: Run, parts: Sequence[Part]) -> dict[str, Any]:
    """Return a chart of the accuracy on known images against the probability predicted by the score."""
    series: list[dict[str, Any]] = [
        {"name": "perfect calibration", "colour": "var(--soft)", "dash": "1 4", "x": [0, 100], "y": [0, 100]}
    ]
    for part, style in zip(parts, _styles(parts), strict=True):
        known = run.predictions["label"][part.rows] >= 0
        confidence, correct = run.predictions["confidence"][part.rows][known], _correct(run, part)[known]
        probability = torch.from_numpy(confidence).sigmoid()
        images, predicted, accuracy = (
            np.asarray(values) for values in openset.reliability_diagram(probability, correct)
        )
        kept = images >= FEW
        name = f"{part.name}: ECE {100 * openset.ece(probability, correct):.1f}"
        x, y = ((100 * values[kept]).tolist() for values in (predicted, accuracy))
        series.append({"name": name, **style, "x": x, "y": y})
    return percent_chart(
        "Reliability: accuracy on known images, by score", series, "score as a probability, %", "% correct"
    )


def percent_chart(title: str, series: Sequence[Mapping[str, Any]], x: str, y: str) -> dict[str, Any]:
    """Return a chart with both axes in percent, from 0 to 100."""
    return {"title": title, "series": series, "x": x, "y": y, "range": [0, 100]}


def thinned(points: int) -> NDArray[np.intp]:
    """Return the indices of at most `POINTS` evenly spaced points on a curve, including both ends."""
    positions: NDArray[np.intp] = np.unique(np.linspace(0, points - 1, min(POINTS, points)).astype(int))
    return positions


def _correct(run: Run, part: Part) -> NDArray[np.bool_]:
    """Return which images in a part are classified correctly without rejection; unknown images never are."""
    rows = part.rows
    named: NDArray[np.bool_] = run.predictions["logits"][rows].argmax(1) == run.predictions["label"][rows]
    return named


def _styles(parts: Sequence[Part]) -> Iterator[dict[str, str | None]]:
    """Yield the colour and dash pattern for each part: targets dark, sources lighter."""
    targets = 0
    for part in parts:
        if part.source:
            yield {"colour": "var(--soft)", "dash": None}
        else:
            yield {"colour": "var(--ink)", "dash": DASHES[(targets - 1) % len(DASHES)] if targets else None}
            targets += 1
