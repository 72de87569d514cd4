"""Executors: where the runs of a sweep are done."""

from medic.sweeps.executors.base import Event, Executor, Kind

__all__ = ["Event", "Executor", "Kind"]
