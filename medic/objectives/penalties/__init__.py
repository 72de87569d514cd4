"""Penalties: terms added to the risk of a step, one file each."""
