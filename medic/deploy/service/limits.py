"""Service limits, which bound memory use and request time."""

import os
from dataclasses import dataclass

from medic.errors import MedicError

BODIES = 8
"""Maximum number of full-size request bodies held in memory. Beyond this, requests are answered with 503."""
DECODERS = min(4, os.cpu_count() or 1)
"""Number of decoding threads. Each may hold one image of `Limits.pixels`, at up to 20 bytes per pixel."""


@dataclass(frozen=True)
class Limits:
    """Limits for a single request and for all requests together."""

    bytes: int = 32 * 2**20
    """Maximum request size in bytes."""
    files: int = 64
    """Maximum number of images per request."""
    pixels: int = 50_000_000
    """Maximum height × width of an image."""
    seconds: float = 30.0
    """Request timeout in seconds, from headers to response."""
    queue: int = 256
    """Maximum number of images, over all requests, that are accepted but not yet answered."""
    batch_size: int = 32
    """Maximum number of images per forward pass."""
    wait: float = 0.005
    """Maximum time, in seconds, that a batch waits for images that are still being decoded."""

    def __post_init__(self) -> None:
        options = {
            "bytes": "--max-bytes", "files": "--max-files", "pixels": "--max-pixels", "seconds": "--timeout",
            "queue": "--queue", "batch_size": "--batch-size",
        }  # fmt: skip
        for name, option in options.items():
            if not getattr(self, name) > 0:
                raise MedicError(f"{option} must be a number above 0, got {getattr(self, name)}")
        if not 0 <= self.wait <= 10:
            raise MedicError(f"--wait-ms must be from 0 to 10000, got {1000 * self.wait:g}")
        if self.queue < self.files:
            raise MedicError(
                f"--queue must be at least --max-files, {self.files}, got {self.queue}: otherwise a full request is "
                "never accepted; raise --queue or lower --max-files"
            )
