"""`medic push`."""

from argparse import ArgumentParser, Namespace

from medic.cli.options import add_force_option, add_import_option, execute_imports
from medic.runs.opening import open_model


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic push`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of a model")
    parser.add_argument("name", metavar="OWNER/NAME", help="name of the model on the hub")
    parser.add_argument("--private", action="store_true", help="create a model that only its owner can see")
    parser.add_argument(
        "--license", metavar="ID", help="license of the model card, such as mit or cc-by-4.0 (default: none)"
    )
    add_force_option(parser)
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Send a model to the hub, and print its address."""
    execute_imports(arguments)
    predictor, finished = open_model(arguments.run, force=arguments.force)
    from medic.deploy.hub import push  # now, because it imports torch

    metrics = None if finished is None else finished.metrics
    print(push(predictor, arguments.name, metrics, arguments.private, arguments.license))
    return 0
