"""Compare rules that choose the threshold of finished runs: H-score on the target, by rule and method.

    python -m benchmarks.thresholds runs/digits runs/pacs

A folder holds finished runs of one benchmark. A rule sees the outputs for validation images of the sources with their
labels; one that is called transductive also sees the target's, without labels. Oracles show what is lost.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from medic import openset
from medic.openset import Score, get_score
from medic.openset.scores import CheckedOutput
from medic.outputs import Output
from medic.runs.directory import Run


class Seen(NamedTuple):
    """The part of a run that rules may see: a score, validation outputs with labels (N,), and target outputs."""

    score: Score
    validation: Output
    label: Tensor
    target: Output


Rule = Callable[[Seen], float]


def keeps(share: float) -> Rule:
    """Accept a share of the validation images."""
    return lambda seen: openset.source(seen.score, validation=seen.validation, keep=share).value


def keeps_correct(share: float) -> Rule:
    """Accept a share of the validation images that are classified correctly."""

    def rule(seen: Seen) -> float:
        correct = openset.predicted_class(seen.validation) == seen.label
        return openset.source(seen.score, validation=seen.validation.map(lambda part: part[correct]), keep=share).value

    return rule


def fixed(probability: float) -> Rule:
    """Accept from a probability on."""
    return lambda seen: openset.fixed(seen.score, probability=probability).value


def left_out(seen: Seen) -> float:
    """Choose the best H-score where every class is unknown in turn: its images, scored without its outputs."""
    classes = seen.validation.logits.shape[1]
    pseudo = []
    for k in range(classes):
        others = [c for c in range(classes) if c != k]
        own = seen.label == k
        logits, ova = seen.validation.logits[own][:, others], seen.validation.ova
        pseudo.append(seen.score(Output(logits, None if ova is None else ova[own][:, :, others])))
    return best_threshold(
        seen.score(seen.validation), openset.predicted_class(seen.validation) == seen.label, torch.cat(pseudo)
    )


def best_threshold(known: Tensor, correct: Tensor, unknown: Tensor) -> float:
    """Return the threshold with the best H-score of known (N,) and unknown (M,) confidences."""
    grid = torch.cat([known, unknown]).unique()
    accepted = (known[None] >= grid[:, None]) & correct[None]
    rejected = unknown[None] < grid[:, None]
    k, u = accepted.double().mean(1), rejected.double().mean(1)
    return float(grid[(2 * k * u / (k + u).clamp(min=1e-12)).argmax()])


def otsu(seen: Seen) -> float:
    """Split the target's confidences so that the variance within both parts is least; transductive."""
    values = seen.score(seen.target).sort().values
    count = torch.arange(1, len(values), dtype=torch.float64)
    left, right = values.cumsum(0)[:-1] / count, (values.sum() - values.cumsum(0)[:-1]) / (len(values) - count)
    cut = int((count * (len(values) - count) * (left - right) ** 2).argmax())
    return float(values[cut : cut + 2].mean())


def mixture(seen: Seen) -> float:
    """Take the confidence at which two normal components of the target's are equally likely; transductive."""
    from sklearn.mixture import GaussianMixture

    values = seen.score(seen.target).numpy()[:, None]
    fitted = GaussianMixture(2, random_state=0, n_init=3).fit(values)
    upper = int(fitted.means_[:, 0].argmax())
    grid = np.linspace(fitted.means_.min(), fitted.means_.max(), 1001)[:, None]
    return float(grid[int((fitted.predict_proba(grid)[:, upper] >= 0.5).argmax()), 0])


SHARES = (0.99, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
RULES: dict[str, Rule] = {
    **{f"accept {100 * share:.0f} % of validation": keeps(share) for share in SHARES},
    **{f"accept {100 * share:.0f} % of correct validation": keeps_correct(share) for share in (0.95, 0.9, 0.8)},
    **{f"probability {p}": fixed(p) for p in (0.5, 0.7, 0.9, 0.95, 0.99)},
    "every class left out in turn": left_out,
    "Otsu (transductive)": otsu,
    "two components (transductive)": mixture,
}
ORACLE = "(best on the labelled target, which nobody may use)"


def measure(run: Run, name: str) -> dict[str, float]:
    """Return the H-score of a run in percent by rule, with one score."""
    score = get_score(name)
    validation, target = run.outputs("validation"), run.outputs("target")
    seen = Seen(score, validation.output, validation.label, target.output)
    confidence, prediction = score(target.output), CheckedOutput(target.output).prediction
    known = target.label >= 0
    found = {}
    for rule, choose in RULES.items():
        if not rule.startswith("probability") or score.probability:
            decided = openset.hscore(confidence, prediction, target.label, choose(seen))
            found[rule] = 100 * decided.hscore
    best = best_threshold(confidence[known], (prediction == target.label)[known], confidence[~known])
    found[ORACLE] = 100 * openset.hscore(confidence, prediction, target.label, best).hscore
    return found


def print_folder(folder: Path, scores: Sequence[str]) -> None:
    """Print a table of the runs of a folder: a row per rule, a column per method and score, and their mean."""
    cells: dict[str, dict[str, list[float]]] = {}
    for path in sorted(folder.glob("*/done")):
        run = Run(path.parent)
        own = run.settings["score"]
        for name in {own, *scores}:
            if get_score(name).reads(run.outputs("validation").output) and get_score(name).fitter is None:
                column = f"{run.settings['method']} {name}"
                for rule, value in measure(run, name).items():
                    cells.setdefault(rule, {}).setdefault(column, []).append(value)
    columns = sorted({column for row in cells.values() for column in row})
    counts = ", ".join(f"{column}: {len(cells[ORACLE][column])}" for column in columns)
    print(f"\n{folder}: H-score in percent, mean over runs ({counts})\n")
    print("| rule | " + " | ".join(columns) + " | mean |")
    print("|---" * (len(columns) + 2) + "|")
    for rule, row in cells.items():
        means = {column: fmean(row[column]) for column in columns if column in row}
        shown = [f"{means[column]:.1f}" if column in means else "–" for column in columns]
        print(f"| {rule} | {' | '.join(shown)} | {fmean(means.values()):.1f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--scores", nargs="*", default=[], help="further scores [the run's own]")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        print_folder(folder, arguments.scores)
