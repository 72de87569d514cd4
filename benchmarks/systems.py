"""Print a row per system: metrics averaged over the targets, and how much the best evaluations would flatter it.

medic sweep benchmarks/systems.yaml --root DIR --weights lite0.safetensors --output runs/systems
medic sweep benchmarks/systems_digits.yaml --output runs/digits
python -m benchmarks.systems runs/systems runs/digits --pack benchmarks/records/systems.jsonl.gz
python -m benchmarks.systems benchmarks/records/systems.jsonl.gz
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.packed import STUDY, by_study, describe_run, finished_runs, parse_records, percent
from medic.config.objective import parse_hparams
from medic.reports.terminal import print_rows

METRICS = {"acc": "Acc", "hscore": "H-score", "oscr": "OSCR", "validation": "held-out sources"}
GAINS = {"acc": "+Acc", "hscore": "+H-score", "oscr": "+OSCR"}
"""Columns that show how much higher a metric would be if each run's evaluation were chosen on the target."""
OPTIONS = ("lr", "objective", "averaging")
"""Settings that a row names beside the method and its hyperparameters."""
TABLE = (*STUDY, "label_noise")
"""Settings that separate one table from the next."""


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a record per finished run in a folder."""
    for run in finished_runs(folder):
        user = run.user_settings
        yield {
            **describe_run(run), "label_noise": run.config.data.label_noise,
            "options": parse_hparams(user.get("hparams")) | {name: user[name] for name in OPTIONS if name in user},
            **{name: run.metrics[name] for name in ("acc", "acc_k", "acc_u", "hscore", "oscr")},
            "validation": run.record["validation"]["acc"],
            "best": {name: max(record["target"][name] for record in run.records) for name in GAINS},
            "last": {name: run.records[-1]["target"][name] for name in GAINS},
            "iteration": run.record["iteration"],
            **run.record.get("callback_metrics", {}),
        }  # fmt: skip


def system_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row per method and its options, with means over the targets in percent, best OSCR first."""
    rows = []
    for label in dict.fromkeys(_label(record) for record in records):
        own = [record for record in records if _label(record) == label]
        means = {title: percent(record[name] for record in own) for name, title in METRICS.items()}
        if "best" in own[0]:
            means |= {
                title: percent(record["best"][name] - record[name] for record in own) for name, title in GAINS.items()
            }
        rows.append({"method": label, "runs": str(len(own)), **means})
    return sorted(rows, key=lambda row: -float(row["OSCR"]))


def _label(record: dict[str, Any]) -> str:
    values = {name: f"{value:g}" if isinstance(value, float) else value for name, value in record["options"].items()}
    return ", ".join([record["method"], *(f"{name} {value}" for name, value in values.items())])


def main() -> None:
    """Print one table per dataset, backbone and share of noisy labels, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for title, own in by_study(records, TABLE):
        print(title)
        rows = system_rows(own)
        print_rows(rows, numeric=list(rows[0])[1:])
        print()


if __name__ == "__main__":
    main()
