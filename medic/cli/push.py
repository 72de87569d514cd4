"""`medic push`."""

from argparse import ArgumentParser, Namespace

from medic.api import push
from medic.cli.options import add_force_option, add_import_option


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
    print(
        push(
            arguments.run,
            arguments.name,
            private=arguments.private,
            license=arguments.license,
            imports=arguments.imports,
            force=arguments.force,
        )
    )
    return 0
