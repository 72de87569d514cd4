"""Options of a run: one per field of its configuration, with the spellings that other codebases use."""

import dataclasses
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from medic.experiments.config import RunConfig

ALIASES = {
    "target": ["--target-domains"],
    "sources": ["--source-domains"],
    "known": ["--known-classes"],
    "method": ["--algorithm"],
    "output": ["--output-dir"],
    "holdout": ["--holdout-fraction"],
}
LISTS = ("sources", "known")


def add_run_options(parser: ArgumentParser) -> None:
    """Add `--config FILE` and an option for every setting of a run."""
    parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    types = get_type_hints(RunConfig)
    for field in dataclasses.fields(RunConfig):
        spellings = [f"--{field.name.replace('_', '-')}", *ALIASES.get(field.name, [])]
        spellings += [f"--{name[2:].replace('-', '_')}" for name in spellings if "-" in name[2:]]
        settings: dict[str, Any] = {"default": field.default, "help": field.metadata["help"]}
        if field.name in LISTS:
            parser.add_argument(*spellings, type=str, nargs="+", **settings)
        elif field.type == "bool" or types[field.name] is bool:
            parser.add_argument(*spellings, action="store_true", help=settings["help"])
        else:
            parser.add_argument(*spellings, type=types[field.name], metavar=_metavar(field.name), **settings)


def _metavar(name: str) -> str:
    return {"steps": "M,M,…", "output": "DIR", "weights": "FILE"}.get(name, name.rsplit("_", 1)[-1].upper())


def run_config(arguments: Namespace) -> RunConfig:
    """The configuration that the options give."""
    return RunConfig(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(RunConfig)})
