"""Options of a run: one per field of its configuration, and the spellings that other codebases use."""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from medic.experiments.config import RunConfig

ALIASES = {
    "--target-domains": "--target",
    "--source-domains": "--sources",
    "--known-classes": "--known",
    "--algorithm": "--method",
    "--output-dir": "--output",
    "--holdout-fraction": "--holdout",
}
"""Spellings of other codebases. Underscores are taken for hyphens too."""


def canonical(arguments: Sequence[str]) -> list[str]:
    """The same arguments with every option in our spelling."""

    def spelled(argument: str) -> str:
        if not argument.startswith("--"):
            return argument
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-")
        return ALIASES.get(name, name) + equals + value

    return [spelled(argument) for argument in arguments]


def add_run_options(parser: ArgumentParser) -> None:
    """Add `--config FILE` and an option for every setting of a run."""
    parser.add_argument("--config", action="config", metavar="FILE", help="YAML file with any of these options")
    types = get_type_hints(RunConfig)
    for field in dataclasses.fields(RunConfig):
        settings: dict[str, Any] = {"default": field.default, "metavar": _metavar(field.name)}
        if types[field.name] is bool:
            settings = {"action": "store_true"}
        elif types[field.name] == list[str] | None:
            settings |= {"type": str, "nargs": "+"}
        else:  # steps may be a list in a file; as an option it is a number or a string, which are told apart later
            settings |= {"type": Any if field.name == "steps" else types[field.name]}
        parser.add_argument(f"--{field.name.replace('_', '-')}", help=_help(field), **settings)
    aliases = ", ".join(ALIASES)
    parser.epilog = f"Also understood: {aliases}, and underscores for hyphens."


def _metavar(name: str) -> str:
    return {"steps": "M,M,…", "output": "DIR", "weights": "FILE"}.get(name, name.rsplit("_", 1)[-1].upper())


def _help(field: "dataclasses.Field[Any]") -> str:
    text: str = field.metadata["help"]
    return text if field.default is None or field.default is False else f"{text} [{field.default}]"


def run_config(arguments: Namespace) -> RunConfig:
    """The configuration that the options give."""
    return RunConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(RunConfig)})
