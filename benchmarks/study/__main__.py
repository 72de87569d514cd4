"""Train methods on all targets of a benchmark, and compare rules that choose the result of a run, or the methods.

    python -m benchmarks.study run digits --output records/digits --seeds 0 1 2 3 4 --iterations 1500
    python -m benchmarks.study run pacs --output records/pacs --option root=DIR --option weights=FILE …
    python -m benchmarks.study pack records/digits benchmarks/records/digits.jsonl.gz
    python -m benchmarks.study rules benchmarks/records/pacs.jsonl.gz --rate 5.4e-3
    python -m benchmarks.study rates benchmarks/records/pacs.jsonl.gz
    python -m benchmarks.study methods benchmarks/records/pacs.jsonl.gz --rule swad
    python -m benchmarks.study versions benchmarks/records/defaults_0.3.jsonl.gz records/defaults

`run` writes one file per run: its evaluations, then one evaluation of each weight average, all of them from the same
training. Runs that are there are not trained again, so a study can be continued. `rules`, `rates` and `methods` only
read; `methods` compares each method at its best learning rate by source validation.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.study.methods import METHODS
from benchmarks.study.runs import pack
from benchmarks.study.tables import print_methods, print_rates, print_rules, print_versions

READERS: dict[str, Callable[..., None]] = {
    "pack": pack,
    "rules": print_rules,
    "rates": print_rates,
    "methods": print_methods,
    "versions": print_versions,
}
"""Functions of the commands that only read runs, by command."""
DEFAULT_RULE = "swad, unless significantly worse"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. The options of a command are the parameters of its function."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("dataset")
    run.add_argument("--output", type=Path, required=True)
    run.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", default=["erm", "medic", "medic++"])
    run.add_argument("--targets", nargs="+")
    run.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    run.add_argument("--rates", nargs="+", type=float, help="learning rates [the method's]")
    run.add_argument("--iterations", type=int, required=True)
    run.add_argument("--evaluations", type=int, default=20)
    run.add_argument("--averages", nargs="*", default=[], help="averages of weights to evaluate [all]")
    run.add_argument(
        "--interpolate", nargs="*", type=float, default=[], help="shares of the average beside the weights before"
    )
    run.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a setting of all runs")
    run.add_argument("--jobs", type=int, default=2, help="runs at a time")
    run.add_argument("--seconds", type=float, default=1e9, help="start no run that would end later")
    run.add_argument("--done", type=Path, help="a packed file of runs that need not be trained")
    packing = commands.add_parser("pack")
    packing.add_argument("folders", nargs="+", type=Path)
    packing.add_argument("file", type=Path)
    rules, rates, methods = (commands.add_parser(name) for name in ("rules", "rates", "methods"))
    for reading in (rules, rates, methods):
        reading.add_argument("folders", nargs="+", type=Path)
        reading.add_argument("--every", type=int, default=1, help="use every nth evaluation")
    rules.add_argument("--rate", type=float, help="only runs with this learning rate")
    versions = commands.add_parser("versions")
    versions.add_argument("before", type=Path)
    versions.add_argument("after", type=Path)
    for choosing in (rates, methods, versions):
        choosing.add_argument("--rule", default=DEFAULT_RULE)
    methods.add_argument("--against", default="erm")
    return parser


def main() -> None:
    """Train the runs of a study, or read what was trained."""
    options = vars(make_parser().parse_args())
    command = options.pop("command")
    if command == "run":
        from benchmarks.study.training import run_study  # imports torch, which the other commands do not need

        run_study(**options)
    else:
        READERS[command](**options)


if __name__ == "__main__":
    main()
