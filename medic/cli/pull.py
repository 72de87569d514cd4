"""`medic pull`."""

from argparse import ArgumentParser, Namespace

from medic.cli.options import output_folder


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic pull`."""
    parser.add_argument("name", metavar="OWNER/NAME", help="name of the model on the hub")
    parser.add_argument("folder", type=output_folder, metavar="DIR", help="folder for its files, which is created")
    parser.add_argument("--revision", metavar="REVISION", help="commit, branch or tag (default: main)")


def run(arguments: Namespace) -> int:
    """Fetch a model from the hub, and print its folder."""
    from medic.deploy.hub import pull

    print(pull(arguments.name, arguments.folder, arguments.revision))
    return 0
