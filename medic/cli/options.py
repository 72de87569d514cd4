"""Options of a run: one per field of its configuration, and the spellings that other codebases use."""

import dataclasses
import re
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from medic.errors import check_choice
from medic.runs.config import ALIASES, RunConfig, read_yaml, setting_name

SPELLINGS = tuple(f"--{alias.replace('_', '-')}" for alias in ALIASES)
"""Options of other codebases. Underscores are taken for hyphens too."""
LISTED = ("target", "sources", "known", "unknown", "partial")
"""Settings of several names, which an option has as `a b c` or `a,b,c`."""
_NAMES = [field.name for field in dataclasses.fields(RunConfig)]
_LOCAL = {field.name for field in dataclasses.fields(RunConfig) if field.metadata["local"]}
WRITTEN = ("steps", "axes", "augment", "hparams")
"""Settings that a file may have as a list or a mapping, and an option as 3,3,3 or hospital=2,year=3."""


def canonical(arguments: Sequence[str]) -> list[str]:
    """The same arguments with every option in our spelling, and values like -90% tied to theirs."""

    def spelled(argument: str) -> str:
        if not argument.startswith("--"):
            return argument
        name, equals, value = argument.partition("=")
        return "--" + setting_name(name[2:]).replace("_", "-") + equals + value

    result: list[str] = []
    for argument in map(spelled, arguments):
        if re.match(r"-\d", argument) and result:  # a parser would take it for an option
            result[-1] += f"={argument}" if re.fullmatch(r"--[a-z-]+", result[-1]) else f",{argument}"
        else:
            result.append(argument)
    return result


def add_run_options(parser: ArgumentParser) -> None:
    """Add `--config FILE` and an option for every setting of a run."""
    parser.add_argument("--config", type=str | None, default=None, metavar="FILE", help="YAML file with any of these")
    types = get_type_hints(RunConfig)
    for field in dataclasses.fields(RunConfig):
        settings: dict[str, Any] = {"default": SUPPRESS, "metavar": _metavar(field.name)}  # what is there was given
        if types[field.name] is bool:
            settings = {"action": "store_true", "default": SUPPRESS}
        elif field.name in LISTED:
            settings |= {"type": str, "nargs": "*"}
        elif field.name in WRITTEN:
            settings |= {"type": Any}
        else:
            settings |= {"type": types[field.name]}
        parser.add_argument(f"--{field.name.replace('_', '-')}", help=_help(field), **settings)
    parser.epilog = f"Also understood: {', '.join(SPELLINGS)}, and underscores for hyphens."


def _metavar(name: str) -> str:
    return {"steps": "M,M,…", "axes": "NAME=N,…", "hparams": "NAME=N,…", "output": "DIR", "weights": "FILE|NAME"}.get(
        name, name.rsplit("_", 1)[-1].upper()
    )


def _help(field: "dataclasses.Field[Any]") -> str:
    text: str = field.metadata["help"]
    return text if field.default is None or field.default is False else f"{text} [{field.default}]"


def run_config(arguments: Namespace) -> RunConfig:
    """The configuration that the options give, over that of a file, over the defaults."""
    return RunConfig(**given_settings(arguments))


def given_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings that were given, by options or in a file."""
    given = {name: value for name, value in vars(arguments).items() if name in _NAMES}
    return given if arguments.config is None else _from_file(Path(arguments.config), given)


def _from_file(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings in a file, in our spelling, and those that were given over them; an empty one has its default.

    In a complete file, as `--print-config` and runs write them, what follows from what is given otherwise is not kept.
    """
    written = {
        check_choice("setting", setting_name(key), _NAMES, f"in {path}"): value
        for key, value in read_yaml(path).items()
    }
    values = {name: value for name, value in written.items() if value is not None}
    if not given.keys() <= _LOCAL and written.keys() == set(_NAMES):
        from medic.runs.defaults import without_defaults

        values = without_defaults(values | {name: given[name] for name in given.keys() & _LOCAL})
    return values | given
