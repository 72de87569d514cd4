"""The limits of the service, which keep its memory and the time of a request bounded."""

import os
from dataclasses import dataclass

from medic.errors import MedicError

BODIES = 8
"""Request bodies of the largest size that are held at a time; beyond, requests are answered with 503."""
DECODERS = min(4, os.cpu_count() or 1)
"""Threads that decode. Each may hold one image of `Limits.pixels`, at up to 20 bytes per pixel."""


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    bytes: int = 32 * 2**20
    """Bytes of the body of a request."""
    files: int = 64
    """Images in a request."""
    pixels: int = 50_000_000
    """Height × width of an image."""
    seconds: float = 30.0
    """Time from the headers of a request to its answer."""
    queue: int = 256
    """Images of all requests that were accepted and are not answered."""
    batch_size: int = 32
    """Images in a forward pass."""
    wait: float = 0.005
    """Seconds that a batch waits for images that are being decoded."""

    def __post_init__(self) -> None:
        options = {
            "bytes": "--max-bytes", "files": "--max-files", "pixels": "--max-pixels", "seconds": "--timeout",
            "queue": "--queue", "batch_size": "--batch-size",
        }  # fmt: skip
        for name, option in options.items():
            if not getattr(self, name) > 0:
                raise MedicError(f"{option} {getattr(self, name)}: give a number above 0")
        if not 0 <= self.wait <= 10:
            raise MedicError(f"--wait-ms {1000 * self.wait:g}: give 0 to 10000")
        if self.queue < self.files:
            raise MedicError(
                f"--queue {self.queue} is less than --max-files {self.files}: "
                "a request of that many images could never be accepted; raise --queue or lower --max-files"
            )
