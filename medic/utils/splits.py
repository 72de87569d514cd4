"""Names of class splits that depend on the seed. This module does not import torch."""

RANDOM = "random:"
"""Prefix of `random:k`, where k is the number of known classes."""
LEAVE_ONE_OUT = "leave-one-class-out"


def is_drawn(name: str) -> bool:
    """Return whether the classes of a split depend on the seed."""
    return name == LEAVE_ONE_OUT or name.startswith(RANDOM)
