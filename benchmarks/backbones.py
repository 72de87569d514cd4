"""Compare backbones, the parts of them that are trained, and recipes, with ERM and MEDIC++ on every target.

    medic sweep benchmarks/sweeps/backbones.yaml --root PACS --backbone vit_tiny_patch16_224 --weights FILE \\
        --image-size 224 --iterations 600 --output runs/all
    python -m benchmarks.backbones runs/all … --pack benchmarks/records/backbones.jsonl.gz
    python -m benchmarks.backbones benchmarks/records/backbones.jsonl.gz

docs/studies.md has all commands with which the records were made.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.packed import describe_run, finished_runs, parse_records
from benchmarks.study.intervals import seed_interval
from medic.data import describe_augmentation, make_augmentation
from medic.reports.terminal import print_rows

METRICS = {"acc": "Acc", "hscore": "H-score", "oscr": "OSCR"}
GROUP = ("backbone", "pixels", "tune", "recipe", "augment", "method")
"""Settings of a row."""
BEFORE = ("all", "sgd 0.0018", "medic")
"""The trained part, recipe and augmentation of version 0.3, with which others are compared."""


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a record per finished run in a folder."""
    for run in finished_runs(folder):
        data, optim = run.config.data, run.config.optim
        augment = describe_augmentation(make_augmentation(data.augment))  # by name, also for a run with its values
        recipe = {"pixels": data.image_size, "recipe": f"{optim.optimizer} {optim.lr:g}", "augment": augment}
        metrics = {name: run.metrics[name] for name in METRICS}
        yield {**describe_run(run), **recipe, "iterations": optim.iterations, **metrics}


def result_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per network, trained part, recipe and method: its metrics in percent, with intervals over seeds."""
    rows = []
    for group, own in _grouped(records).items():
        cells = {"targets": str(len({record["target"] for record in own})), "runs": str(len(own))}
        for name, title in METRICS.items():
            mean, half, _ = seed_interval({_place(record): 100 * record[name] for record in own})
            cells[title] = f"{mean:.1f} ± {half:.1f}"
        rows.append({**dict(zip(GROUP, map(str, group), strict=True)), **cells})
    return rows


def difference_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per network, trained part and method: its OSCR minus that of the recipe of 0.3, by target."""
    rows = []
    groups = _grouped(records)
    for group, own in groups.items():
        backbone, pixels, tune, recipe, augment, method = group
        before = {_place(record): record for record in groups.get((backbone, pixels, *BEFORE, method), [])}
        gains = {
            place: 100 * (record["oscr"] - before[place]["oscr"])
            for record in own
            if (place := _place(record)) in before
        }
        if not gains or (tune, recipe, augment) == BEFORE:
            continue
        mean, half, seeds = seed_interval(gains)
        by_target = {
            target: f"{seed_interval({place: gain for place, gain in gains.items() if place[0] == target})[0]:+.1f}"
            for target in sorted({target for target, _ in gains})
        }
        label = {"backbone": backbone, "pixels": str(pixels), "tune": tune, "augment": augment, "method": method}
        rows.append({**label, "difference": f"{mean:+.1f} ± {half:.1f}", **by_target, "seeds": str(seeds)})
    return rows


def pair_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per pair of groups that differ in one setting: metrics of the second minus those of the first."""
    rows = []
    by_method = sorted(_grouped(records).items(), key=lambda item: item[0][-1])  # MEDIC++ minus ERM
    for (first, before), (second, after) in itertools.combinations(by_method, 2):
        changed = [position for position in range(len(GROUP)) if first[position] != second[position]]
        shared = {_place(record) for record in before} & {_place(record) for record in after}
        if len(changed) != 1 or not shared:
            continue
        names = [f"{old} → {new}" if old != new else str(old) for old, new in zip(first, second, strict=True)]
        cells = {"targets": str(len({target for target, _ in shared}))}
        for name, title in METRICS.items():
            sides = [{_place(record): 100 * record[name] for record in side} for side in (before, after)]
            mean, margin, _ = seed_interval({place: sides[1][place] - sides[0][place] for place in shared})
            cells[title] = f"{mean:+.1f} ± {margin:.1f}"
        rows.append({**dict(zip(GROUP, names, strict=True)), **cells})
    return rows


def _grouped(records: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in GROUP), []).append(record)
    return groups


def _place(record: dict[str, Any]) -> tuple[str, int]:
    return record["target"], record["seed"]


def main() -> None:
    """Print all tables, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for rows in (result_rows(records), difference_rows(records), pair_rows(records)):
        if rows:
            print_rows(rows, numeric=[name for name in rows[0] if name not in GROUP])
            print()


if __name__ == "__main__":
    main()
