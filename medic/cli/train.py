"""The `medic train` command."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medic.cli.options import add_run_options, user_settings
from medic.config.files import to_yaml
from medic.errors import one_line
from medic.reports.terminal import print_run, report_command


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic train` and the settings of a run."""
    parser.add_argument("--quiet", action="store_true", help="show only warnings and the result")
    parser.add_argument(
        "--report", action="store_true", help="write an HTML report after training, like `medic report`"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check all settings, print the plan of the run, and stop"
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the configuration, with derived settings as comments, and stop",
    )
    add_run_options(parser)


def run(arguments: Namespace) -> int:
    """Train a run, or print its plan or configuration. Return 1 if the run learned nothing."""
    settings = user_settings(arguments)
    if arguments.print_config:
        from medic.config.resolve import resolve
        from medic.runs.extend import extended

        print(_configuration(settings, resolve(extended(settings)[0]).config.settings), end="")
        return 0
    if arguments.dry_run:
        from medic.runs.train import describe_plan

        for name, fact in describe_plan(settings):
            print(f"{name:<9} {one_line(fact)}")
        return 0
    from medic.runs.train import train
    from medic.utils import distributed

    with distributed.group():
        run = train(settings, quiet=arguments.quiet)
        if distributed.rank() == 0:
            print_run(run)
            iteration = run.description["provenance"]["iteration"]
            averaged = run.record.get("averaged")
            selected = "averaged weights" if averaged else f"iteration {iteration}, selected by source validation"
            print(f"{selected}: {run.path}")
            if arguments.report:
                from medic.reports.run_page import write_report

                root = run.config.data.root
                print(write_report(run, run.path / "report.html", None if root is None else Path(root)))
            else:
                print(f"write a report with: {report_command(run)}")
    return 0 if run.learned else 1


def _configuration(settings: Mapping[str, Any], complete: Mapping[str, Any]) -> str:
    """Format a configuration file: the user's settings, then all derived settings, commented out.

    Derived settings are comments, so that they are derived again after the user edits a setting in the file.
    """
    derived = {name: value for name, value in complete.items() if name not in settings}
    commented = "".join(f"# {line}\n" for line in to_yaml(derived).splitlines())
    return f"{to_yaml(settings)}# Derived from the settings above; uncomment a line to fix its value.\n{commented}"
