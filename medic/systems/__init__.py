"""Complete systems, one file each: head, objective, callback, and the entry in the table of methods.

`SYSTEMS` collects the `METHODS` of every file in this folder.
"""

import pkgutil
from importlib import import_module

from medic.models import Classifier
from medic.systems.base import Method

SYSTEMS: tuple[Method, ...] = tuple(
    method
    for module in pkgutil.iter_modules(__path__)
    if module.name != "base"
    for method in import_module(f"{__name__}.{module.name}").METHODS
)

__all__ = ["SYSTEMS", "Classifier"]
