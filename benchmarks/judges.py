"""Compare judges of training recipes, which see source data only, by what their choices lose on the target.

    python -m benchmarks.judges benchmarks/records/screening.jsonl.gz

The trials of `benchmarks.recipes` were trained on every target, and rehearsed: on two of the four domains, with a third
of the known classes left out. A judge chooses one recipe for each method and target. Its regret is the target OSCR of
the best recipe minus that of the chosen one, in points. Kendall's τ compares the order of the recipes, without those
at chance, with their order on the target.
"""

import argparse
import math
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.recipes import BASES
from benchmarks.study.runs import Records, Run, read_runs

COLLAPSED = 0.35
"""Validation accuracy up to which a run on PACS is called at chance; the most frequent class has a fifth."""
DRAWS = 2000


class Trial(NamedTuple):
    """A recipe of a method on one target, with one seed."""

    recipe: str
    oscr: float
    """The open-set classification rate on the target, which no judge sees."""
    judged: dict[str, float]
    """The value that each judge gives it."""
    collapsed: bool


def average(lines: Records, name: str) -> dict[str, Any]:
    """Return the record of a weight average."""
    return next(line for line in lines if line.get("average") == name)


def read_trials(runs: dict[Run, Records], averaged: str) -> dict[tuple[str, str, int], list[Trial]]:
    """Return the trials by method, target and seed; trials that lack a rehearsal are left out."""
    by_name = {(run.method, run.target, run.seed): lines for run, lines in runs.items()}
    domains = sorted({run.target for run in runs if "," not in run.target})
    trials: dict[tuple[str, str, int], list[Trial]] = {}
    for (name, target, seed), lines in by_name.items():
        if "," in target or " @ " not in name:
            continue
        base, recipe = name.split(" @ ")
        pairs = {source: ",".join(sorted((source, target))) for source in domains if source != target}
        if not all((name, pair, seed) in by_name for pair in pairs.values()):
            continue
        rehearsed = [average(by_name[name, pair, seed], averaged)["targets"][source] for source, pair in pairs.items()]
        record = average(lines, averaged)
        judged = {
            "validation accuracy": record["validation"]["acc"],
            "validation loss": -record["validation"]["domain_loss"],
            "leave-one-out, accuracy": fmean(metrics["acc"] for metrics in rehearsed),
            "leave-one-out, H-score": fmean(metrics["hscore"] for metrics in rehearsed),
            "leave-one-out, AUROC": fmean(metrics["auroc"] for metrics in rehearsed),
            "leave-one-out, OSCR": fmean(metrics["oscr"] for metrics in rehearsed),
        }
        collapsed = record["validation"]["acc"] <= COLLAPSED
        trial = Trial(recipe, 100 * record["target"]["oscr"], judged, collapsed)
        trials.setdefault((base, target, seed), []).append(trial)
    return trials


def regret(trials: Sequence[Trial], judge: str) -> float:
    """Return the points of target OSCR that a judge's choice loses to the best trial."""
    chosen = max(trials, key=lambda trial: trial.judged[judge])
    return max(trial.oscr for trial in trials) - chosen.oscr


def kendall(trials: Sequence[Trial], judge: str) -> float:
    """Return Kendall's τ between a judge and the target, over trials that are not at chance."""
    pairs = list(combinations([trial for trial in trials if not trial.collapsed], 2))
    signs = [(a.oscr - b.oscr) * (a.judged[judge] - b.judged[judge]) for a, b in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(pairs) if pairs else math.nan


def bootstrap(by_seed: dict[int, float]) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles of a mean over seeds that are drawn with replacement."""
    draws, seeds = random.Random(0), sorted(by_seed)
    means = sorted(fmean(by_seed[seed] for seed in draws.choices(seeds, k=len(seeds))) for _ in range(DRAWS))
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS)]


def print_judges(trials: dict[tuple[str, str, int], list[Trial]]) -> None:
    """Print the mean regret of every judge by method, its regret by target, and Kendall's τ."""
    judges = list(next(iter(trials.values()))[0].judged)
    for base in (base for base in BASES if any(key[0] == base for key in trials)):
        here = {key: several for key, several in trials.items() if key[0] == base}
        targets, seeds = sorted({key[1] for key in here}), sorted({key[2] for key in here})
        number = min(map(len, here.values()))
        print(f"\n{base}: {number} recipes, {len(seeds)} seeds\n")
        print(f"| judge | mean regret | {' | '.join(targets)} | τ |")
        print("|---" * (len(targets) + 3) + "|")
        for judge in judges:
            regrets = {key: regret(several, judge) for key, several in here.items()}
            by_seed = {seed: fmean(r for key, r in regrets.items() if key[2] == seed) for seed in seeds}
            spread = ""
            if len(seeds) > 1:
                spread = " ({:.1f} to {:.1f})".format(*bootstrap(by_seed))
            cells = [f"{fmean(r for key, r in regrets.items() if key[1] == target):.1f}" for target in targets]
            tau = fmean(kendall(several, judge) for several in here.values())
            print(f"| {judge} | {fmean(by_seed.values()):.1f}{spread} | {' | '.join(cells)} | {tau:.2f} |")


def print_recipes(trials: dict[tuple[str, str, int], list[Trial]]) -> None:
    """Print every recipe: what the judges think of it, and the target."""
    for base in (base for base in BASES if any(key[0] == base for key in trials)):
        here = [trial for key, several in trials.items() if key[0] == base for trial in several]
        print(f"\n{base}\n\n| recipe | validation accuracy | leave-one-out OSCR | OSCR on the target |")
        print("|---" * 4 + "|")
        for recipe in dict.fromkeys(trial.recipe for trial in here):
            of_recipe = [trial for trial in here if trial.recipe == recipe]
            values = [
                100 * fmean(trial.judged["validation accuracy"] for trial in of_recipe),
                100 * fmean(trial.judged["leave-one-out, OSCR"] for trial in of_recipe),
                fmean(trial.oscr for trial in of_recipe),
            ]
            print(f"| {recipe} | {values[0]:.2f} | {values[1]:.1f} | {values[2]:.1f} |")


def print_rehearsals(runs: dict[Run, Records], averaged: str) -> None:
    """Print the leave-one-out OSCR of every recipe by method, and the mean of both, the best first."""
    values: dict[str, dict[str, list[float]]] = {}
    for run, lines in runs.items():
        if "," in run.target and " @ " in run.method:
            base, recipe = run.method.split(" @ ")
            rehearsed = average(lines, averaged)["targets"].values()
            values.setdefault(recipe, {}).setdefault(base, []).extend(100 * one["oscr"] for one in rehearsed)
    bases = [base for base in BASES if any(base in of_recipe for of_recipe in values.values())]
    means = {recipe: {base: fmean(of_base) for base, of_base in found.items()} for recipe, found in values.items()}
    print(f"| recipe | {' | '.join(bases)} | mean |")
    print("|---" * (len(bases) + 2) + "|")
    for recipe, found in sorted(means.items(), key=lambda item: -fmean(item[1].values())):
        cells = [f"{found[base]:.1f}" if base in found else "" for base in bases]
        mean = f"{fmean(found.values()):.1f}" if len(found) == len(bases) else ""
        print(f"| {recipe} | {' | '.join(cells)} | {mean} |")


def main() -> None:
    """Print both comparisons for the records of a screening."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--average", default="swad", help="weight average that is judged")
    arguments = parser.parse_args()
    runs = read_runs(arguments.records)
    trials = read_trials(runs, arguments.average)
    if not trials:  # no run has a target that no recipe may be chosen by
        print_rehearsals(runs, arguments.average)
        return
    print_recipes(trials)
    print_judges(trials)


if __name__ == "__main__":
    main()
