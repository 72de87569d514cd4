"""The `medic push` command."""

from argparse import ArgumentParser, Namespace

from medic.api.models import push
from medic.cli.options import add_force_option, add_import_option


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic push`."""
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    parser.add_argument("name", metavar="OWNER/NAME", help="name of the model on the Hub")
    parser.add_argument("--private", action="store_true", help="make the model visible to its owner only")
    parser.add_argument(
        "--license", metavar="ID", help="license for the model card, such as mit or cc-by-4.0 (default: none)"
    )
    add_force_option(parser)
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Upload a model to the Hub, and print its URL."""
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
