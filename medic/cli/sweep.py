"""The `medic sweep` command."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from medic.cli.options import add_run_options, index, user_settings
from medic.results.wording import learned_nothing, runs_are
from medic.sweeps.executors import Executor, executor_names, executor_options, make_executor
from medic.sweeps.files import read_sweep
from medic.sweeps.launch import launch, report
from medic.sweeps.sweep import Planner, Sweep, parse_span
from medic.utils.logs import log_output

if TYPE_CHECKING:
    from medic.sweeps.schedule import Schedule


def add_options(parser: ArgumentParser) -> None:
    """Add the options that describe the runs, and the executor options."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="YAML file with settings, span and variants")
    parser.add_argument(
        "--span",
        nargs="*",
        action="extend",
        default=[],
        metavar="NAME=A,B",
        help="values to combine, by setting: method=erm,medic++ seed=0..2",
    )
    add_executor_options(parser)
    add_run_options(parser)


def add_executor_options(parser: ArgumentParser) -> None:
    """Add the options that control where and how runs execute."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the settings, list the runs and their estimated time, and stop; for slurm, print the script",
    )
    parser.add_argument("--quiet", action="store_true", help="show only warnings and the result")
    group, names = parser.add_argument_group("executor"), executor_names()
    group.add_argument(
        "--executor",
        default="local",
        choices=names,
        metavar="NAME",
        help=f"where to execute runs: {', '.join(names)} (default: local)",
    )
    group.add_argument("--jobs", type=int, metavar="N", help="number of parallel runs (default: one per GPU or core)")
    group.add_argument("--retries", type=index, metavar="N", help="how many times to retry a failed run (default: 1)")
    for executor in names:
        for name, arguments in executor_options(executor).items():
            group.add_argument(f"--{name.replace('_', '-')}", **arguments)


def chosen_executor(arguments: Namespace) -> Executor:
    """Return the executor selected by the options."""
    options = {name: getattr(arguments, name) for each in executor_names() for name in executor_options(each)}
    return make_executor(arguments.executor, arguments.jobs, **options)


def run(arguments: Namespace) -> int:
    """Train the missing runs of a sweep."""
    settings, executor = user_settings(arguments), chosen_executor(arguments)
    sweep = Sweep({}) if arguments.file is None else read_sweep(Path(arguments.file))
    sweep = sweep.changed(settings, parse_span(arguments.span))
    with log_output(arguments.quiet):
        schedule = launch(sweep.jobs(Planner()), executor, arguments.retries, arguments.dry_run, arguments.quiet)
    failures = "" if arguments.dry_run else learned_nothing(schedule.finished_runs())
    if not arguments.dry_run:
        print(_summary(schedule, sweep.output, executor.waits) + (failures and f"; {failures}"))
        for job in dict.fromkeys(schedule.queued.values()):
            count = sum(other == job for other in schedule.queued.values())
            print(f"{runs_are(count)} queued as {job}; logs are in {sweep.output / 'logs'}")
        if schedule.finished or schedule.done:
            print(f"compare the runs with: medic table {quote(str(sweep.output))}")
    return report(schedule) or int(bool(failures))


def _summary(schedule: "Schedule", output: Path, waits: bool) -> str:
    """Summarise how many runs have finished: in total, before this command, and by this command."""
    from medic.utils.progress import duration  # deferred, because it imports rich, which would slow down `--help`

    before, now = len(schedule.finished), len(schedule.done)
    line = f"{before + now} of {runs_are(len(schedule.jobs))} finished in {output}"
    if not waits:
        return line
    trained = f"{now} trained now (total run time: {duration(sum(schedule.done.values()))})"
    return f"{line}: {before} before this command, {trained if now else 'none trained now'}"
