"""Your own networks and datasets: functions that make them, `module:function`, and existing objects.

A function that can be imported is recorded by name and by the hash of its module, so that a run resumes in another
process. An object, or a function that only this process knows, is called `live:NAME-NUMBER`: such a run cannot resume.
As with `medic.config.imports`, code is executed only if the user names it, never because a finished run does.
"""

import importlib
import inspect
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from medic.config.imports import executed, file_module
from medic.data import BENCHMARKS
from medic.data.collection import make_benchmark
from medic.errors import MedicError, first_line
from medic.models import OURS
from medic.models.own import copied, register_network
from medic.utils.plugins import Plugin, is_module, module_hash

LIVE = "live"
KINDS = ("backbone", "dataset")
"""The settings that may name a source."""
_live: dict[str, Plugin] = {}
"""The objects of this process, by name."""
_hashes: dict[str, str] = {}
"""The hashes of modules when they were first used."""


def is_source(name: Any) -> bool:
    """Whether the value of a setting names a source, `module:function` or `live:NAME`."""
    module, colon, rest = str(name).partition(":")
    return bool(colon) and is_module(module) and rest.replace("-", "").isidentifier()


def is_live(name: Any) -> bool:
    """Whether the value of a setting names an object that only one process has."""
    return is_source(name) and str(name).startswith(f"{LIVE}:")


def name_source(kind: str, source: Any) -> str:
    """Return the name of a function or an object, and register it as a backbone or a dataset."""
    if _is_function(source) and (name := _importable(source)):
        _register(kind, name, source)
        _hash_module(name.partition(":")[0])
        return name
    title = getattr(source, "__name__", type(source).__name__)
    # Nothing tells whether two objects are the same, since code and attributes count too: each has its own name.
    number = uuid.uuid4().hex
    name = f"{LIVE}:{title if title.isidentifier() else 'object'}-{number[:8]}"
    _register(kind, name, _as_function(kind, source))
    _live[name] = Plugin(name, number)
    return name


def forget_source(kind: str, name: str) -> None:
    """Forget an object of this process, which nobody needs by its name any longer."""
    (OURS if kind == "backbone" else BENCHMARKS).pop(name)
    del _live[name]


def use_sources(settings: Mapping[str, Any]) -> list[Plugin]:
    """Import and register the sources that settings of a user name; return them with their hashes."""
    plugins = []
    for kind in KINDS:
        name = settings.get(kind)
        if not is_source(name):
            continue
        if is_live(name):
            if name not in _live:
                raise MedicError(f"{kind} {name!r} is an object of another process: give the object again")
            plugins.append(_live[name])
            continue
        module = str(name).partition(":")[0]
        if not _registered(kind, str(name)):
            _register(kind, str(name), _find_function(kind, str(name)))
        plugins.append(Plugin(module, _hash_module(module)))
    return plugins


def allow_sources(settings: Mapping[str, Any], where: str) -> None:
    """Register the sources of settings that the user did not write, if the user has named their modules.

    Otherwise raise an error, because a file from someone else must not decide which code runs.
    """
    for kind in KINDS:
        name = str(settings.get(kind))
        if not is_source(name) or _registered(kind, name):
            continue
        module = name.partition(":")[0]
        way = f"medic.load(PATH, model=…) or --import {module}" if kind == "backbone" else f"--import {module}"
        if is_live(name):
            again = "medic.load(PATH, model=…)" if kind == "backbone" else "dataset=…"
            raise MedicError(f"{where} has a {kind} that was an object of another process, {name!r}: give it, {again}")
        if module not in executed() and _executed_file(module) is None:
            raise MedicError(f"{where} has the {kind} {name!r}, code that is executed only if you name it: use {way}")
        _register(kind, name, _find_function(kind, name))


@contextmanager
def lend_network(name: str, source: Any) -> Iterator[None]:
    """Make a network of the user's inside whenever a backbone of this name is made."""
    if not is_source(name):
        raise MedicError(f"the model has the backbone {name!r}, which needs no network of yours: leave out model=")
    before = OURS.get(name)
    register_network(name, _as_function("backbone", source))
    try:
        yield
    finally:
        OURS.pop(name)
        if before is not None:
            OURS[name] = before


def _registered(kind: str, name: str) -> bool:
    return name in (OURS if kind == "backbone" else BENCHMARKS)


def _register(kind: str, name: str, make: Callable[[], Any]) -> None:
    if kind == "backbone":
        register_network(name, make)
    else:
        BENCHMARKS[name] = make_benchmark(name, _called(name, make))


def _called(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except MedicError:
        raise
    except Exception as error:  # whatever the user's code does
        raise MedicError(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error


def _as_function(kind: str, source: Any) -> Callable[[], Any]:
    """Return a function that makes the network, or returns the data."""
    if _is_function(source):
        return source  # type: ignore[no-any-return]
    if kind == "dataset":
        return lambda: source
    if not isinstance(source, nn.Module):
        what = type(source).__name__
        raise MedicError(f"the model is a {what}: give a torch.nn.Module, or a function that makes one")
    return copied(source)


def _is_function(source: Any) -> bool:
    """Whether a source is a function or a class that makes an object, and not the object."""
    return callable(source) and (isinstance(source, type) or not isinstance(source, nn.Module))


def _find_function(kind: str, name: str) -> Callable[[], Any]:
    """Return the function of a name, from a file that was executed or from a module that can be imported."""
    module, _, function = name.partition(":")
    try:
        owner = _executed_file(module) or importlib.import_module(module)
        made = getattr(owner, function)
    except Exception as error:  # whatever the user's code does
        hint = f"; add --import {module}.py" if Path(f"{module}.py").is_file() else ""
        raise MedicError(f"{kind} {name} cannot be imported: {first_line(error)}{hint}") from error
    if not callable(made):
        raise MedicError(f"{kind} {name} is of type {type(made).__name__}: give a function")
    return made  # type: ignore[no-any-return]


def _executed_file(module: str) -> Any:
    """Return the module of a file `module.py` that `--import` has executed, or None."""
    return next((file_module(path) for path in executed() if Path(path).name == f"{module}.py"), None)


def _hash_module(module: str) -> str:
    """Return the hash of a module, and raise an error if its file has changed since it was first used."""
    if (file := _executed_file(module)) is not None:
        return executed()[str(file.__file__)]
    now = module_hash(module)
    if _hashes.setdefault(module, now) != now:
        raise MedicError(f"the file of {module!r} has changed since it was imported: start Python again")
    return now


def _importable(function: Any) -> str | None:
    """Return `module:function` of a function that another process can import, or None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    owner = inspect.getmodule(function)
    if owner is not sys.modules.get(str(module)) or getattr(owner, name, None) is not function:
        return None
    return f"{module}:{name}"
