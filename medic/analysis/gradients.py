"""Dot products and angles between task gradients during training, within and between domains and classes.

A cell is a pair (domain, class). Its gradient is the gradient of the run's mean loss over some of its training images,
without augmentation or penalties, in evaluation mode (running batch-norm statistics). There are three kinds of pairs:
cells with the same domain, cells with the same class, and cells that share neither.

The paper's regularisation term splits domains into F and G and classes into 1 and 2, which gives four tasks:

    L_reg = −(F_1' · F_2' + F_1' · G_1' + G_2' · F_2' + G_2' · G_1')

The gradient of a task is the mean of its cells' gradients. L_reg is averaged over random splits into halves.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor, nn

from medic.analysis import style
from medic.analysis.load import Repeated, labels_of, moments_of, repeated
from medic.analysis.result import Result, mean_of, number
from medic.errors import MedicError
from medic.objectives.objective import Loss
from medic.runs.run import Run
from medic.tasks.partition import chunks
from medic.training.inference import load
from medic.training.trainer import find_trained
from medic.utils.modules import evaluating
from medic.utils.outputs import Output

KINDS = ("same domain", "same class", "both other")
"""Kinds of cell pairs: same domain and different classes, same class and different domains, or neither shared."""
MAX_CLASSES = 6
"""Maximum number of classes to measure. Every gradient is as large as the model."""
SPLITS = 200
"""Number of random splits that L_reg is averaged over."""

CAPTION = (
    "the first-order update of MEDIC++ minimises L_reg with half the paper's coefficient, and only on average over "
    "step orders"
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Mean dot product, cosine and conflict over cell pairs, and L_reg, at one iteration."""

    dot: Mapping[str, float]
    """Mean dot product for each kind of pair, or NaN without such pairs."""
    cosine: Mapping[str, float]
    """Mean cosine for each kind of pair."""
    conflict: Mapping[str, float]
    """Fraction of pairs with a negative cosine, for each kind."""
    regularisation: float
    """L_reg, in units of the squared gradient, or NaN with only one domain or one class."""
    relative: float
    """L_reg divided by the mean squared norm of the four task gradients. It is −4 if all gradients are equal."""


@dataclass(frozen=True)
class Track:
    """Measurements of a run at M iterations, in arrays of shape (M,). See `Pairs`."""

    label: str
    method: str
    run: str
    losses: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    iterations: Ints
    dot: Mapping[str, Floats]
    cosine: Mapping[str, Floats]
    conflict: Mapping[str, Floats]
    regularisation: Floats
    relative: Floats


@dataclass(frozen=True)
class Gradients(Result):
    """Agreement between task gradients during training, for several runs."""

    tracks: tuple[Track, ...]
    images: int

    def rows(self) -> list[dict[str, str]]:
        """Return one row per run, averaged over all measured iterations."""
        return [
            {
                "run": track.label,
                **{f"cos {kind}": number(mean_of(track.cosine[kind]), 3) for kind in KINDS},
                **{f"conflict {kind} %": number(100 * mean_of(track.conflict[kind]), 0) for kind in KINDS},
                "L_reg": number(mean_of(track.regularisation)),
                "L_reg relative": number(mean_of(track.relative)),
            }
            for track in self.tracks
        ]

    def notes(self) -> list[str]:
        """Return notes on what was replayed, how the update relates to L_reg, and differences between runs."""
        last = ", ".join(sorted({str(track.iterations[-1]) for track in self.tracks}))
        first = self.tracks[0]
        lines = [
            f"training was replayed up to iteration {last}, with {self.images} images in each cell "
            f"({len(first.domains)} domains × {len(first.classes)} classes)",
            CAPTION,
        ]
        if len({(track.domains, track.classes) for track in self.tracks}) > 1:
            each = "; ".join(f"{one.label}: {', '.join(one.domains)} × {', '.join(one.classes)}" for one in self.tracks)
            lines[0] = f"training was replayed up to iteration {last}, with {self.images} images in each cell"
            lines.append(f"the runs have different cells, so their numbers are not comparable ({each})")
        if len({track.losses for track in self.tracks}) > 1:
            each = ", ".join(f"{track.label}: {track.losses}" for track in self.tracks)
            lines.append(f"the runs minimise different losses ({each}), so their dot products are not comparable")
        return lines


def measure(
    runs: Sequence[Run],
    moments: int = 10,
    iterations: int | None = None,
    images: int = 16,
    root: str | None = None,
    device: str = "auto",
) -> Gradients:
    """Replay the training of every run, and measure at `moments` iterations with `images` images per cell."""
    tracks: list[Track] = []
    for run, label in zip(runs, labels_of(runs), strict=True):
        with repeated(run, root, device) as training:
            cells = choose_cells(training, images)
            domains, classes = (dict.fromkeys(labels) for labels in zip(*cells, strict=True))
            names = run.classes
            if len(cells) < 2:
                raise MedicError(
                    f"gradients require at least two cells, but run {run.path} has one domain and one class"
                )
            at = moments_of(training.last(iterations), moments)
            measured = [_look(training, cells) for iteration in training.iterate(iterations) if iteration in at]
            tracks.append(
                Track(
                    label,
                    run.config.run.method,
                    str(run.path),
                    run.config.objective.objective,
                    tuple(training.dataset.domains[domain] for domain in domains),
                    tuple(names[label] for label in classes),
                    np.array(at),
                    {kind: np.array([one.dot[kind] for one in measured]) for kind in KINDS},
                    {kind: np.array([one.cosine[kind] for one in measured]) for kind in KINDS},
                    {kind: np.array([one.conflict[kind] for one in measured]) for kind in KINDS},
                    np.array([one.regularisation for one in measured]),
                    np.array([one.relative for one in measured]),
                )
            )
    return Gradients(tuple(tracks), images)


def choose_cells(training: Repeated, images: int) -> dict[tuple[int, int], Tensor]:
    """Draw up to `images` training images per cell, across all domains and up to `MAX_CLASSES` classes.

    Returns image positions by (domain, class). The draw depends only on the data, so that all runs on the same data use
    the same images.
    """
    samples, generator = training.problem.train, torch.Generator().manual_seed(0)
    every = samples.label.unique().tolist()
    chosen = every if len(every) <= MAX_CLASSES else [part[0] for part in chunks(every, MAX_CLASSES)]
    cells = {}
    for domain in training.problem.sources:
        for label in chosen:
            rows = ((samples.domain == domain) & (samples.label == label)).nonzero().squeeze(1)
            if len(rows):
                cells[domain, label] = rows[torch.randperm(len(rows), generator=generator)[:images]]
    return cells


def _look(training: Repeated, cells: Mapping[tuple[int, int], Tensor]) -> Pairs:
    """Measure the cells at the current weights."""
    trainer, samples = training.trainer, training.problem.train
    batches = []
    for rows in cells.values():
        inputs = load(trainer.images, samples.indices[rows], trainer.preprocessing, trainer.device)
        batches.append((inputs, samples.label[rows].to(trainer.device)))
    products = gram(trainer.model, trainer.objective.losses, batches)
    domain, label = np.array(list(cells)).T
    return pairs(products, domain, label)


def gram(model: nn.Module, losses: Sequence[Loss], batches: Sequence[tuple[Tensor, Tensor]]) -> Floats:
    """Return the dot products between the gradients of the mean loss on n batches, of shape (n, n).

    Each batch contains inputs and classes. The model is in evaluation mode. Weights, statistics and `p.grad` do not
    change.
    """
    parameters = find_trained(model)
    rows: list[tuple[Tensor | None, ...]] = []
    with evaluating(model), torch.enable_grad():
        for inputs, y in batches:
            output = Output.of(model(inputs))
            risk = torch.stack([loss(output, y) for loss in losses]).sum(0).mean()
            rows.append(torch.autograd.grad(risk, parameters, allow_unused=True))
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for column in zip(*rows, strict=True):  # one parameter at a time, to limit the memory for float64
        reached = [gradient for gradient in column if gradient is not None]
        if reached:
            flat = torch.stack([(torch.zeros_like(reached[0]) if g is None else g).flatten().double() for g in column])
            total += (flat @ flat.T).cpu()
    return total.numpy()


def pairs(products: Floats, domain: Ints, label: Ints) -> Pairs:
    """Average dot products of shape (n, n) over each kind of pair. `domain` and `label` describe the n cells."""
    norm = np.sqrt(np.diag(products))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = np.where(np.outer(norm, norm) > 0, products / np.outer(norm, norm), np.nan)
    first, second = np.triu_indices(len(products), 1)
    same_domain, same_class = domain[first] == domain[second], label[first] == label[second]
    masks = dict(zip(KINDS, (same_domain, same_class, ~same_domain & ~same_class), strict=True))

    def mean(values: Floats) -> dict[str, float]:
        chosen = {kind: values[first, second][mask] for kind, mask in masks.items()}
        kept = {kind: several[~np.isnan(several)] for kind, several in chosen.items()}
        return {kind: float(several.mean()) if len(several) else float("nan") for kind, several in kept.items()}

    conflict = np.where(np.isnan(cosine), np.nan, (cosine < 0).astype(float))
    return Pairs(mean(products), mean(cosine), mean(conflict), *regularisation(products, domain, label))


def regularisation(products: Floats, domain: Ints, label: Ints, splits: int = SPLITS) -> tuple[float, float]:
    """Return the mean L_reg over random splits into halves, and its ratio to the tasks' mean squared gradient norm.

    `products` contains the dot products between the gradients of n cells, of shape (n, n). `domain` and `label` have
    shape (n,).
    """
    names = np.unique(domain), np.unique(label)
    if min(map(len, names)) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    absolute, relative = [], []
    for _ in range(splits):
        in_f, in_1 = (
            np.isin(values, rng.permutation(every)[: len(every) // 2])
            for values, every in zip((domain, label), names, strict=True)
        )
        tasks = np.stack([in_f & in_1, in_f & ~in_1, ~in_f & in_1, ~in_f & ~in_1]).astype(float)  # F_1, F_2, G_1, G_2
        if (tasks.sum(1) == 0).any():  # some domains lack some classes
            continue
        weights = tasks / tasks.sum(1, keepdims=True)
        dot = weights @ products @ weights.T
        absolute.append(-(dot[0, 1] + dot[0, 2] + dot[3, 1] + dot[3, 2]))
        squared = np.trace(dot) / 4
        relative.append(absolute[-1] / squared if squared > 0 else np.nan)
    return (float(np.mean(absolute)), float(np.mean(relative))) if absolute else (float("nan"), float("nan"))


@style.styled
def draw(result: Gradients) -> Figure:
    """Draw the mean cosine for each kind of pair, and L_reg, against the iteration."""
    figure = style.new_figure(4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    colours = style.method_colours([track.method for track in result.tracks])
    looks = dict(zip(KINDS, ("-", "--", ":"), strict=True))
    for track, colour in zip(result.tracks, colours, strict=True):
        for kind, look in looks.items():
            top.plot(track.iterations, track.cosine[kind], look, marker="o", color=colour)
        bottom.plot(track.iterations, track.relative, "o-", color=colour, label=track.label)
    for kind, look in looks.items():
        top.plot([], [], look, color="black", label=f"{kind}, other class" if kind == "same domain" else
                 f"{kind}, other domain" if kind == "same class" else "other domain and class")  # fmt: skip
    top.axhline(0, color="0.8", linewidth=0.6, zorder=0)
    top.set_ylabel("mean gradient cosine")
    style.letter(top, 0, "pairs of cells (domain, class)")
    top.legend()
    bottom.set_ylabel(r"$L_{reg}$ / mean $\|g\|^2$")
    bottom.set_xlabel("iteration")
    caption = CAPTION.replace("L_reg", "$L_{reg}$")
    figure.supxlabel(textwrap.fill(caption, 72), fontsize="small")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.letter(bottom, 1, "regularisation term (lower is better)")
    figure.legend(*bottom.get_legend_handles_labels(), loc="outside upper center", ncols=min(3, len(result.tracks)))
    return figure
