"""Fixtures for tests of sweeps: images on disk, for runs in other processes."""

from tests.runs.conftest import folder

__all__ = ["folder"]
