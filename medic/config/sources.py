"""Custom networks and datasets: functions that create them, named `module:function`, or existing objects.

An importable function is recorded by name, with the hash of its module, so that the run can resume in another process.
An object, or a function that exists only in this process, is named `live:NAME-NUMBER`, and its run cannot resume. As in
`medic.config.imports`, code is executed only if the user names it, never because a finished run names it.
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
from medic.errors import MedicError, closest, first_line
from medic.models import OURS, _torchvision
from medic.models.own import copied, register_network
from medic.utils import distributed
from medic.utils.plugins import Plugin, is_module, module_hash

LIVE = "live"
KINDS = ("backbone", "dataset")
"""Settings that accept a source."""
_live: dict[str, Plugin] = {}
"""Objects that exist only in this process, by name."""
_hashes: dict[str, str] = {}
"""Hash of each module when it was first used."""


def is_source(name: Any) -> bool:
    """Return whether a setting's value names a source: `module:function` or `live:NAME`."""
    module, colon, rest = str(name).partition(":")
    return bool(colon) and is_module(module) and rest.replace("-", "").isidentifier()


def is_live(name: Any) -> bool:
    """Return whether a setting's value names an object that exists in a single process."""
    return is_source(name) and str(name).startswith(f"{LIVE}:")


def name_source(kind: str, source: Any) -> str:
    """Register a function or an object as a backbone or dataset, and return its name."""
    if _is_function(source) and (name := _importable(source)):
        _register(kind, name, source)
        _hash_module(name.partition(":")[0])
        return name
    title = getattr(source, "__name__", type(source).__name__)
    # Two objects cannot be compared reliably, code and attributes included, so each gets its own name.
    number = uuid.uuid4().hex
    name = f"{LIVE}:{title if title.isidentifier() else 'object'}-{number[:8]}"
    _register(kind, name, _as_function(kind, source))
    _live[name] = Plugin(name, number)
    return name


def forget_source(kind: str, name: str) -> None:
    """Unregister an object that exists only in this process."""
    (OURS if kind == "backbone" else BENCHMARKS).pop(name)
    del _live[name]


def use_sources(settings: Mapping[str, Any]) -> list[Plugin]:
    """Import and register the sources named in the user's settings, and return them with their hashes."""
    plugins = []
    for kind in KINDS:
        name = settings.get(kind)
        if not is_source(name):
            continue
        if is_live(name):
            if name not in _live:
                raise MedicError(f"{kind} {name!r} is an object of another process: pass the object again")
            if distributed.world() > 1:
                raise MedicError(
                    f"{kind} {name!r} is an object, which may differ between processes: pass a function from a module"
                )
            plugins.append(_live[name])
            continue
        module = str(name).partition(":")[0]
        if not _registered(kind, str(name)):
            _register(kind, str(name), _find_function(kind, str(name)))
        plugins.append(Plugin(module, _hash_module(module)))
    return plugins


def allow_sources(settings: Mapping[str, Any], where: str) -> None:
    """Register the sources named in a run's settings, provided that the user has imported their modules.

    Otherwise raise an error, because an untrusted file must not decide which code runs. `where` describes the run.
    """
    for kind in KINDS:
        name = str(settings.get(kind))
        if not is_source(name) or _registered(kind, name):
            continue
        module = name.partition(":")[0]
        way = f"medic.load(PATH, model=…) or --import {module}" if kind == "backbone" else f"--import {module}"
        if is_live(name):
            again = "medic.load(PATH, model=…)" if kind == "backbone" else "dataset=…"
            raise MedicError(
                f"{where} uses {kind} {name!r}, an object of another process: pass the object again as {again}"
            )
        if module not in executed() and _executed_file(module) is None:
            raise MedicError(f"{where} uses {kind} {name!r}, which is executed only on request: use {way}")
        _register(kind, name, _find_function(kind, name))


@contextmanager
def lend_network(name: str, source: Any) -> Iterator[None]:
    """Inside the context, build the user's network for every backbone with this name."""
    if not is_source(name):
        raise MedicError(f"the model uses backbone {name!r}, which does not need a custom network: omit model=")
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
    except Exception as error:  # user code may raise anything
        raise MedicError(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error


def _as_function(kind: str, source: Any) -> Callable[[], Any]:
    """Return a function that creates the network or returns the dataset."""
    if _is_function(source):
        return source  # type: ignore[no-any-return]
    if kind == "dataset":
        return lambda: source
    if not isinstance(source, nn.Module):
        what = type(source).__name__
        raise MedicError(f"model must be a torch.nn.Module or a function that returns one, got {what}")
    return copied(source)


def _is_function(source: Any) -> bool:
    """Return whether a source is a function or class that creates the object, rather than the object itself."""
    return callable(source) and (isinstance(source, type) or not isinstance(source, nn.Module))


def _find_function(kind: str, name: str) -> Callable[[], Any]:
    """Return the function named `module:function`, from an executed file or an importable module."""
    module, _, function = name.partition(":")
    try:
        _torchvision.ensure()  # before user code imports timm
        owner = _executed_file(module) or importlib.import_module(module)
    except Exception as error:  # user code may raise anything
        hint = f"; add --import {module}.py" if Path(f"{module}.py").is_file() else ""
        raise MedicError(f"{kind} {name} cannot be imported: {first_line(error)}{hint}") from error
    if not hasattr(owner, function):
        nearest = closest(function, vars(owner))
        hint = f"did you mean {nearest!r}?" if nearest else "define it, or choose another function"
        raise MedicError(f"module {module} has no function {function!r} for {kind} {name}: {hint}")
    made = getattr(owner, function)
    if not callable(made):
        raise MedicError(f"{kind} {name} must be a function, got {type(made).__name__}")
    return made  # type: ignore[no-any-return]


def _executed_file(module: str) -> Any:
    """Return the module created from a `module.py` file that `--import` executed, or None."""
    return next((file_module(path) for path in executed() if Path(path).name == f"{module}.py"), None)


def _hash_module(module: str) -> str:
    """Return the hash of a module. Raise an error if its file has changed since it was first used."""
    if (file := _executed_file(module)) is not None:
        return executed()[str(file.__file__)]
    now = module_hash(module)
    if _hashes.setdefault(module, now) != now:
        raise MedicError(f"the file of module {module!r} has changed since it was imported: restart Python")
    return now


def _importable(function: Any) -> str | None:
    """Return a function's `module:function` name if another process can import it, otherwise None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    owner = inspect.getmodule(function)
    if owner is not sys.modules.get(str(module)) or getattr(owner, name, None) is not function:
        return None
    return f"{module}:{name}"
