"""Find out where the code of an object comes from."""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any


def _modules(value: Any) -> set[str]:
    """Return the modules of all classes and functions that a value consists of."""
    if isinstance(value, type):
        return {base.__module__ for base in value.__mro__}
    if inspect.isroutine(value):
        return {str(value.__module__)}
    parts = _parts(value)
    own = set() if parts is not None and not dataclasses.is_dataclass(value) else {type(value).__module__}
    return own.union(*map(_modules, parts or ()))


def _parts(value: Any) -> list[Any] | None:
    """Return what a collection, a dataclass instance or a partial function contains; None for any other value."""
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, set | frozenset):  # whose order differs between processes
        return sorted(value, key=repr)
    return list(value) if isinstance(value, tuple | list) else None


def outside(value: Any) -> set[str]:
    """Return the packages that a value's code comes from, besides Python's own, torch and this package."""
    packages = {module.partition(".")[0] for module in _modules(value)}
    return packages - {"medic", "torch", *sys.stdlib_module_names}


def describe(value: Any) -> str:
    """Describe a value whose code is known, in the same words in every process."""
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    keys = list(value) if isinstance(value, Mapping) else []
    parts = _parts(value)
    return repr(value) if parts is None else f"{type(value).__qualname__}{keys}{[describe(part) for part in parts]}"
