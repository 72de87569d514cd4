"""Describe the result of `medic watch` in sentences and on a page."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medic.errors import counted
from medic.openset import Shift
from medic.openset.shift import FEWEST_PER_DOMAIN
from medic.reports.curves import percent_chart, thinned
from medic.reports.pages import write_page
from medic.utils.outputs import Output

if TYPE_CHECKING:
    from medic.deploy.predictor import Predictor


def describe_shift(shift: Shift, alpha: float) -> Iterator[str]:
    """Yield the result as sentences. The first sentence says whether the images differ from the sources."""
    compared = f"p = {shift.p_value:.2g} after correction for two tests"
    alarm = shift.p_value < alpha
    if alarm:
        yield f"ALARM: the images differ from the source domains ({compared}, below {alpha:g}). Inspect some of them."
    else:
        yield f"No alarm: the images could come from the source domains ({compared}, not below {alpha:g})."
    yield f"{counted(shift.samples, 'image')}, compared with {shift.compared:,} held-out source images."
    if shift.small_domains:
        yield (
            f"{counted(shift.small_domains, 'source domain')} with fewer than {FEWEST_PER_DOMAIN} images to compare "
            "with: images from such a domain alone may raise an alarm."
        )
    group = "all of them" if shift.tested == shift.compared else f"{shift.tested} of them, from the most similar domain"
    yield (
        f"Two-sample tests against {group}: p = {shift.score_p:.2g} for the scores, {shift.feature_p:.2g} for the "
        "features."
    )
    if alarm:
        yield "Do not rely on the following estimates: they assume that the images resemble the source domains."
    yield (
        f"Estimated accuracy: {_percent(shift.accuracy)} if all of them belong to known classes "
        f"(held-out images: {_percent(shift.source_accuracy)})."
    )
    yield (
        f"Estimated share of unknown images: {_percent(shift.unknown)}. The threshold rejects "
        f"{_percent(shift.rejected)} of these images and {_percent(shift.source_rejected)} of the held-out images."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def write_watch_page(path: Path, predictor: "Predictor", output: Output, shift: Shift, alpha: float) -> Path:
    """Write a page with the sentences of `describe_shift` and the distribution of the scores."""
    reference = predictor.held_out.reference
    assert reference is not None  # `shift` was computed from it
    new, held_out = (np.sort(values.numpy()) for values in (predictor.score(output), reference.confidence))
    verdict, *sentences = describe_shift(shift, alpha)
    chart = percent_chart(
        "Rejected images, by threshold",
        [
            {"name": "held-out images", "colour": "var(--soft)", "dash": "1 4", "x": [0, 100], "y": [0, 100]},
            {"name": "these images", "colour": "var(--ink)", "dash": None, **_rejected(held_out, new)},
        ],
        "% of the held-out images rejected",
        "% of these images rejected",
    )
    return write_page(
        path,
        "watch",
        f"{counted(shift.samples, 'image')} without labels",
        {"curves": [chart]},
        sentences=sentences,
        verdict=verdict,
        alarm=shift.p_value < alpha,
    )


def _rejected(held_out: NDArray[np.float64], new: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return the percentages of held-out (x) and new images (y) below each threshold."""
    thresholds = np.concatenate([np.unique(np.concatenate([held_out, new])), [np.inf]])
    x, y = (100 * np.searchsorted(values, thresholds) / len(values) for values in (held_out, new))
    kept = thinned(len(x))
    return {"x": x[kept].tolist(), "y": y[kept].tolist()}
