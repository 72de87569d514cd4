"""One root seed, and named generators derived from it."""

import hashlib

import torch


def derive(seed: int, name: str) -> int:
    """Return the seed of the generator `name` under a root seed: 63 bits that differ for every pair."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def generator(seed: int, name: str) -> torch.Generator:
    """Return a dedicated generator for one purpose, so that draws do not depend on those of other parts."""
    return torch.Generator().manual_seed(derive(seed, name))
