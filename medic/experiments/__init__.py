"""Experiments: runs, their settings, their directories, and which evaluation counts."""

from medic.experiments.config import RunConfig

__all__ = ["RunConfig"]
