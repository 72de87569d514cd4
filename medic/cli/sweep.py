"""`medic sweep`."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, given_settings

if TYPE_CHECKING:
    from medic.experiments.launch import Launch


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
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and how long it would take")
    parser.add_argument(
        "--executor", type=str, default="local", help="local, here (this process), ray or slurm [local]"
    )
    parser.add_argument("--jobs", type=int | None, default=None, help="runs at a time (one per GPU, or per core)")
    parser.add_argument("--retries", type=int, default=1, help="how often a run that failed is tried again [1]")
    parser.add_argument("--quiet", action="store_true", help="show nothing until the end")


def launch(arguments: Namespace) -> "Launch":
    """What the options say of how runs are done."""
    from medic.experiments.launch import Launch

    names = ("executor", "jobs", "retries", "quiet")
    return Launch(dry=arguments.dry_run, device=arguments.device, **{name: arguments[name] for name in names})


def run(arguments: Namespace) -> int:
    """Do what is missing of a sweep."""
    from medic.errors import MedicError
    from medic.experiments.launch import print_plan, report
    from medic.experiments.progress import make_sayer
    from medic.experiments.sweeps import Planner, Sweep, parse_span

    base = Sweep({}) if arguments.file is None else Sweep.read(Path(arguments.file))
    sweep = base.changed(given_settings(arguments), parse_span(arguments.span))
    try:
        jobs = Planner(make_sayer(arguments.quiet)).jobs(sweep.configs(Path(arguments.output)))
    except MedicError as error:
        raise sweep.located(error) from error
    schedule = launch(arguments).run(jobs)
    if arguments.dry_run:
        print_plan(schedule)
        return 0
    done = len(schedule.there) + len(schedule.done)
    print(f"{done} of {len(schedule.jobs)} runs are in {arguments.output}; {sum(schedule.done.values()):.1f} s of runs")
    return report(schedule)
