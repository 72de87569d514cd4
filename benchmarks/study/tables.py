"""Tables that compare the rules, learning rates, methods and versions of studies."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.study.intervals import mean, seed_interval, target_interval
from benchmarks.study.results import Study


def _print_header(title: str, columns: Sequence[str]) -> None:
    print(f"\n{title}\n")
    _print_row(columns)
    print("|---" * len(columns) + "|")


def _print_row(cells: Iterable[object]) -> None:
    print(f"| {' | '.join(map(str, cells))} |")


def print_rules(folders: Sequence[Path], every: int, rate: float | None) -> None:
    """Print Acc / OSCR of every method by every rule, and the mean OSCR difference to the first rule."""
    for folder in folders:
        study = Study.read(folder, every)
        if rate is not None:
            study = study.at_rate(rate)
        title = f"{folder.name}, {len(study.metrics)} runs; Acc / OSCR"
        _print_header(title, ["rule", *study.methods, "mean OSCR", "difference"])
        first = {method: study.values(method, study.rules[0], "oscr") for method in study.methods}
        for rule in study.rules:
            acc, oscr = (
                {method: study.values(method, rule, metric) for method in study.methods} for metric in ("acc", "oscr")
            )
            cells = [f"{mean(acc[method]):.1f} / {mean(oscr[method]):.1f}" for method in study.methods]
            differences: dict[tuple[str, int], list[float]] = {}
            for method, values in oscr.items():
                for key, value in values.items():
                    differences.setdefault(key, []).append(value - first[method][key])
            shift, half = target_interval({key: fmean(values) for key, values in differences.items()})
            _print_row([rule, *cells, f"{fmean(map(mean, oscr.values())):.2f}", f"{shift:+.2f} ± {half:.2f}"])


def print_rates(folders: Sequence[Path], every: int, rule: str) -> None:
    """Print every method at every learning rate by one rule."""
    for folder in folders:
        study = Study.read(folder, every)
        title = f"{folder.name}, rule: {rule}; validation over the targets and seeds that all rates have"
        _print_header(title, ["method", "rate", "runs", "validation", "Acc", "OSCR"])
        for method in study.methods:
            for lr, validation in study.validation_by_rate(method, rule).items():
                acc, oscr = (study.at_rate(lr).values(method, rule, metric) for metric in ("acc", "oscr"))
                _print_row([method, lr, len(acc), f"{validation:.2f}", f"{mean(acc):.1f}", f"{mean(oscr):.1f}"])


def print_methods(folders: Sequence[Path], every: int, rule: str, against: str) -> None:
    """Print every method by one rule, and its paired differences to another method."""
    for folder in folders:
        study = Study.read(folder, every).at_best_rates(rule)
        title = f"{folder.name}, rule: {rule}; differences to {against} with 95% intervals over targets"
        _print_header(title, ["method", "runs", "Acc", "OSCR", "H-score", "Acc difference", "OSCR difference"])
        for method in study.methods:
            means, shifts = [], []
            for metric in ("acc", "oscr", "hscore"):
                values, others = study.values(method, rule, metric), study.values(against, rule, metric)
                means.append(f"{mean(values):.1f}")
                shared = values.keys() & others.keys()
                shift, half = target_interval({key: values[key] - others[key] for key in shared})
                shifts.append(f"{shift:+.1f} ± {half:.1f}")
            _print_row([method, len(values), *means, *shifts[:2]])


def print_versions(before: Path, after: Path, rule: str) -> None:
    """Print the differences between two studies with the same runs, and between MEDIC++ and ERM in the second study."""
    old, new = Study.read(before), Study.read(after)
    targets = sorted({run.target for run in new.metrics})
    title = f"{before.name} → {after.name}, rule: {rule}; 95% intervals over seeds, for the mean of these targets"
    _print_header(title, ["difference", "metric", "before", "after", "difference", "seeds", *targets])
    rows = [(method, (old, method), (new, method)) for method in new.methods]
    rows.append(("medic++ over erm, after", (new, "erm"), (new, "medic++")))
    for name, *sides in rows:
        for metric in ("acc", "hscore", "oscr", "auroc"):
            first, second = (study.values(method, rule, metric) for study, method in sides)
            shared = first.keys() & second.keys()
            differences = {key: second[key] - first[key] for key in shared}
            shift, half, seeds = seed_interval(differences)
            by_target = [fmean(value for key, value in differences.items() if key[0] == target) for target in targets]
            means = [f"{mean({key: values[key] for key in shared}):.1f}" for values in (first, second)]
            cells = [*means, f"{shift:+.2f} ± {half:.2f}", seeds, *(f"{value:+.1f}" for value in by_target)]
            _print_row([name, metric, *cells])
