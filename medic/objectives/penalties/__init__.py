"""Penalties, one file each: terms that are added to the mean risk of a step.

A file of this folder is imported with it; its penalty registers itself by its name.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
