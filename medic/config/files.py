"""Settings files: YAML written by users, and JSON written by runs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from medic.config.settings import SETTINGS, setting_name
from medic.errors import MedicError, first_line


class RepeatedKey(yaml.constructor.ConstructorError):
    """A key that occurs twice in a YAML mapping."""


class Loader(yaml.SafeLoader):
    """A safe loader that reads 1e-3 as a number and rejects repeated keys, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping. Two spellings of a setting are treated as the same key."""
        seen: set[str] = set()
        for key, _ in node.value:
            written = str(key.value)
            name = known if (known := setting_name(written)) in SETTINGS else written
            if name in seen:
                raise RepeatedKey(None, None, f"duplicate key {name}: remove one of them", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """A safe dumper that quotes strings the loader would read as numbers, such as the name 31e4."""


for kind in (Loader, Dumper):
    kind.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+"), list("-+0123456789"))


def load_yaml(text: str) -> Any:
    """Parse a YAML string. Every problem with the text raises a `YAMLError`."""
    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except (ValueError, RecursionError) as error:  # for example the 31st of April, or thousands of brackets
        raise yaml.YAMLError(first_line(error)) from error


def load_file(what: str, path: Path) -> Any:
    """Parse a YAML or JSON file."""
    try:
        return _parse(path.read_bytes(), path)
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise _unreadable(what, path, error) from error


def read_settings(path: Path) -> dict[str, Any]:
    """Read settings from a YAML file, or from the JSON file of a run."""
    return _check_names(load_file("configuration", path), path)


def parse_settings(content: bytes, path: Path) -> dict[str, Any]:
    """Parse settings from the content of a file."""
    return _check_names(_parse(content, path), path)


def _parse(content: bytes, path: Path) -> Any:
    return json.loads(content) if path.suffix == ".json" else load_yaml(content.decode())


def _check_names(values: Any, path: Path) -> dict[str, Any]:
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise MedicError(f"configuration {path} must contain settings, one `name: value` per line")
    return values


def to_json(settings: Mapping[str, Any]) -> str:
    """Format settings as JSON, one per line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in settings.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def to_yaml(settings: Mapping[str, Any]) -> str:
    """Format settings as YAML."""
    layout: dict[str, Any] = {"allow_unicode": True, "default_flow_style": None, "width": 120}
    return str(yaml.dump(dict(settings), Dumper=Dumper, sort_keys=False, **layout))


def _unreadable(what: str, path: Path, error: Exception) -> MedicError:
    """Return the error for a file that cannot be read or parsed, with the line and the reason."""
    if isinstance(error, FileNotFoundError):
        return MedicError(f"{what} {path} does not exist: check the path")
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return MedicError(f"{what} {path} cannot be read: {getattr(error, 'strerror', None) or first_line(error)}")
    begun = "" if error.context_mark is None else f", {error.context} that starts on line {error.context_mark.line + 1}"
    return MedicError(f"{what} {path}, line {mark.line + 1}: {error.problem}{begun}")
