"""`medic train`."""

from jsonargparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, run_config


def add_options(parser: ArgumentParser) -> None:
    """The options of a run."""
    add_run_options(parser)
    parser.add_argument("--print-config", action="store_true", help="print the complete configuration and stop")


def run(arguments: Namespace) -> int:
    """Train, or say what would be trained."""
    config = run_config(arguments)
    from medic.experiments.resolve import resolve
    from medic.experiments.run import train

    if arguments.print_config:
        print(resolve(config).config.to_yaml(), end="")
        return 0
    from medic import processes
    from medic.report.table import print_run

    with processes.group():
        run = train(config)
        if processes.rank() == 0:
            print_run(run)
            selected = f"iteration {run.description['provenance']['iteration']}, selected by source validation"
            print(f"of {'averaged weights' if run.record.get('averaged') else selected}: {run.path}")
    return 0
