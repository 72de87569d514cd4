"""Sweep files: YAML with settings, `span` and `variants`, and the line of each value for error messages."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from medic.errors import MedicError, check_choice
from medic.runs.config import Loader, setting_name, unreadable

RANGE = re.compile(r"(\d+)\.\.(\d+)")
"""Several whole numbers, written as 0..2."""
Places = Mapping[tuple[str, str], str]
"""The place in a file of each setting's value, by the setting's name and the `repr` of the value."""


class SweepFile(NamedTuple):
    """Contents of a file: settings of every run, values to combine, variants to combine them with, and their lines."""

    settings: dict[str, Any]
    span: dict[str, list[Any]]
    variants: list[dict[str, Any]]
    places: Places


class _Loader(Loader):
    """Refuses repeated keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if (name := setting_name(str(key.value))) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_sweep(path: Path, names: Sequence[str]) -> SweepFile:
    """Read a file that may give the settings `names`, directly and in `span` and `variants`."""
    try:
        loader = _Loader(path.read_text())
        tree = loader.get_single_node()
        values = None if tree is None else loader.construct_document(tree)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise unreadable("sweep", path, error) from error
    if tree is None or not isinstance(values, dict):
        raise MedicError(f"sweep {path} does not hold settings: write one `name: value` per line")
    return _Reader(path, dict(_lines(tree)), names).read(values)


class _Reader:
    """Checks the values of a file, and names the line of each mistake."""

    def __init__(self, path: Path, lines: Mapping[tuple[Any, ...], int], names: Sequence[str]) -> None:
        self._path, self._lines, self._names = path, lines, names
        self._places: dict[tuple[str, str], str] = {}

    def read(self, values: dict[str, Any]) -> SweepFile:
        parts = {name: values.pop(name, None) for name in ("span", "variants")}
        settings = self._settings(values)
        span = {name: self._span(name, value) for name, value in self._named(parts["span"] or {}, "span")}
        variants = parts["variants"] or []
        if not isinstance(variants, list):
            raise MedicError(
                f"{self._place('variants')}: variants are a list: write `- {{method: erm, lr: 0.1}}` per line"
            )
        for name in settings.keys() & span.keys():
            raise MedicError(f"{self._place('span', name)}: {name} is in the span and beside it: leave one out")
        found = [self._settings(variant, "variants", index) for index, variant in enumerate(variants)]
        if any("output" in part for part in (span, *found)):
            raise MedicError(f"sweep {self._path}: all runs have one output: give it once, beside span and variants")
        return SweepFile(settings, span, found, self._places)

    def _settings(self, values: Any, *where: Any) -> dict[str, Any]:
        settings = dict(self._named(values, *where))
        for name, value in settings.items():
            self._note(name, value, *where, name)
            if isinstance(value, str) and RANGE.fullmatch(value):
                place = self._place(*where, name)
                raise MedicError(f"{place}: {name} is {value!r}: give several values of a setting under `span`")
        return settings

    def _span(self, name: str, value: Any) -> list[Any]:
        if value in (None, []):
            raise MedicError(f"{self._place('span', name)}: {name} has no values: give some, as in [0, 1]")
        if not isinstance(value, list):
            self._note(name, value, "span", name)
            return [value]
        for index, each in enumerate(value):
            self._note(name, each, "span", name, index)
        return value

    def _named(self, values: Any, *where: Any) -> Iterator[tuple[str, Any]]:
        """Yield settings by their canonical names."""
        if not isinstance(values, dict):
            raise MedicError(f"{self._place(*where)}: give settings, as in `name: value`")
        for key, value in values.items():
            name = setting_name(str(key))
            yield check_choice("setting", name, self._names, f"in {self._place(*where, name)}"), value

    def _note(self, name: str, value: Any, *where: Any) -> None:
        self._places[name, repr(value)] = self._place(*where)

    def _place(self, *where: Any) -> str:
        return f"sweep {self._path}, line {self._lines[where]}"


def _lines(node: yaml.Node, where: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the line of every key and list element, by the keys and indices that lead to it."""
    children: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(setting_name(str(key.value)), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    for name, start, value in children:
        yield (*where, name), start.start_mark.line + 1
        yield from _lines(value, (*where, name))


def located(error: MedicError, given: Mapping[str, Any], places: Places) -> MedicError:
    """Return the error with the place of the setting it is about: one that it names, or whose value it quotes."""
    message = str(error)
    words = re.findall(r"\w+", message.replace("-", "_"))
    ranked = []
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        named = name in words
        quoted = any(isinstance(each, str) and repr(each) in message for each in values)
        rank = 3 if named and any(str(each) in message for each in values) else 2 if quoted else 1 if named else 0
        near = [place for (other, _), place in places.items() if other == name]
        place = places.get((name, repr(value)), near[0] if near else None)
        if rank and place:
            ranked.append((rank, -words.index(name) if named else -len(words), place))
    return MedicError(f"{max(ranked)[2]}: {error}") if ranked else error
