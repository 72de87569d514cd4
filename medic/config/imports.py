"""Execute the files and modules passed to `--import`, which may register methods and other parts.

Code is executed only if the user passes it to a command. The imports recorded in a finished run are not executed
unless the user names them again.
"""

import hashlib
import importlib
import importlib.util
import linecache
import logging
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from medic.data import BENCHMARKS, Benchmark
from medic.errors import MedicError, first_line
from medic.methods import BUILT_IN, METHOD_GROUP, METHODS, Method
from medic.models import HEADS, LAYERS, OURS, _torchvision
from medic.objectives import OBJECTIVES, PENALTIES
from medic.openset import RULES, SCORES, Score
from medic.tasks import SAMPLERS
from medic.training import AVERAGES
from medic.utils import distributed
from medic.utils.code import describe, outside
from medic.utils.plugins import Plugin, absolute, check_files, is_module, loaded_packages, module_hash

logger = logging.getLogger(__name__)

_REGISTRIES: Mapping[str, MutableMapping[str, Any]] = {
    "method": METHODS,
    "dataset": BENCHMARKS,
    "score": SCORES,
    "threshold rule": RULES,
    "penalty": PENALTIES,
    "objective": OBJECTIVES,
    "head": HEADS,
    "layer": LAYERS,
    "backbone": OURS,
    "sampler": SAMPLERS,
    "average": AVERAGES,
}
"""Registries that a plug-in may extend, keyed by the noun for an entry."""
_SETTINGS: Mapping[str, str] = {
    **{kind: kind for kind in _REGISTRIES},
    "threshold rule": "threshold",
    "sampler": "sampling",
    "average": "averaging",
}
"""The setting that names an entry of each registry."""
_KINDS: Mapping[str, type] = {"method": Method, "dataset": Benchmark, "score": Score}
"""Entry classes with a `name` attribute, which must equal the entry's key in the registry."""

LOCAL = "this process"
"""Name of code that the user's process has defined without `--import`."""


# The user's code may have extended a registry before this module was imported.
_BUILT_IN = frozenset(
    (kind, entry)
    for kind, registry in _REGISTRIES.items()
    for entry, value in registry.items()
    if (entry in BUILT_IN if kind == "method" else not outside(value))
)
"""Entries defined by this package."""
_local: dict[tuple[str, str], tuple[Any, str]] = {}
"""Latest definition of each entry that exists in this process only, with its hash, by registry and entry name."""
_executed: dict[str, str] = {}
"""Hash of the most recently executed code, keyed by absolute path or module name."""
_owners: dict[tuple[str, str], str] = {}
"""The path or module that added each entry, keyed by registry and entry name."""


def execute(names: str | Iterable[str]) -> list[Plugin]:
    """Execute files and modules, and return them with their hashes. A file runs again only if it has changed."""
    check_files(names)
    if names:
        _torchvision.ensure()  # before user code imports timm
    return [_execute_module(name) if is_module(name) else _execute_file(name) for name in absolute(names)]


def executed() -> dict[str, str]:
    """Return the hashes of all code executed in this process, by absolute path or module name."""
    return dict(_executed)


def file_module(path: str) -> ModuleType | None:
    """Return the module created for an executed file, or None if `path` is a module name."""
    return sys.modules.get(f"medic_import_{_executed[path][:16]}")


def is_local(kind: str, entry: str) -> bool:
    """Return whether an entry exists in this process only, because no import or installed package defines it."""
    if entry not in _REGISTRIES[kind] or (kind, entry) in _BUILT_IN or (kind, entry) in _owners:
        return False
    if kind == "method" and entry in METHOD_GROUP.sources:
        return False
    packages = outside(_REGISTRIES[kind][entry])
    return not packages or not packages <= loaded_packages


def local_entries(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries that the settings name and that exist in this process only, as (registry, entry) pairs."""
    named = ((kind, settings.get(setting)) for kind, setting in _SETTINGS.items())
    return [(kind, entry) for kind, entry in named if isinstance(entry, str) and is_local(kind, entry)]


def local_code(entries: Iterable[tuple[str, str]]) -> Iterator[Plugin]:
    """Yield the code behind entries that exist in this process only, with its hash.

    An entry that only combines existing parts has a hash of its values. For other code, each definition has a random
    hash: what a class does can depend on other files, arguments and variables, so a run is never taken for another.
    """
    for kind, entry in entries:
        value = _REGISTRIES[kind][entry]
        if kind == "dataset":  # its images have a hash of their own
            continue
        if not outside(value):
            yield Plugin(f"{kind} {entry}", hashlib.sha256(describe(value).encode()).hexdigest())
            continue
        if _local.get((kind, entry), (None,))[0] is not value:
            _local[kind, entry] = value, distributed.from_first(uuid.uuid4().hex)
        yield Plugin(LOCAL, _local[kind, entry][1])


def _execute_file(name: str) -> Plugin:
    try:
        source = Path(name).read_bytes()
    except OSError as error:
        raise MedicError(f"--import {name} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(source).hexdigest()
    if digest not in _executed.values():  # the same code may have been executed from another path
        module = ModuleType(f"medic_import_{digest[:16]}")
        module.__file__ = name
        sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
        linecache.checkcache(name)
        try:
            with _registering(name):
                # Compile the hashed bytes: the file may change in the meantime.
                exec(compile(source, name, "exec"), module.__dict__)
                _add_methods(module)
        except BaseException:
            del sys.modules[module.__name__]
            raise
        logger.info("executed %s (sha256 %s…)", name, digest[:12])
    _executed[name] = digest
    return Plugin(name, digest)


def _execute_module(name: str) -> Plugin:
    if name not in _executed:
        if Path(f"{name}.py").is_file() and importlib.util.find_spec(name.partition(".")[0]) is None:
            raise MedicError(f"--import {name}: module not found; to execute the file, pass {name}.py")
        with _registering(name):
            _add_methods(importlib.import_module(name))
        _executed[name] = module_hash(name)
        logger.info("executed module %s", name)
    return Plugin(name, _executed[name])


def _add_methods(module: ModuleType) -> None:
    """Register the methods that a module lists in `METHODS`, as the modules in `medic/systems` do."""
    listed = vars(module).get("METHODS")
    for method in listed if isinstance(listed, tuple | list) else ():
        METHODS[method.name] = method


@contextmanager
def _registering(name: str) -> Iterator[None]:
    """Record what the enclosed code registers. Undo this if the code fails or replaces an entry it does not own."""
    before = {kind: dict(registry) for kind, registry in _REGISTRIES.items()}
    try:
        try:
            yield
        except (Exception, SystemExit) as error:
            if isinstance(error, MedicError):
                raise MedicError(f"--import {name}: {error}") from error
            raise MedicError(f"--import {name}{_line(error, name)}: {_reason(error)}") from error
        for kind, registry in _REGISTRIES.items():
            for entry, value in registry.items():
                if before[kind].get(entry) is not value:
                    _check(name, kind, entry, value, entry in before[kind])
    except BaseException:
        for kind, registry in _REGISTRIES.items():
            registry.clear()
            registry.update(before[kind])
        raise
    for kind, registry in _REGISTRIES.items():
        _owners.update(dict.fromkeys(((kind, one) for one in registry.keys() - before[kind].keys()), name))


def _check(name: str, kind: str, entry: str, value: Any, replaced: bool) -> None:
    """Raise an error for an entry of the wrong type or name, or one that replaces an entry from other code."""
    wanted = _KINDS.get(kind)
    if wanted is not None and not isinstance(value, wanted):
        raise MedicError(f"--import {name}: {kind} {entry!r} must be a {wanted.__name__}, got {type(value).__name__}")
    if wanted is not None and value.name != entry:
        raise MedicError(f"--import {name}: {kind} registered as {entry!r} must have that name, got {value.name!r}")
    if replaced and (owner := _owners.get((kind, entry))) != name:
        unowned = "is built in" if (kind, entry) in _BUILT_IN else "already exists"
        of = unowned if owner is None else f"is defined in {owner}"
        raise MedicError(f"--import {name} redefines {kind} {entry!r}, which {of}: choose another name")


def _line(error: BaseException, name: str) -> str:
    """Return the file's last line number in an error's traceback, as `, line N`."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.filename == name else ""
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f", line {line}"


def _reason(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else first_line(error)
    return f"{type(error).__name__}: {text}"
