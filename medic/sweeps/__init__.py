"""Sweeps of many runs, the executors that run them, and hyperparameter searches."""
