"""`medic sweep`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from medic.cli.options import add_run_options, given_settings
from medic.logs import shown
from medic.sweeps.executors import Executor, executor_names, executor_options, make_executor
from medic.tables.results import runs_are


def add_options(parser: ArgumentParser) -> None:
    """Add the options that describe runs, and those of executors."""
    parser.add_argument("file", nargs="?", help="YAML file: settings, span, variants")
    parser.add_argument(
        "--span", nargs="*", default=[], metavar="NAME=A,B", help="values of a setting to combine: seed=0..2"
    )
    add_executor_options(parser)
    add_run_options(parser)


def add_executor_options(parser: ArgumentParser) -> None:
    """Add the options that say where and how runs execute."""
    parser.add_argument(
        "--dry-run", action="store_true", help="show the runs and an estimate of their time; for slurm, the script"
    )
    parser.add_argument("--executor", default="local", help=f"{', '.join(executor_names())} [local]")
    parser.add_argument("--jobs", type=int, help="runs at a time (one per GPU, or per core)")
    parser.add_argument("--retries", type=int, help="how often a failed run is tried again (default: 1)")
    for executor in executor_names():
        for name, arguments in executor_options(executor).items():
            parser.add_argument(f"--{name.replace('_', '-')}", **arguments)
    parser.add_argument("--quiet", action="store_true", help="show nothing until the end")


def chosen_executor(arguments: Namespace) -> Executor:
    """Return the executor that the options describe."""
    options = {name: getattr(arguments, name) for each in executor_names() for name in executor_options(each)}
    return make_executor(arguments.executor, arguments.jobs, **options)


def run(arguments: Namespace) -> int:
    """Execute the missing runs of a sweep."""
    from medic.sweeps.files import read_sweep
    from medic.sweeps.launch import launch, report
    from medic.sweeps.sweep import Planner, Sweep, parse_span

    sweep = Sweep({}) if arguments.file is None else read_sweep(Path(arguments.file))
    sweep = sweep.changed(given_settings(arguments), parse_span(arguments.span))
    executor = chosen_executor(arguments)
    with shown(arguments.quiet):
        schedule = launch(sweep.jobs(Planner()), executor, arguments.retries, arguments.dry_run, arguments.quiet)
    if not arguments.dry_run:
        finished = len(schedule.finished) + len(schedule.done)
        seconds = f"; {sum(schedule.done.values()):.1f} s of runs" if executor.waits else ""
        print(f"{finished} of {runs_are(len(schedule.jobs))} in {sweep.output}{seconds}")
        for job in dict.fromkeys(schedule.queued.values()):
            count = sum(other == job for other in schedule.queued.values())
            print(f"{runs_are(count)} queued as {job}; logs are in {sweep.output / 'logs'}")
    return report(schedule)
