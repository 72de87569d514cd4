"""Experiments: runs, their settings, their directories, and which evaluation counts."""

from medic.runs.config import RunConfig

__all__ = ["RunConfig"]
