"""Compare a soup with the best single run by source validation, target by target.

medic sweep --dataset pacs … --trial-seed 0 --span target=each lr=… seed=0..3 --output candidates
medic soup …                                             # once per target, into the folder soups
python -m benchmarks.soups pack candidates soups benchmarks/records/soup.jsonl.gz
python -m benchmarks.soups show benchmarks/records/soup.jsonl.gz
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.packed import read_records, write_records
from medic.runs.layout import is_run
from medic.runs.run import Run

METRICS = ("acc", "hscore", "oscr")


def read(path: Path) -> dict[str, Any]:
    """Return what the comparison needs of a run."""
    run = Run(path)
    own = {"target": run.targets[0], "lr": run.config.optim.lr, "seed": run.config.run.seed}
    tried = run.description["provenance"]["soup"] if run.config.soup else []
    soup = sum(candidate["kept"] for candidate in tried)
    return {**own, "soup": soup, "validation": run.record["validation"]["acc"], **_metrics(run)}


def _metrics(run: Run) -> dict[str, float]:
    return {name: run.metrics[name] for name in METRICS}


def pack(folders: list[Path], file: Path) -> None:
    """Write one line per finished run."""
    rows = [read(path) for folder in folders for path in sorted(folder.iterdir()) if is_run(path)]
    write_records(rows, file)
    print(f"{len(rows)} runs")


def show(file: Path) -> None:
    """Print, for every target, the best run, the soup and the mean of all runs."""
    rows = read_records(file)
    print(
        "| target | runs | best run by validation: Acc / H-score / OSCR | runs in the soup | soup | mean of all runs |"
    )
    print("|---" * 6 + "|")
    for target in sorted({row["target"] for row in rows}):
        own = [row for row in rows if row["target"] == target]
        single = [row for row in own if not row["soup"]]
        best = max(single, key=lambda row: row["validation"])
        (soup,) = [row for row in own if row["soup"]]
        mean = {name: fmean(row[name] for row in single) for name in METRICS}
        cells = [target, str(len(single)), _cell(best), str(soup["soup"]), _cell(soup), _cell(mean)]
        print(f"| {' | '.join(cells)} |")


def _cell(row: dict[str, Any]) -> str:
    return " / ".join(f"{100 * row[name]:.1f}" for name in METRICS)


def main() -> None:
    """Pack runs, or show what was packed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["pack", "show"])
    parser.add_argument("paths", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "pack":
        pack(arguments.paths[:-1], arguments.paths[-1])
    else:
        show(arguments.paths[0])


if __name__ == "__main__":
    main()
