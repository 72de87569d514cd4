"""Networks and datasets of one's own: functions that make them, `module:function`, and objects that exist already.

A function that can be imported is recorded by name and by the hash of its module, so that a run resumes in another
process. An object, or a function that only this process knows, is called `live:NAME-HASH`: such a run cannot resume.
As with `medic.config.imports`, code is executed only if the user names it, never because a finished run does.
"""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from medic.config.imports import executed
from medic.data import BENCHMARKS, LazyDataset
from medic.data.collection import Collection, make_benchmark, make_collection
from medic.errors import MedicError, first_line
from medic.models import OURS
from medic.models.own import copied, register_network
from medic.utils.plugins import Plugin, is_module, module_hash

LIVE = "live"
KINDS = ("backbone", "dataset")
"""The settings that may name a source."""
_live: dict[str, Plugin] = {}
"""The objects of this process, by name."""


def is_source(name: Any) -> bool:
    """Whether the value of a setting names a source, `module:function` or `live:NAME`."""
    module, colon, rest = str(name).partition(":")
    return bool(colon) and is_module(module) and rest.replace("-", "").isidentifier()


def is_live(name: Any) -> bool:
    """Whether the value of a setting names an object that only one process has."""
    return is_source(name) and str(name).startswith(f"{LIVE}:")


def name_source(kind: str, source: Any) -> str:
    """Return the name of a function or an object, and register it as a backbone or a dataset."""
    title = type(source).__name__
    if _is_function(source):
        if name := _importable(source):
            _register(kind, name, source)
            return name
        title, source = getattr(source, "__name__", title), source()
    if kind == "dataset":
        source = make_collection(title, source)
    digest = _hash_network(source) if kind == "backbone" else _hash_dataset(source)
    name = f"{LIVE}:{title if title.isidentifier() else 'object'}-{digest[:8]}"
    _live[name] = Plugin(name, digest)
    _register(kind, name, copied(source) if kind == "backbone" else lambda: source)
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
        else:
            module, _, function = str(name).partition(":")
            if not _registered(kind, str(name)):
                _register(kind, str(name), _import(kind, module, function))
            plugins.append(Plugin(module, module_hash(module)))
    return plugins


def check_sources(settings: Mapping[str, Any], where: str) -> None:
    """Raise an error if settings that the user did not write name a source that this process does not know."""
    for kind in KINDS:
        name = str(settings.get(kind))
        if not is_source(name) or _registered(kind, name):
            continue
        module, _, function = name.partition(":")
        if module in executed():  # the user has named it
            _register(kind, name, _import(kind, module, function))
            continue
        if is_live(name):
            way = "medic.load(PATH, model=…)" if kind == "backbone" else f"{kind}=…"
            raise MedicError(f"{where} has a {kind} that was an object of another process, {name!r}: give it, {way}")
        raise MedicError(
            f"{where} has the {kind} {name!r}, code that is executed only if you name it: add --import {module}"
        )


def register_model(name: str, source: Any) -> None:
    """Register a function or a network under the name that the file of a model has for it."""
    register_network(name, source if _is_function(source) else copied(source))


def _registered(kind: str, name: str) -> bool:
    return name in (OURS if kind == "backbone" else BENCHMARKS)


def _register(kind: str, name: str, make: Any) -> None:
    if kind == "backbone":
        register_network(name, make)
    else:
        BENCHMARKS[name] = make_benchmark(name, make())


def _import(kind: str, module: str, function: str) -> Any:
    try:
        made = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever the user's code does
        raise MedicError(f"{kind} {module}:{function} cannot be imported: {first_line(error)}") from error
    if not callable(made):
        raise MedicError(f"{kind} {module}:{function} is a {type(made).__name__}: give a function")
    return made


def _importable(function: Any) -> str | None:
    """Return `module:function` of a function that another process can import, or None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    if getattr(inspect.getmodule(function), name, None) is not function:
        return None
    return f"{module}:{name}"


def _is_function(source: Any) -> bool:
    """Whether a source is a function or a class that makes an object, and not the object."""
    return callable(source) and (isinstance(source, type) or not hasattr(source, "state_dict"))


def _hash_network(module: Any) -> str:
    """Return a hash of the structure and the weights of a network."""
    if not hasattr(module, "state_dict"):
        raise MedicError(
            f"the model is a {type(module).__name__}: give a torch.nn.Module, or a function that makes one"
        )
    digest = hashlib.sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _hash_dataset(dataset: LazyDataset) -> str:
    """Return a hash of the classes and domains of all images. The hash of a run also covers their pixels."""
    of_images = [dataset.labels, dataset.places] if isinstance(dataset, Collection) else []
    return hashlib.sha256(repr([dataset.classes, dataset.domains, *of_images]).encode()).hexdigest()
