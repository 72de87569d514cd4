"""Compare rules that decide which target images of finished runs are unknown: H-score on the target by rule and method.

    python -m benchmarks.thresholds runs/digits runs/pacs --pack benchmarks/records/thresholds.jsonl.gz
    python -m benchmarks.thresholds benchmarks/records/thresholds.jsonl.gz

A folder holds finished runs of one benchmark; `FOLDER-folds` may hold their folds (`benchmarks.folds`), and runs may
have outputs for augmented views (`benchmarks.views`). A rule sees the outputs for validation images of the sources with
their labels, and for views and folds of them; one that is called transductive also sees the target's, without labels.
An oracle shows what is lost.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.folds import Fold, find_folds
from benchmarks.packed import finished_runs, read_records, write_records
from benchmarks.study.intervals import target_interval
from benchmarks.views import read_views
from medic import openset
from medic.evaluation.evaluator import LabelledOutputs
from medic.openset import Score, get_score
from medic.openset.calibration import two_components
from medic.runs.run import Run
from medic.utils.outputs import Output


class Seen(NamedTuple):
    """The part of a run that rules may see."""

    score: Score
    validation: Output
    label: Tensor
    """Of the validation images (N,)."""
    target: Output
    validation_views: Sequence[Output]
    target_views: Sequence[Output]
    folds: Sequence[Fold]


Rule = Callable[[Seen], Tensor | None]
"""Returns which target images (N,) are accepted as known, or None where it does not apply."""


def at(choose: Callable[[Seen], float | None]) -> Rule:
    """Return the rule of a threshold."""

    def rule(seen: Seen) -> Tensor | None:
        value = choose(seen)
        return None if value is None else seen.score(seen.target) >= value

    return rule


def keeping(share: float) -> Rule:
    """Accept a share of the validation images."""
    return at(lambda seen: openset.source(seen.score, validation=seen.validation, accept=share).value)


def keeping_correct(share: float) -> Rule:
    """Accept a share of the validation images that are classified correctly."""

    def choose(seen: Seen) -> float:
        correct = openset.predicted_class(seen.validation) == seen.label
        return openset.source(
            seen.score, validation=seen.validation.map(lambda part: part[correct]), accept=share
        ).value

    return at(choose)


def keeping_views(share: float) -> Rule:
    """Accept a share of the augmented validation images, which are harder than plain ones."""

    def choose(seen: Seen) -> float | None:
        if not seen.validation_views:
            return None
        return openset.source(seen.score, validation=Output.cat(seen.validation_views), accept=share).value

    return at(choose)


def fixed(probability: float) -> Rule:
    """Accept from a probability on."""
    return at(lambda s: openset.fixed(s.score, probability=probability).value if s.score.probability else None)


def outputs_left_out(seen: Seen) -> float:
    """Choose the best H-score where every class is unknown in turn: its images, scored without its outputs."""
    classes = seen.validation.logits.shape[1]
    pseudo = []
    for k in range(classes):
        others = [c for c in range(classes) if c != k]
        own = seen.label == k
        logits, ova = seen.validation.logits[own][:, others], seen.validation.ova
        pseudo.append(seen.score(Output(logits, None if ova is None else ova[own][:, :, others])))
    unknown = torch.cat(pseudo)
    label = torch.cat([seen.label, torch.full((len(unknown),), -1)])
    prediction = torch.cat([openset.predicted_class(seen.validation), torch.zeros(len(unknown), dtype=torch.long)])
    return openset.best_threshold(torch.cat([seen.score(seen.validation), unknown]), prediction, label)


def best_of_fold(fold: Fold, score: Score, shifted: bool) -> float:
    """Return the best threshold for the classes that a fold leaves out: in its sources, or in its left-out domain."""
    seen = fold.domain if shifted else LabelledOutputs.cat([fold.validation, fold.classes])
    return openset.best_threshold(score(seen.output), openset.predicted_class(seen.output), seen.label)


def fold_threshold(shifted: bool) -> Rule:
    """Take the mean threshold of the folds."""

    def choose(seen: Seen) -> float | None:
        return fmean(best_of_fold(fold, seen.score, shifted) for fold in seen.folds) if seen.folds else None

    return at(choose)


def fold_acceptance(shifted: bool) -> Rule:
    """Accept the share of validation images that the best thresholds of the folds accept of theirs, on average."""

    def choose(seen: Seen) -> float | None:
        if not seen.folds:
            return None
        shares = [
            float((seen.score(f.validation.output) >= best_of_fold(f, seen.score, shifted)).double().mean())
            for f in seen.folds
        ]
        return openset.source(seen.score, validation=seen.validation, accept=max(fmean(shares), 1e-3)).value

    return at(choose)


def agreement(base: Rule | None = None) -> Rule:
    """Accept where all views have the same class, and another rule accepts too if given."""

    def rule(seen: Seen) -> Tensor | None:
        if not seen.target_views:
            return None
        plain = openset.predicted_class(seen.target)
        agree = torch.stack([openset.predicted_class(view) == plain for view in seen.target_views]).all(0)
        accepted = base(seen) if base else None
        return agree if accepted is None else agree & accepted

    return rule


def otsu(seen: Seen) -> float:
    """Split the target's confidences so that the variance within both parts is least; transductive."""
    values = seen.score(seen.target).sort().values
    count = torch.arange(1, len(values), dtype=torch.float64)
    left, right = values.cumsum(0)[:-1] / count, (values.sum() - values.cumsum(0)[:-1]) / (len(values) - count)
    cut = int((count * (len(values) - count) * (left - right) ** 2).argmax())
    return float(values[cut : cut + 2].mean())


def mixture(seen: Seen) -> float:
    """Take the confidence at which two normal components of the target's are equally likely; transductive."""
    return two_components(seen.score(seen.target))


SHARES = (0.99, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
RULES: dict[str, Rule] = {
    **{f"accept {100 * share:.0f} % of validation": keeping(share) for share in SHARES},
    **{f"accept {100 * share:.0f} % of correct validation": keeping_correct(share) for share in (0.95, 0.9, 0.8)},
    **{f"accept {100 * share:.0f} % of augmented validation": keeping_views(share) for share in (0.95, 0.9, 0.8)},
    **{f"probability {p}": fixed(p) for p in (0.5, 0.7, 0.9, 0.95, 0.99)},
    "outputs of every class left out in turn": at(outputs_left_out),
    "left-out classes, threshold": fold_threshold(shifted=False),
    "left-out classes, acceptance": fold_acceptance(shifted=False),
    "left-out classes and domain, threshold": fold_threshold(shifted=True),
    "left-out classes and domain, acceptance": fold_acceptance(shifted=True),
    "four views agree": agreement(),
    "four views agree, accept 95 % of validation": agreement(keeping(0.95)),
    "four views agree, accept 90 % of validation": agreement(keeping(0.9)),
    "Otsu (transductive)": at(otsu),
    "two components (transductive)": at(mixture),
}
BASE = "accept 95 % of validation"
ORACLE = "(best on the labelled target, which nobody may use)"


def measure(run: Run, score: Score, folds: Sequence[Fold]) -> dict[str, float]:
    """Return the H-score of a run in percent by rule, with one score."""
    validation, target = run.outputs("validation"), run.outputs("target")
    views = [read_views(run, split) or () for split in ("validation", "target")]
    readable = [fold for fold in folds if fold.reads(score)]
    seen = Seen(score, validation.output, validation.label, target.output, *views, readable)
    prediction = openset.predicted_class(target.output)
    hscores = {}
    for rule, choose in RULES.items():
        accepted = choose(seen)
        if accepted is not None:
            decided = torch.where(accepted, prediction, -1)
            hscores[rule] = 100 * openset.hard_hscore(decided, target.label).hscore
    confidence = score(target.output)
    best = openset.best_threshold(confidence, prediction, target.label)
    hscores[ORACLE] = 100 * openset.hscore(confidence, prediction, target.label, best).hscore
    return hscores


class Record(NamedTuple):
    """The H-scores of a run in percent by rule."""

    benchmark: str
    column: str
    """The method and the score."""
    target: str
    seed: int
    hscores: dict[str, float]


def measure_folder(folder: Path, scores: Sequence[str]) -> Iterator[Record]:
    """Measure the runs of a folder by their own score, and by further ones."""
    candidates = finished_runs(folder.with_name(f"{folder.name}-folds"))
    for run in finished_runs(folder):
        folds = find_folds(run, candidates)
        for name in dict.fromkeys((run.settings["score"], *scores)):
            score = get_score(name)
            if score.reads(run.outputs("validation").output) and score.fitter is None:
                column = f"{run.settings['method']} {name}"
                target = " ".join(run.settings["target"])
                yield Record(folder.name, column, target, run.settings["seed"], measure(run, score, folds))


def print_table(benchmark: str, records: Sequence[Record]) -> None:
    """Print a row per rule with a column per method and score, the mean, and the difference to the rule of before."""
    cells: dict[str, dict[str, list[float]]] = {}
    changes: dict[str, dict[tuple[str, int], list[float]]] = {}
    for record in records:
        for rule, value in record.hscores.items():
            cells.setdefault(rule, {}).setdefault(record.column, []).append(value)
            change = value - record.hscores[BASE]
            changes.setdefault(rule, {}).setdefault((record.target, record.seed), []).append(change)
    columns = sorted({record.column for record in records})
    counts = ", ".join(f"{column}: {len(cells[ORACLE][column])}" for column in columns)
    print(
        f"\n{benchmark}: H-score in percent, mean over runs ({counts}); differences with 95% intervals over targets\n"
    )
    print("| rule | " + " | ".join(columns) + " | mean | difference |")
    print("|---" * (len(columns) + 3) + "|")
    for rule, row in cells.items():
        means = [fmean(row[column]) for column in columns if column in row]
        formatted = [f"{fmean(row[column]):.1f}" if column in row else "–" for column in columns]
        shift, half = target_interval({run: fmean(values) for run, values in changes[rule].items()})
        label = rule.replace(" %", "%")  # records store the names of the rules with a space before the percent sign
        print(f"| {label} | {' | '.join(formatted)} | {fmean(means):.2f} | {shift:+.2f} ± {half:.2f} |")


def read(place: Path, scores: Sequence[str]) -> list[Record]:
    """Read a file of records, or measure the runs of a folder."""
    if place.is_dir():
        return list(measure_folder(place, scores))
    return [Record(**record) for record in read_records(place)]


def main() -> None:
    """Print a table per benchmark, and pack the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, help="folders of runs, or a file of records")
    parser.add_argument("--scores", nargs="*", default=[], help="further scores [the run's own]")
    parser.add_argument("--pack", type=Path, help="write the records, to be read instead of the runs")
    arguments = parser.parse_args()
    every = [record for place in arguments.places for record in read(place, arguments.scores)]
    for benchmark in dict.fromkeys(record.benchmark for record in every):
        print_table(benchmark, [record for record in every if record.benchmark == benchmark])
    if arguments.pack:
        write_records((record._asdict() for record in every), arguments.pack)


if __name__ == "__main__":
    main()
