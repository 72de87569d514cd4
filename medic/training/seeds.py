"""Derive named random generators from one root seed."""

import hashlib

import torch


def derive(seed: int, name: str) -> int:
    """Derive the 63-bit seed for the generator called `name` from a root seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def generator(seed: int, name: str) -> torch.Generator:
    """Return a generator for one purpose, whose draws do not depend on other parts of the program."""
    return torch.Generator().manual_seed(derive(seed, name))
