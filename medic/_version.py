"""The version and the distribution name, alone in a file so that packaging can read it without importing torch."""

__version__ = "0.4.0.dev0"

DISTRIBUTION = "medic-osdg"
"""Name for `pip install`; `medic` is taken on PyPI."""
