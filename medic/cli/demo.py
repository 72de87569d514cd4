"""`medic demo`: train two methods on the built-in benchmark, in two minutes."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from medic.cli.catalogue import check_names
from medic.cli.options import add_device_option, count, index, output_folder
from medic.errors import MedicError, counted
from medic.report.terminal import print_runs

COMPARED = ("erm", "medic++")
HALF = {"images": 72, "lr": 0.03}
"""Half the images of an iteration at half the benchmark's rate: more updates in the same time, so that both learn."""
RULES = """\
default: SWAD's average of the weights, unless one evaluation is significantly better on source validation
paper: the evaluation of the same run that is best on source validation, as with --averaging none"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic demo`."""
    parser.add_argument("--target", metavar="DOMAIN", help="target domain, which is never trained on (default: street)")
    parser.add_argument("--all", action="store_true", help="use every domain as the target in turn")
    parser.add_argument(
        "--iterations", type=count, default=400, metavar="N", help="outer updates of each run (default: 400)"
    )
    parser.add_argument("--seed", type=index, default=0, metavar="N", help="root of all random draws (default: 0)")
    parser.add_argument(
        "--output", type=output_folder, default="demo", metavar="DIR", help="directory to write to (default: demo)"
    )
    add_device_option(parser, default="auto")


def run(arguments: Namespace) -> int:
    """Train both methods with the one-vs-all head, print a table by our rule and the paper's, and write reports."""
    if arguments.all and arguments.target is not None:
        raise MedicError("--all and --target exclude each other: give one of them")
    check_names({"dataset": "digits", "target": arguments.target})
    from medic.data import benchmark
    from medic.report.run_page import write_report
    from medic.report.table_page import write_table_report
    from medic.runs.recipe import make_recipe
    from medic.runs.train import train
    from medic.tables.results import collect

    targets = benchmark("digits").domains if arguments.all else (arguments.target or "street",)
    shared = {
        "dataset": "digits",
        "objective": "ce+ova",
        "iterations": arguments.iterations,
        **HALF,
        **{name: getattr(arguments, name) for name in ("seed", "device", "output")},
    }
    asked = [{**shared, "target": target, "method": method} for target in targets for method in COMPARED]
    for settings in asked:
        make_recipe(settings)  # finds every mistake before the first run starts
    runs = [train(settings) for settings in asked]
    note = (
        f"One seed after {counted(arguments.iterations, 'iteration')} is an example, not a result. "
        "The order of the two methods is within noise: another seed, CPU or number of threads can reverse it."
    )
    for one in runs:
        write_report(one, one.path / "report.html")
    print_runs(runs, paper=True)
    print(f"{RULES}\n{note}")
    collection = collect(one.path for one in runs)
    print(write_table_report(collection, "medic demo", Path(arguments.output) / "index.html", note=note))
    return 0 if all(one.learned for one in runs) else 1
