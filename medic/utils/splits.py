"""The names of class splits that depend on the seed. Importing this module does not import torch."""

RANDOM = "random:"
"""Followed by the number of known classes."""
LEAVE_ONE_OUT = "leave-one-class-out"


def is_drawn(name: str) -> bool:
    """Whether the classes of a split depend on the seed."""
    return name == LEAVE_ONE_OUT or name.startswith(RANDOM)
