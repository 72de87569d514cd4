"""Decision boundary of a one-vs-all classifier between two classes, and the balance of all classifiers.

Let d_c(x) be the log-odds of classifier c, and q_c = σ(d_c) its positive output. Over the known images of a split:

    conf_p(c) = mean_{y=c} q_c,   conf_n(c) = mean_{y≠c} (1 − q_c),   balance(c) = mean_{y=c} q_c + mean_{y≠c} q_c − 1.

For positive class c and another class j, the midpoint prediction from the paper's discussion (Eqs. 3–5) is

    λ(j, c) = mean_{x_0 ∈ j, x_1 ∈ c} q_c((x_0 + x_1) / 2) ≈ ½ (mean_{x_0 ∈ j} q_c(x_0) + mean_{x_1 ∈ c} q_c(x_1)).

Midpoints are taken between features. The log-odds are linear in the features, so d_c at a midpoint is the mean of the
two log-odds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from medic import openset
from medic.analysis import style
from medic.analysis.load import labels_of, with_features
from medic.analysis.result import Result, mean_of, number, percent
from medic.errors import MedicError, check_choice
from medic.evaluation.evaluator import LabelledOutputs
from medic.models.heads import HEADS
from medic.objectives.objective import features_of
from medic.runs.run import Run

Floats = NDArray[np.float64]
LogOdds = Callable[[Tensor], Tensor]
"""A function that maps features of shape (M, F) to the log-odds of one classifier, of shape (M,)."""
GRID = 80
"""Number of grid points along each axis of the plane."""
MIDPOINTS = 50_000_000
"""Maximum number of midpoints. If there are more, only evenly spaced images are used."""


@dataclass(frozen=True)
class Plane:
    """Outputs of classifier c in a plane through the means of classes j and c.

    The x axis runs from the mean of j, at 0, to the mean of c, at 1. The y axis is the orthogonal direction with the
    largest variance, in the same units, starting from the line between the means.
    """

    x: Floats
    """Grid along the line between the means, of shape (G,)."""
    y: Floats
    """Grid orthogonal to that line, of shape (G,)."""
    positive: Floats
    """q_c on the grid, of shape (G, G), with rows along y."""
    points: Floats
    """Positions of the images of both classes in the plane, of shape (N, 2)."""
    own: NDArray[np.bool_]
    """Whether each image belongs to class c, of shape (N,)."""
    crossing: float
    """Position of q_c = ½ on the line from the mean of class j (0) to the mean of class c (1)."""


@dataclass(frozen=True)
class Balance:
    """Confidences and balance of a run's C one-vs-all classifiers, in arrays of shape (C,) or (C, C)."""

    label: str
    method: str
    run: str
    classes: tuple[str, ...]
    conf_p: Floats
    conf_n: Floats
    balance: Floats
    midpoint: Floats
    """λ, of shape (C, C). Row c is the positive class, column j the other class. NaN on the diagonal."""
    linear: Floats
    """Approximation of λ, the right-hand side of Eq. 5, of shape (C, C)."""
    mean_p: float
    """conf_p averaged over all images, as in the paper's table."""
    mean_n: float
    """conf_n averaged over all images and other classifiers, as in the paper's table."""
    plane: Plane


@dataclass(frozen=True)
class Boundary(Result):
    """The classifier balance in several runs, and their planes for the same two classes."""

    runs: tuple[Balance, ...]
    split: str
    positive: str
    negative: str

    def rows(self) -> list[dict[str, str]]:
        """Return one row per run."""
        return [
            {
                "run": one.label,
                "conf_p": percent(one.mean_p),
                "conf_n": percent(one.mean_n),
                "balance": number(mean_of(one.balance), 3, sign=True),
                "λ": number(mean_of(one.midpoint), 3),
                "|λ − ½|": number(mean_of(np.abs(one.midpoint - 0.5)), 3),
                "λ by Eq. 5": number(mean_of(one.linear), 3),
                f"boundary {self.negative} → {self.positive}": number(one.plane.crossing),
            }
            for one in self.runs
        ]

    def notes(self) -> list[str]:
        """Describe the images and the scale of the boundary."""
        return [
            f"images: {self.split}, known classes only; λ: mean over class pairs; boundary: 0 at the mean of "
            f"{self.negative!r}, 1 at the mean of {self.positive!r}, 0.5 halfway between them"
        ]


def measure(
    runs: Sequence[Run],
    classes: Sequence[str] | None = None,
    split: str = "target",
    rerun: bool = False,
    root: str | None = None,
    device: str = "auto",
) -> Boundary:
    """Measure every run. `classes` are the positive class and the other class of the plane.

    The default positive class c is the one whose classifier in the first run is most biased towards "not c". The
    default other class is the one for which this classifier has the largest mean positive output.
    """
    balances: list[Balance] = []
    pair = None
    for run, label in zip(runs, labels_of(runs), strict=True):
        head = HEADS.get(run.config.model.head)
        if head is None or not head.ova or head.nonlinear is not None:
            raise MedicError(
                f"expected a linear one-vs-all head, got {run.config.model.head!r} in run {run.path}: "
                "train with --objective ce+ova"
            )
        outputs = with_features(run, split, rerun, root, device)
        names, odds, y = run.classes, outputs.output.log_odds().double(), outputs.label
        if pair is None:
            pair = _choose(names, odds, y, classes)
        for name in pair:
            check_choice("class", name, names, f"of run {run.path}")
        positive, negative = map(names.index, pair)
        if not bool((y == positive).any() and (y == negative).any()):
            raise MedicError(
                f"split {split!r} of run {run.path} has no images of {pair[0]!r} or {pair[1]!r}: use other --classes"
            )
        ova = outputs.output.ova_logits()
        conf_p, conf_n, balance = _confidences(odds, y)
        midpoint, linear = midpoints(odds, y)
        balances.append(
            Balance(
                label,
                run.config.run.method,
                str(run.path),
                tuple(names),
                conf_p,
                conf_n,
                balance,
                midpoint,
                linear,
                openset.conf_p(ova, y),
                openset.conf_n(ova, y),
                _plane(run, outputs, positive, negative),
            )
        )
    if pair is None:
        raise MedicError("a decision boundary requires at least one finished run, got none")
    return Boundary(tuple(balances), split, *pair)


def _choose(names: Sequence[str], odds: Tensor, y: Tensor, classes: Sequence[str] | None) -> tuple[str, str]:
    """Return the positive class and the other class of the plane."""
    if classes is not None:
        if len(classes) != 2 or classes[0] == classes[1]:
            raise MedicError(f"--classes must be two different classes, positive class first, got {' '.join(classes)}")
        return classes[0], classes[1]
    if len(names) < 2:
        raise MedicError("a decision boundary requires at least two known classes, got one")
    _, _, balance = _confidences(odds, y)
    positive = int(np.nanargmin(balance))
    q = odds[:, positive].sigmoid()
    means = [
        float(q[y == other].mean()) if other != positive and bool((y == other).any()) else -1.0
        for other in range(len(names))
    ]
    return names[positive], names[int(np.argmax(means))]


def _confidences(odds: Tensor, y: Tensor) -> tuple[Floats, Floats, Floats]:
    """Return conf_p, conf_n and the balance for every classifier, each of shape (C,).

    The log-odds have shape (N, C), and the labels have shape (N,).
    """
    q = odds[y >= 0].sigmoid()
    own = torch.nn.functional.one_hot(y[y >= 0], odds.shape[1]).bool()
    positive, negative = ((q.where(mask, 0).sum(0) / mask.sum(0)).numpy() for mask in (own, ~own))
    return positive, 1 - negative, positive + negative - 1


def midpoints(odds: Tensor, y: Tensor) -> tuple[Floats, Floats]:
    """Return λ and its linear approximation, each of shape (C, C).

    The log-odds, of shape (N, C), must be linear in the features. In the results, row c is the positive class and
    column j the other class. Values are NaN on the diagonal and for classes without images.
    """
    count = odds.shape[1]
    limit = max(10, int((MIDPOINTS / max(1, count * (count - 1))) ** 0.5))
    rows = [(y == label).nonzero().squeeze(1) for label in range(count)]
    rows = [each[torch.linspace(0, len(each) - 1, min(limit, len(each))).long()] for each in rows]
    midpoint, linear = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for c in range(count):
        own = odds[rows[c], c]
        for j in range(count):
            other = odds[rows[j], c]
            if j != c and len(own) and len(other):
                midpoint[c, j] = float(((own[:, None] + other) / 2).sigmoid().mean())
                linear[c, j] = float(own.sigmoid().mean() + other.sigmoid().mean()) / 2
    return midpoint, linear


def _plane(run: Run, outputs: LabelledOutputs, positive: int, negative: int) -> Plane:
    features, y = features_of(outputs.output).double().cpu(), outputs.label.cpu()
    chosen = (y == positive) | (y == negative)
    own = (y == positive)[chosen]
    model = run.model.cpu()

    @torch.no_grad()
    def log_odds(points: Tensor) -> Tensor:
        return model.classify(points).log_odds()[:, positive].double()

    return plane(features[chosen], own, log_odds)


def plane(features: Tensor, own: Tensor, log_odds: LogOdds) -> Plane:
    """Evaluate one classifier on the plane through two classes.

    `features` contains the features of both classes, of shape (N, F) in float64. `own` marks the images of the positive
    class. `log_odds` computes the classifier's log-odds.
    """
    start, end = features[~own].mean(0), features[own].mean(0)
    across = end - start
    length = float(across.norm())
    if length == 0:
        raise MedicError("the two classes have the same mean features: choose other --classes")
    unit = across / length
    centred = features - torch.where(own[:, None], end, start)
    rest = centred - torch.outer(centred @ unit, unit)
    second = torch.linalg.svd(rest, full_matrices=False).Vh[0]
    second = second - (second @ unit) * unit
    if float(second.norm()) > 0:
        second = second / second.norm()
    middle = (start + end) / 2
    points = torch.stack([(features - start) @ unit, (features - middle) @ second], 1) / length
    low, high = points.amin(0), points.amax(0)
    margin = 0.05 * (high - low).clamp(min=1e-3)
    x, y = (
        torch.linspace(float(a - m), float(b + m), GRID, dtype=torch.float64)
        for a, b, m in zip(low, high, margin, strict=True)
    )
    along = start + length * x[None, :, None] * unit
    places = along + length * y[:, None, None] * second
    positive = log_odds(places.flatten(0, 1)).sigmoid().view(GRID, GRID)
    at_start, at_end = log_odds(torch.stack([start, end])).tolist()
    crossing = -at_start / (at_end - at_start) if at_end > at_start else float("nan")
    return Plane(x.numpy(), y.numpy(), positive.numpy(), points.numpy(), own.numpy(), crossing)


@style.styled
def draw(result: Boundary) -> Figure:
    """Draw one plane per run, and bars for conf_p and conf_n."""
    count = len(result.runs)
    rows = -(-count // 2)
    figure = style.new_figure(1.75 * rows + 1.6)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.75 * rows, 1.6), squeeze=False).flatten()
    grid = upper.subplots(rows, 2 if count > 1 else 1, squeeze=False).flatten()
    for index, (axes, one) in enumerate(zip(grid, result.runs, strict=False)):
        plane = one.plane
        axes.contourf(plane.x, plane.y, plane.positive, levels=np.linspace(0, 1, 11), cmap=style.DIVERGING, alpha=0.6)
        axes.contour(plane.x, plane.y, plane.positive, levels=[0.5], colors="black", linewidths=1.2)
        for own, colour, name in ((False, "#5e3c99", result.negative), (True, "#b35806", result.positive)):
            points = plane.points[plane.own == own]
            axes.scatter(*points.T, s=3, color=colour, linewidths=0, label=name)
        axes.plot([0, 1], [0, 0], "x", color="black", markersize=4)
        style.letter(axes, index, f"{one.label}: {plane.crossing:.2f}")
    for unused in grid[count:]:
        unused.set_visible(False)
    handles, names = grid[0].get_legend_handles_labels()
    upper.legend(
        handles, [f"other: {names[0]}", f"positive: {names[1]}"], loc="outside lower center", ncols=2, markerscale=3
    )
    axes = lower.subplots()
    places = np.arange(count)
    colours = style.method_colours([one.method for one in result.runs])
    axes.bar(places - 0.2, [100 * one.mean_p for one in result.runs], 0.38, color=colours, label="conf_p")
    axes.bar(
        places + 0.2,
        [100 * one.mean_n for one in result.runs],
        0.38,
        color="white",
        edgecolor=colours,
        hatch="////",
        label="conf_n",
    )
    axes.set_xticks(places, [one.label for one in result.runs])
    axes.set_ylabel("mean output in %")
    style.letter(axes, count, "filled: conf$_p$ (own class); hatched: conf$_n$ (other classes)")
    return figure
