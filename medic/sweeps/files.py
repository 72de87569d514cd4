"""Sweep files: YAML with settings, `span` and `variants`, and the line of each value for error messages."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from medic.errors import MedicError, check_choice
from medic.runs.settings import SETTINGS, Loader, setting_name, unreadable
from medic.sweeps.sweep import RANGE, Sweep


class _Loader(Loader):
    """Refuses repeated keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if (name := setting_name(str(key.value))) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep from a YAML file."""
    try:
        loader = _Loader(path.read_text())
        tree = loader.get_single_node()
        values = None if tree is None else loader.construct_document(tree)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise unreadable("sweep", path, error) from error
    if tree is None or not isinstance(values, dict):
        raise MedicError(f"sweep {path} does not hold settings: write one `name: value` per line")
    return _Reader(path, dict(_lines(tree, tree))).read(values)


class _Reader:
    """Checks the values of a file, and names the line of each mistake."""

    def __init__(self, path: Path, lines: Mapping[tuple[Any, ...], int]) -> None:
        self._path, self._lines = path, lines
        self._places: dict[tuple[str, str], str] = {}

    def read(self, values: dict[str, Any]) -> Sweep:
        parts = {name: values.pop(name, None) for name in ("span", "variants")}
        settings = self._settings(values)
        span = {name: self._span(name, value) for name, value in self._named(parts["span"] or {}, "span")}
        variants = parts["variants"] or []
        if not isinstance(variants, list):
            place = self._place("variants")
            raise MedicError(f"{place}: variants are a list: write `- {{method: erm, lr: 0.1}}` per line")
        for name in settings.keys() & span.keys():
            raise MedicError(f"{self._place('span', name)}: {name} is in the span and beside it: leave one out")
        found = [self._settings(variant, "variants", index) for index, variant in enumerate(variants)]
        if any("output" in part for part in (span, *found)):
            raise MedicError(f"sweep {self._path}: all runs have one output: give it once, beside span and variants")
        return Sweep(settings, span, found, self._places)

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
            yield check_choice("setting", name, SETTINGS, f"in {self._place(*where, name)}"), value

    def _note(self, name: str, value: Any, *where: Any) -> None:
        self._places[name, repr(value)] = self._place(*where)

    def _place(self, *where: Any) -> str:
        while where not in self._lines:  # a key such as `yes`, which YAML reads as True
            where = where[:-1]
        return f"sweep {self._path}, line {self._lines[where]}"


def _lines(node: yaml.Node, start: yaml.Node, where: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the line of every key and list element, by the keys and indices that lead to it."""
    yield where, start.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, key, (*where, setting_name(str(key.value))))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, value, (*where, index))
