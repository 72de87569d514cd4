"""`medic sweep`."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, given_settings

if TYPE_CHECKING:
    from medic.sweeps.launch import Launch


def add_options(parser: ArgumentParser) -> None:
    """What runs there are, and where they are done."""
    parser.add_argument("file", type=str | None, nargs="?", default=None, help="YAML file: settings, span, variants")
    parser.add_argument(
        "--span", type=str, nargs="*", default=[], metavar="NAME=A,B", help="values of a setting to combine: seed=0..2"
    )
    add_executor_options(parser)
    add_run_options(parser)


def add_executor_options(parser: ArgumentParser) -> None:
    """Where runs are done, and how many at a time."""
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would run and how long it would take, or the script for slurm"
    )
    parser.add_argument(
        "--executor", type=str, default="local", help="local, here (this process), ray or slurm [local]"
    )
    parser.add_argument("--jobs", type=int | None, default=None, help="runs at a time (one per GPU, or per core)")
    parser.add_argument(
        "--retries", type=int | None, default=None, help="how often a run that failed is tried again (once)"
    )
    parser.add_argument(
        "--address",
        type=str | None,
        default=None,
        metavar="HOST:PORT",
        help="Ray cluster to join (one is started)",
    )
    parser.add_argument("--host", type=str | None, default=None, help="where a Ray that is started listens (localhost)")
    parser.add_argument("--cpus-per-run", type=int | None, default=None, metavar="N", help="cores of a run on Ray (1)")
    parser.add_argument(
        "--slurm", type=str, nargs="*", default=[], metavar="KEY=VALUE", help="options of sbatch: time=2:00:00 gpus=1"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing until the end")


def launch(arguments: Namespace) -> "Launch":
    """What the options say of how runs are done."""
    from medic.sweeps.launch import Launch

    names = ("executor", "jobs", "retries", "quiet", "address", "host", "cpus_per_run", "slurm")
    return Launch(dry=arguments.dry_run, **{name: arguments[name] for name in names})


def run(arguments: Namespace) -> int:
    """Do what is missing of a sweep."""
    from medic.runs.progress import make_sayer
    from medic.sweeps.launch import report
    from medic.sweeps.sweep import Planner, Sweep, parse_span
    from medic.tables.results import runs_are

    base = Sweep({}) if arguments.file is None else Sweep.read(Path(arguments.file))
    sweep = base.changed(given_settings(arguments), parse_span(arguments.span))
    launcher = launch(arguments)
    schedule = launcher.run(sweep.jobs(Planner(make_sayer(arguments.quiet))))
    if not launcher.dry and launcher.executor != "slurm":
        done = len(schedule.there) + len(schedule.done)
        print(
            f"{done} of {runs_are(len(schedule.jobs))} in {sweep.output}; {sum(schedule.done.values()):.1f} s of runs"
        )
    return report(schedule)
