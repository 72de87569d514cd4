"""Compare two methods over many splits into known and unknown classes, and print the spread over the splits.

    medic sweep benchmarks/sweeps/class_splits.yaml --root PACS --weights lite0.safetensors --output runs/splits
    python -m benchmarks.class_splits runs/splits --pack benchmarks/records/class_splits.jsonl.gz
    python -m benchmarks.class_splits benchmarks/records/class_splits.jsonl.gz

docs/studies.md has the options for heads on frozen features, with which the records were made.

With `split: leave-one-class-out`, every class is unknown in turn. A split counts once, with its mean over the targets.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.packed import by_study, describe_run, finished_runs, parse_records, percent
from benchmarks.study.intervals import Values, seed_interval
from medic.reports.terminal import print_rows

BASE, COMPARED = "erm", "medic++"
METRICS = {"acc": "Acc", "hscore": "H-score", "oscr": "OSCR", "auroc": "AUROC"}


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a record per finished run in a folder."""
    for run in finished_runs(folder):
        metrics = {name: run.metrics[name] for name in METRICS}
        yield {**describe_run(run), "unknown": " ".join(run.config.data.unknown), **metrics}


def split_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per split with the mean OSCR of both methods over the targets, and the difference per target."""
    rows = []
    for unknown in dict.fromkeys(record["unknown"] for record in records):
        own = [record for record in records if record["unknown"] == unknown]
        means = {name: percent(r["oscr"] for r in own if r["method"] == name) for name in (BASE, COMPARED)}
        gains = {target: gain for (target, _), gain in _gains(own, "oscr").items()}
        rows.append(
            {
                "unknown": unknown,
                **means,
                "difference": f"{fmean(gains.values()):+.1f}",
                **{target: f"{gains[target]:+.1f}" for target in sorted(gains)},
            }
        )
    return rows


def spread_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per metric: mean and standard deviation over splits, and the difference with its 95% interval."""
    rows = []
    for metric, title in METRICS.items():
        texts = {}
        for method in (BASE, COMPARED):
            own = [record for record in records if record["method"] == method]
            by_split = [
                fmean(100 * record[metric] for record in own if record["unknown"] == unknown)
                for unknown in dict.fromkeys(record["unknown"] for record in own)
            ]
            spread = stdev(by_split) if len(by_split) > 1 else math.nan
            texts[method] = f"{fmean(by_split):.1f} ± {spread:.1f}"
        mean, half, count = seed_interval(_gains(records, metric))
        rows.append({"metric": title, **texts, "difference": f"{mean:+.1f} ± {half:.1f}", "splits": str(count)})
    return rows


def _gains(records: Sequence[dict[str, Any]], metric: str) -> Values:
    """Return the difference between the methods in points, by target and number of the split."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        values.setdefault((record["method"], record["target"], record["unknown"]), []).append(100 * record[metric])
    splits = list(dict.fromkeys(record["unknown"] for record in records))
    return {
        (target, splits.index(unknown)): fmean(values[COMPARED, target, unknown]) - fmean(base)
        for (method, target, unknown), base in values.items()
        if method == BASE and (COMPARED, target, unknown) in values
    }


def main() -> None:
    """Print both tables per backbone and trained part, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for title, own in by_study(records):
        print(title)
        for rows in (split_rows(own), spread_rows(own)):
            print_rows(rows, numeric=[name for name in rows[0] if name not in ("unknown", "metric")])
            print()


if __name__ == "__main__":
    main()
