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
    from medic.runs.resolve import resolve
    from medic.runs.train import train

    if arguments.print_config:
        print(resolve(config).config.to_yaml(), end="")
        return 0
    from medic import distributed
    from medic.report.table import print_run

    with distributed.group():
        run = train(config)
        if distributed.rank() == 0:
            print_run(run)
            selected = f"iteration {run.description['provenance']['iteration']}, selected by source validation"
            print(f"of {'averaged weights' if run.record.get('averaged') else selected}: {run.path}")
    return 0
