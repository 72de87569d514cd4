"""t-SNE of target features, with known and unknown classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medic.analysis import style
from medic.analysis.load import labels_of, with_features
from medic.analysis.result import Result, number, percent
from medic.errors import MedicError
from medic.objectives.objective import features_of
from medic.runs.run import Run

Floats = NDArray[np.float64]
IMAGES = 2000
"""Images that are embedded at most."""
NEIGHBOURS = 10


@dataclass(frozen=True)
class Map:
    """The features of N target images of a run in two dimensions."""

    label: str
    run: str
    perplexity: float
    """The perplexity of the t-SNE: as asked, or a third of the images if these are fewer."""
    points: Floats
    """The embedding (N, 2)."""
    known: NDArray[np.bool_]
    """Whether an image is of a known class (N,)."""
    classes: NDArray[np.int64]
    """The known class of each image, or −1 (N,)."""
    overlap: float
    """The share of unknown images among the nearest neighbours of known ones in feature space, over the share that
    random neighbours would have: 0 apart, 1 mixed."""
    centrality: float
    """The mean distance of unknown images from the centre of all features, over that of known ones."""


@dataclass(frozen=True)
class Embedding(Result):
    """Maps of several runs."""

    runs: tuple[Map, ...]
    same_images: bool
    """Whether the images of all runs are the same."""

    def rows(self) -> list[dict[str, str]]:
        """Return a row per run."""
        return [
            {
                "run": one.label,
                "images": str(len(one.points)),
                "unknown %": percent(float((~one.known).mean())),
                "overlap": number(one.overlap),
                "centrality": number(one.centrality),
            }
            for one in self.runs
        ]

    def notes(self) -> list[str]:
        """Explain the numbers, which are of the features and not of the picture."""
        return [
            f"overlap: unknown images among the {NEIGHBOURS} nearest neighbours of known ones, 0 apart and 1 by chance",
            "centrality: distance of unknown images from the centre over that of known ones, below 1 if central",
            "both are of the features, not of the picture, whose distances mean little",
            *([] if self.same_images else ["the runs have different images, so their numbers cannot be compared"]),
        ]


def measure(
    runs: Sequence[Run],
    split: str = "target",
    rerun: bool = False,
    root: str | None = None,
    device: str = "auto",
    perplexity: float = 30.0,
) -> Embedding:
    """Embed images of every run by t-SNE (scikit-learn, initialised by principal components, seed 0).

    Of many images a sample is drawn by their number alone, so that runs with the same images have the same sample.
    """
    from sklearn.manifold import TSNE

    maps = []
    for run, label in zip(runs, labels_of(runs), strict=True):
        output, y, _ = with_features(run, split, rerun, root, device)
        rows = np.sort(np.random.default_rng(0).permutation(len(y))[:IMAGES])
        features, classes = features_of(output).double().numpy()[rows], y.numpy()[rows]
        used = min(perplexity, (len(rows) - 1) / 3)
        if len(rows) < 4:
            raise MedicError(f"split {split!r} of run {run.path} has {len(rows)} images: t-SNE needs 4 or more")
        points = TSNE(perplexity=used, init="pca", random_state=0).fit_transform(features)
        known = classes >= 0
        maps.append(
            Map(
                label,
                str(run.path),
                used,
                points.astype(np.float64),
                known,
                classes,
                overlap(features, known),
                centrality(features, known),
            )
        )
    return Embedding(tuple(maps), len({_images(run, split) for run in runs}) == 1)


def _images(run: Run, split: str) -> tuple[str, ...]:
    """Return what identifies the images of a split: the list of all images, and those in the split.

    A run keeps no training images. They are the same if all other splits are.
    """
    arrays = run.predictions
    rows = arrays["split"] == split if split in run.splits else np.full(len(arrays["split"]), True)
    return (str(run.description["provenance"]["images"]), *arrays["path"][rows].tolist())


def overlap(features: Floats, known: NDArray[np.bool_], neighbours: int = NEIGHBOURS) -> float:
    """Return the share of unknown images among the nearest neighbours of known ones, over their share of all others.

    Features are (N, F), the mask (N,). NaN without known or unknown images.
    """
    from sklearn.neighbors import NearestNeighbors

    if known.all() or not known.any():
        return float("nan")
    near = (
        NearestNeighbors(n_neighbors=min(neighbours, len(features) - 1)).fit(features).kneighbors(return_distance=False)
    )
    return float((~known)[near[known]].mean() / ((~known).sum() / (len(known) - 1)))


def centrality(features: Floats, known: NDArray[np.bool_]) -> float:
    """Return the mean distance of unknown images from the mean of all features (N, F), over that of known ones."""
    if known.all() or not known.any():
        return float("nan")
    distance = np.linalg.norm(features - features.mean(0), axis=1)
    return float(distance[~known].mean() / distance[known].mean())


@style.styled
def draw(result: Embedding) -> Figure:
    """Draw a panel per run."""
    count = len(result.runs)
    columns = min(2, count)
    rows = -(-count // columns)
    figure = style.new_figure((1.7 if columns > 1 else 3.2) * rows + 0.25)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for index, (axes, one) in enumerate(zip(grid, result.runs, strict=False)):
        # Known images are many: they are pale, so that unknown ones among them are seen.
        parts = (one.known, style.KNOWN, 0.45, "known"), (~one.known, style.UNKNOWN, 1.0, "unknown")
        for mask, colour, alpha, name in parts:
            axes.scatter(*one.points[mask].T, s=3, color=colour, linewidths=0, label=name, alpha=alpha)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        style.letter(axes, index, f"{one.label}, overlap\N{NO-BREAK SPACE}{one.overlap:.2f}")
    for unused in grid[count:]:
        unused.set_visible(False)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=3)
    return figure
