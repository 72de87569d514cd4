"""Compare the scores of runs that were trained with `--all-scores`: OSCR on the target, and calibration.

    medic probe --dataset pacs --root PACS --backbone tf_efficientnet_lite0 --weights lite0.safetensors \\
        --image-size 160 --methods erm medic++ --output runs/probe
    python -m benchmarks.scores runs/probe --pack benchmarks/records/scores.jsonl.gz
    python -m benchmarks.scores benchmarks/records/scores.jsonl.gz

The scores `temperature` and `platt` are calibrated on held-out source images. Calibration is measured before and after,
on these images and on known images of the target.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.packed import STUDY, by_study, describe_run, finished_runs, parse_records
from benchmarks.study.intervals import seed_interval
from medic.reports.terminal import print_rows

OSCR = "oscr/"
OWN = {"erm": "cls", "arpl": "max-logit", "medic++": "bcls"}
"""The score of each method by default."""
CALIBRATED = {"cls": "temperature", "bcls": "platt"}
"""The calibrated form of a score that is a probability."""


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a record per run: its settings, and its metrics on the target and on validation images."""
    for run in finished_runs(folder):
        unknown = " ".join(run.config.data.unknown)
        parts = {f"{part} metrics": _numbers(run.record[part]) for part in ("target", "validation")}
        yield {**describe_run(run), "unknown": unknown, **parts}


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if isinstance(value, float)}


def score_rows(records: Sequence[dict[str, Any]], method: str) -> list[dict[str, str]]:
    """Return a row per score: how much higher its OSCR is than that of the method's own score, by network.

    Differences are means over targets with intervals over seeds. The own score, first, has its mean OSCR instead.
    """
    of_method = [record for record in records if record["method"] == method]
    networks: dict[str, list[dict[str, Any]]] = {}
    for record in of_method:
        networks.setdefault(", ".join(record[name] for name in STUDY), []).append(record)
    own = OSCR + OWN.get(method, "cls")
    keys = dict.fromkeys(key for record in of_method for key in record["target metrics"] if key.startswith(OSCR))
    rows = []
    for key in keys:
        cells, gains = {}, []
        for title, runs in networks.items():
            difference, half, seeds = seed_interval({_place(run): _gain(run, key, own) for run in runs})
            interval = f" ± {half:.1f}" if seeds > 1 else ""
            oscr = f"OSCR {_mean(run['target metrics'][own] for run in runs):.1f}"
            cells[title] = oscr if key == own else f"{difference:+.1f}{interval}"
            gains.append(difference)
        rows.append((math.inf if key == own else fmean(gains), {"score": key.removeprefix(OSCR), **cells}))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _gain(run: dict[str, Any], key: str, own: str) -> float:
    return 100 * float(run["target metrics"][key] - run["target metrics"][own])


def _place(run: dict[str, Any]) -> tuple[str, int]:
    """Return what differs between the runs of a network with the same seed, and the seed."""
    return f"{run['target']} without {run['unknown']}", run["seed"]


def target_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per score and method: its mean OSCR by target."""
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        of_method = [record for record in records if record["method"] == method]
        for key in (key for key in of_method[0]["target metrics"] if key.startswith(OSCR)):
            means = {
                target: f"{_mean(r['target metrics'][key] for r in of_method if r['target'] == target):.1f}"
                for target in sorted({record["target"] for record in of_method})
            }
            rows.append({"method": method, "score": key.removeprefix(OSCR), **means})
    return rows


def calibration_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the calibration error and the Brier score before and after calibration, on sources and target."""
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        own = [record for record in records if record["method"] == method]
        for before, after in CALIBRATED.items():
            if f"ece/{after}" not in own[0]["target metrics"]:
                continue
            for part, name in (("validation", "sources"), ("target", "target")):
                cells = {
                    f"{title} {when}": f"{_mean(record[f'{part} metrics'][f'{metric}/{score}'] for record in own):.1f}"
                    for metric, title in (("ece", "ECE"), ("brier", "Brier"))
                    for when, score in (("before", before), ("after", after))
                }
                rows.append({"method": method, "score": before, "images": name, **cells})
    return rows


def _mean(values: Iterable[float]) -> float:
    return 100 * fmean(values)


def main() -> None:
    """Print the tables, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for method in dict.fromkeys(record["method"] for record in records):
        print(f"{method}: OSCR over its default score, in points")
        _print_table(score_rows(records, method))
    for title, own in by_study(records):
        print(f"{title}, in percent")
        _print_table(target_rows(own))
        _print_table(calibration_rows(own))


def _print_table(rows: list[dict[str, str]]) -> None:
    if rows:
        print_rows(rows, numeric=[name for name in rows[0] if name not in ("score", "method", "images")])
        print()


if __name__ == "__main__":
    main()
