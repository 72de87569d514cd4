"""Compare the scores of runs that were trained with `--all-scores`: OSCR on the target, and calibration.

    medic probe --dataset pacs --root PACS --backbone tf_efficientnet_lite0 --weights lite0.safetensors \\
        --image-size 160 --methods erm medic++ --output runs/probe
    python -m benchmarks.scores runs/probe --pack benchmarks/records/scores.jsonl.gz
    python -m benchmarks.scores benchmarks/records/scores.jsonl.gz

The scores `temperature` and `platt` are calibrated on held-out source images. Calibration is measured before and after,
on these images and on known images of the target.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.packed import by_study, describe_run, finished_runs, parse_records
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


def score_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per score: its mean OSCR by method, and its difference to the method's own score over seeds."""
    methods = list(dict.fromkeys(record["method"] for record in records))
    keys = dict.fromkeys(key for record in records for key in record["target metrics"] if key.startswith(OSCR))
    rows = []
    for key in keys:
        row, means = {"score": key.removeprefix(OSCR)}, []
        for method in methods:
            own = OSCR + OWN.get(method, "cls")
            having = [record for record in records if record["method"] == method and key in record["target metrics"]]
            if not having:
                row |= {method: "–", f"{method}, over its default": "–"}
                continue
            means.append(_mean(record["target metrics"][key] for record in having))
            differences = {
                (f"{record['target']} without {record['unknown']}", record["seed"]): 100
                * (record["target metrics"][key] - record["target metrics"][own])
                for record in having
            }
            difference, half, seeds = seed_interval(differences)
            interval = f" ± {half:.1f}" if seeds > 1 else ""
            row |= {method: f"{means[-1]:.1f}", f"{method}, over its default": f"{difference:+.1f}{interval}"}
        rows.append((fmean(means), row))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


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
    for title, own in by_study(records):
        print(f"{title}, in percent")
        for rows in (score_rows(own), target_rows(own), calibration_rows(own)):
            if rows:
                print_rows(rows, numeric=[name for name in rows[0] if name not in ("score", "method", "images")])
                print()


if __name__ == "__main__":
    main()
