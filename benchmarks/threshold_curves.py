"""Draw what thresholds promise and keep on every target, from the records of `benchmarks.left_out_domains`.

python -m benchmarks.threshold_curves benchmarks/records/left_out_domains.jsonl.gz docs/images/thresholds
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.left_out_domains import PROMISED
from benchmarks.packed import Record, read_records
from medic.analysis import style

RULES = {"source": style.PALETTE[0], "left-out domains": style.FIXED["medic++"], "oracle": style.UNKNOWN}
"""Colour of each rule."""
PANELS = {"accepted": "accepted known images in %", "hscore": "H-score in %"}
"""Title of each column, by name of the measurement."""


@style.styled
def draw(records: Sequence[Record]) -> Figure:
    """Draw the records of one method: a row for each target, and a line for each rule and seed."""
    targets = sorted({record["target"] for record in records})
    figure = style.new_figure(0.6 + 1.3 * len(targets))
    grid = figure.subplots(len(targets), len(PANELS), sharex=True, sharey=True, squeeze=False)
    for target, row in zip(targets, grid, strict=True):
        for axes, measured in zip(row, PANELS, strict=True):
            axes.axvline(100 * PROMISED, color="#dddddd", linewidth=0.6)
            for rule, seed in dict.fromkeys((record["rule"], record["seed"]) for record in records):
                own = [r for r in records if (r["target"], r["rule"], r["seed"]) == (target, rule, seed)]
                heights = [100 * record[measured] for record in own]
                if rule == "oracle":
                    axes.axhline(*heights, color=RULES[rule], linestyle=":", linewidth=0.8)
                else:
                    axes.plot([100 * record["share"] for record in own], heights, color=RULES[rule], linewidth=0.8)
        row[0].plot([50, 100], [50, 100], color="#999999", linestyle="--", linewidth=0.6)
        row[0].set_ylabel(target.replace("_", " "))
    for axes, title in zip(grid[0], PANELS.values(), strict=True):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel("promised share in %")
        axes.set_xlim(50, 100)
        axes.set_ylim(0, 100)
    lines = [Line2D([], [], color=colour, linestyle=":" if rule == "oracle" else "-") for rule, colour in RULES.items()]
    figure.legend(lines, list(RULES), loc="outside upper left", ncols=3)
    return figure


def main(file: Path, folder: Path) -> None:
    """Write a picture for every dataset and method."""
    records = read_records(file)
    folder.mkdir(parents=True, exist_ok=True)
    for dataset, method in dict.fromkeys((record["dataset"], record["method"]) for record in records):
        own = [record for record in records if (record["dataset"], record["method"]) == (dataset, method)]
        draw(own).savefig(folder / f"{dataset}-{method.replace('+', 'p')}.webp", dpi=200)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
