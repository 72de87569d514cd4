"""The command line: `medic COMMAND`. Importing it imports no torch."""

from medic.cli.main import main

__all__ = ["main"]
