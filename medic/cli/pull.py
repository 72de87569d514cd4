"""The `medic pull` command."""

from argparse import ArgumentParser, Namespace

from medic.cli.options import output_folder


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic pull`."""
    parser.add_argument("name", metavar="OWNER/NAME", help="name of the model on the Hub")
    parser.add_argument("folder", type=output_folder, metavar="DIR", help="folder to save the model to")
    parser.add_argument("--revision", metavar="REVISION", help="commit, branch or tag (default: main)")


def run(arguments: Namespace) -> int:
    """Download a model from the Hub, and print its folder."""
    from medic.deploy.hub import pull

    print(pull(arguments.name, arguments.folder, arguments.revision))
    return 0
