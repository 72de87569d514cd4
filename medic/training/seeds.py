"""One root seed, and named generators derived from it."""

import hashlib

import torch


def derive(seed: int, name: str) -> int:
    """The seed of the generator `name` under a root seed: 63 bits that differ for every pair of them."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def generator(seed: int, name: str) -> torch.Generator:
    """A generator of its own for one purpose, so that no draw depends on how many another part made."""
    return torch.Generator().manual_seed(derive(seed, name))
