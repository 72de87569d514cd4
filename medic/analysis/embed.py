"""t-SNE of target features from known and unknown classes."""

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
"""Maximum number of images to embed."""
NEIGHBOURS = 10


@dataclass(frozen=True)
class Map:
    """A two-dimensional embedding of one run's features for N target images."""

    label: str
    run: str
    perplexity: float
    """Perplexity of the t-SNE: the requested value, but at most a third of the number of images."""
    points: Floats
    """Embedding of shape (N, 2)."""
    known: NDArray[np.bool_]
    """Whether each image belongs to a known class, of shape (N,)."""
    classes: NDArray[np.int64]
    """Known class of each image, or −1, of shape (N,)."""
    overlap: float
    """Fraction of unknown images among the nearest neighbours of known images in feature space, divided by the fraction
    expected by chance. 0 means separate, 1 means mixed."""
    centrality: float
    """Mean distance of unknown images from the centre of all features, divided by that of known images."""


@dataclass(frozen=True)
class Embedding(Result):
    """Embeddings of several runs."""

    runs: tuple[Map, ...]
    same_images: bool
    """Whether all runs use the same images."""

    def rows(self) -> list[dict[str, str]]:
        """Return one row per run."""
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
        """Explain the numbers, which are computed from the features, not from the figure."""
        return [
            f"overlap: unknown images among the {NEIGHBOURS} nearest neighbours of known images (0: none, 1: chance)",
            "centrality: distance of unknown images from the centre, divided by the distance of known images",
            "both are computed from the features; distances in the figure mean little",
            *([] if self.same_images else ["the runs use different images, so their numbers are not comparable"]),
        ]


def measure(
    runs: Sequence[Run],
    split: str = "target",
    rerun: bool = False,
    root: str | None = None,
    device: str = "auto",
    perplexity: float = 30.0,
) -> Embedding:
    """Embed images of every run with t-SNE (scikit-learn, initialised with principal components, seed 0).

    If a run has too many images, a sample is drawn. The draw depends only on the number of images, so that runs with
    the same images use the same sample.
    """
    from sklearn.manifold import TSNE

    maps = []
    for run, label in zip(runs, labels_of(runs), strict=True):
        output, y, _ = with_features(run, split, rerun, root, device)
        rows = np.sort(np.random.default_rng(0).permutation(len(y))[:IMAGES])
        features, classes = features_of(output).double().numpy()[rows], y.numpy()[rows]
        used = min(perplexity, (len(rows) - 1) / 3)
        if len(rows) < 4:
            raise MedicError(f"t-SNE requires at least 4 images, but split {split!r} of run {run.path} has {len(rows)}")
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
    """Return values that identify the images in a split: the dataset's images, and the paths in the split.

    Runs do not store the paths of training images. The training images are the same if all other splits are the same.
    """
    arrays = run.predictions
    rows = arrays["split"] == split if split in run.splits else np.full(len(arrays["split"]), True)
    return (str(run.description["provenance"]["images"]), *arrays["path"][rows].tolist())


def overlap(features: Floats, known: NDArray[np.bool_], neighbours: int = NEIGHBOURS) -> float:
    """Return the fraction of unknown images among the nearest neighbours of known images, relative to chance.

    Features have shape (N, F), and the mask has shape (N,). The result is NaN without known or unknown images.
    """
    from sklearn.neighbors import NearestNeighbors

    if known.all() or not known.any():
        return float("nan")
    near = (
        NearestNeighbors(n_neighbors=min(neighbours, len(features) - 1)).fit(features).kneighbors(return_distance=False)
    )
    return float((~known)[near[known]].mean() / ((~known).sum() / (len(known) - 1)))


def centrality(features: Floats, known: NDArray[np.bool_]) -> float:
    """Return the mean distance of unknown images from the mean feature, divided by that of known images."""
    if known.all() or not known.any():
        return float("nan")
    distance = np.linalg.norm(features - features.mean(0), axis=1)
    return float(distance[~known].mean() / distance[known].mean())


@style.styled
def draw(result: Embedding) -> Figure:
    """Draw one panel per run."""
    count = len(result.runs)
    columns = min(2, count)
    rows = -(-count // columns)
    figure = style.new_figure((1.7 if columns > 1 else 3.2) * rows + 0.25)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for index, (axes, one) in enumerate(zip(grid, result.runs, strict=False)):
        # Known images are numerous. Pale colours keep the unknown images among them visible.
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
