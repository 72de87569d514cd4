"""The command line, `medic COMMAND`. Importing it does not import torch."""

from medic.cli.main import main

__all__ = ["main"]
