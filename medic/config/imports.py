"""Files and modules that `--import` names: their code is executed, and may register methods and parts of its own.

This is the only place that executes code because a setting names it. `resolve` calls it for settings that users pass
to a command; settings that are read from a finished run come here only if the user names the code again.
"""

import hashlib
import importlib
import importlib.util
import linecache
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from medic.data import BENCHMARKS, Benchmark
from medic.errors import MedicError, first_line
from medic.methods import METHOD_GROUP, METHODS, Method
from medic.models import HEADS, LAYERS, OURS
from medic.objectives import OBJECTIVES, PENALTIES
from medic.openset import RULES, SCORES, Score
from medic.tasks import SAMPLERS
from medic.training import AVERAGES
from medic.utils.plugins import Plugin, absolute, check_files, is_module, module_hash

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
"""The registries that a plug-in may add to, by what an entry is called."""
_KINDS: Mapping[str, type] = {"method": Method, "dataset": Benchmark, "score": Score}
"""The classes of entries that have a name of their own, which must be that of the registry."""

_BUILT_IN = frozenset((kind, entry) for kind, registry in _REGISTRIES.items() for entry in registry)
"""The entries of this package."""
_executed: dict[str, str] = {}
"""The hash of the code that was executed last, by absolute path or by module."""
_owners: dict[tuple[str, str], str] = {}
"""The path or module that has added an entry, by the registry and the entry's name."""


def execute(names: str | Iterable[str]) -> list[Plugin]:
    """Execute files and modules, each once unless it has changed, and return what was executed."""
    check_files(names)
    return [_execute_module(name) if is_module(name) else _execute_file(name) for name in absolute(names)]


def executed() -> dict[str, str]:
    """Return the hashes of the code that was executed in this process, by absolute path or by module."""
    return dict(_executed)


def file_module(path: str) -> ModuleType | None:
    """Return the module that a file was executed as, or None for the name of a module."""
    return sys.modules.get(f"medic_import_{_executed[path][:16]}")


def is_local(kind: str, entry: str) -> bool:
    """Whether an entry of a registry was added by code of this process alone, so that another process lacks it."""
    installed = entry in METHOD_GROUP.sources if kind == "method" else False
    known = (kind, entry) in _BUILT_IN or (kind, entry) in _owners or installed
    return entry in _REGISTRIES[kind] and not known


def _execute_file(name: str) -> Plugin:
    try:
        source = Path(name).read_bytes()
    except OSError as error:
        raise MedicError(f"--import {name} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(source).hexdigest()
    if digest not in _executed.values():  # it may be the same code at another place
        module = ModuleType(f"medic_import_{digest[:16]}")
        module.__file__ = name
        sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
        linecache.checkcache(name)
        try:
            with _registering(name):
                # Compiled from the bytes that were hashed, whatever happens to the file meanwhile.
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
            raise MedicError(f"--import {name}: there is no such module, but a file: give {name}.py")
        with _registering(name):
            _add_methods(importlib.import_module(name))
        _executed[name] = module_hash(name)
        logger.info("executed module %s", name)
    return Plugin(name, _executed[name])


def _add_methods(module: ModuleType) -> None:
    """Register the methods in a tuple `METHODS` of a module, which is how the files of `medic/systems` list theirs."""
    listed = vars(module).get("METHODS")
    for method in listed if isinstance(listed, tuple | list) else ():
        METHODS[method.name] = method


@contextmanager
def _registering(name: str) -> Iterator[None]:
    """Note what the code inside registers; undo it if the code fails or replaces an entry that is not its own."""
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
    """Refuse an entry of another type or name, or one that replaces an entry of somebody else."""
    wanted = _KINDS.get(kind)
    if wanted is not None and not isinstance(value, wanted):
        raise MedicError(f"--import {name}: {kind} {entry!r} is a {type(value).__name__}: give a {wanted.__name__}")
    if wanted is not None and value.name != entry:
        raise MedicError(f"--import {name}: {kind} {entry!r} is called {value.name!r}: give it one name")
    if replaced and (owner := _owners.get((kind, entry))) != name:
        unowned = "is built in" if (kind, entry) in _BUILT_IN else "exists already"
        of = unowned if owner is None else f"is defined in {owner}"
        raise MedicError(f"--import {name} defines the {kind} {entry!r}, which {of}: give it another name")


def _line(error: BaseException, name: str) -> str:
    """Return the last line of the file that an error came through."""
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
