"""The YAML file of a sweep: what it asks for, and on which line."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml

from medic.errors import MedicError, check_choice
from medic.runs.config import Loader, RunConfig, setting_name, unreadable

SETTINGS = tuple(field.name for field in dataclasses.fields(RunConfig))
COUNTED = tuple(name for name, kind in get_type_hints(RunConfig).items() if kind in (int, int | None))
"""Settings that are a whole number."""
_PARTS = ("span", "variants")


class At(NamedTuple):
    """A value, and where in a file it stands."""

    value: Any
    place: str


class Parts(NamedTuple):
    """What a file holds: settings of every run, values to combine, and variants to combine them with."""

    settings: dict[str, At]
    span: dict[str, list[At]]
    variants: list[dict[str, At]]


def read_parts(path: Path) -> Parts:
    """Read a file: settings as `medic train` has them, and beside them `span` and `variants`."""
    tree = _compose(path)
    _check_keys(path, tree)
    entries = dict(_entries(path, tree, (*_PARTS, *SETTINGS)))
    span, variants = (entries.pop(part, None) for part in _PARTS)
    parts = Parts(
        {name: _at(path, node) for name, node in entries.items()},
        {} if span is None else {name: _values(path, name, node) for name, node in _entries(path, span)},
        [] if variants is None else list(_variants(path, variants)),
    )
    for given in (parts.settings, *parts.variants):
        for name, (value, place) in given.items():
            if name in COUNTED and (isinstance(value, list) or ".." in str(value)):
                raise MedicError(f"{place}: {name} is {value!r}: several values of a setting go under `span`")
    for name, values in parts.span.items():
        if name in entries:
            raise MedicError(
                f"{values[0].place}: {name} is spanned, and has one value beside the span: leave one of them out"
            )
    if "output" in parts.span or any("output" in variant for variant in parts.variants):
        raise MedicError(f"sweep {path}: output is where all runs go: give it once, beside span and variants")
    return parts


def located(error: MedicError, given: Mapping[str, Any]) -> MedicError:
    """An error with the line of the setting that it is about, if that stands in a file.

    That is one that it names, with its value if there is such a one, or else one whose value it quotes.
    """
    message = str(error)
    found = []
    for name, at in given.items():
        if isinstance(at, At):
            named = re.search(rf"\b{name}\b", re.sub(r"(?<=\w)-(?=\w)", "_", message))
            values = [str(value) for value in (at.value if isinstance(at.value, list) else [at.value])]
            if named:
                found.append((not any(value in message for value in values), named.start(), at.place))
            elif any(repr(value) in message for value in values):
                found.append((True, len(message), at.place))
    return MedicError(f"{min(found)[2]}: {error}") if found else error


def _compose(path: Path) -> yaml.MappingNode:
    try:
        tree = yaml.compose(path.read_text(), Loader=Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise unreadable("sweep", path, error) from error
    if not isinstance(tree, yaml.MappingNode):
        raise MedicError(f"sweep {path} does not hold settings, a line `name: value` for each")
    return tree


def _check_keys(path: Path, tree: yaml.Node) -> None:
    """Refuse a key that is given twice, of which YAML would keep the last."""
    nodes, seen = [tree], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names = [setting_name(str(key.value)) for key, _ in node.value]
            for index, name in enumerate(names):
                if name in names[:index]:
                    raise MedicError(f"{_place(path, node.value[index][0])}: {name} is given twice")
        nodes += [child for part in node.value for child in (part if isinstance(part, tuple) else (part,))]


def _entries(path: Path, node: yaml.Node, choices: Sequence[str] = SETTINGS) -> Iterator[tuple[str, yaml.Node]]:
    """The names of settings, in our spelling, and what stands behind each."""
    if not isinstance(node, yaml.MappingNode):
        raise MedicError(f"{_place(path, node)}: expected settings, a line `name: value` for each")
    for key, value in node.value:
        yield check_choice("setting", setting_name(str(key.value)), choices, f"in {_place(path, key)}"), value


def _values(path: Path, name: str, node: yaml.Node) -> list[At]:
    """The values that a setting is spanned by: a list, or one that stands for several."""
    values = [_at(path, part) for part in node.value] if isinstance(node, yaml.SequenceNode) else [_at(path, node)]
    if not values or (not isinstance(node, yaml.SequenceNode) and values[0].value is None):
        raise MedicError(f"{_place(path, node)}: {name} is spanned by no value: give some, as in [0, 1]")
    return values


def _variants(path: Path, node: yaml.Node) -> Iterator[dict[str, At]]:
    if not isinstance(node, yaml.SequenceNode):
        raise MedicError(f"{_place(path, node)}: variants are a list, a line `- {{method: erm, lr: 0.1}}` for each")
    for part in node.value:
        yield {name: _at(path, value) for name, value in _entries(path, part)}


def _place(path: Path, node: yaml.Node) -> str:
    return f"sweep {path}, line {node.start_mark.line + 1}"


def _at(path: Path, node: yaml.Node) -> At:
    """The value of a node."""
    loader = Loader("")
    try:
        return At(loader.construct_object(node, deep=True), _place(path, node))
    except (yaml.YAMLError, ValueError) as error:
        reason = getattr(error, "problem", None) or str(error)
        raise MedicError(f"{_place(path, node)}: {reason}") from error
    finally:
        loader.dispose()
