"""Penalties: terms added to the mean risk of a step, one file each.

Importing this package imports every file in the folder, and each file registers its penalty.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
