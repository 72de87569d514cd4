"""A backbone that runs out of memory beside others; a copy is imported by processes as `sitecustomize`.

Each file `memory-*` beside the copy stands for memory of one process.
"""

import fcntl
from pathlib import Path

import torch
from torch import Tensor

from medic.models import HALVES, OURS, ConvNet

HELD = []
"""The memory of this process, until it ends."""


class Greedy(ConvNet):
    """Takes its memory in the first pass of training."""

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, C, 32, 32) to features (N, 256)."""
        if self.training and not HELD:
            take()
        return super().forward(x)


def take() -> None:
    """Take memory, or raise the error of torch with its half page of text."""
    for place in Path(__file__).parent.glob("memory-*"):
        file = place.open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        HELD.append(file)
        return
    more = "GPU 0 has a total capacity of 10 GiB of which 1 GiB is free.\n" * 30
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2.00 GiB. {more}")


def make(size: int) -> Greedy:
    """Create the backbone."""
    return Greedy()


if __name__ == "sitecustomize":
    make.__module__ = ConvNet.__module__  # a backbone of this package, which the process that plans the runs knows
    OURS["convnet"] = (make, HALVES)
