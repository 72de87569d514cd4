"""Options of a run: one per setting, and the spellings that other codebases use."""

import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml

from medic.cli.catalogue import check_names, check_paths
from medic.config.fields import Setting
from medic.config.files import RepeatedKey, load_yaml, read_settings
from medic.config.settings import ALIASES, GROUPS, SETTINGS, check_settings, known_setting, setting_name
from medic.errors import MedicError
from medic.runs.layout import config_file, user_settings_file
from medic.utils.files import check_writable
from medic.utils.parts import ANY, COUNT, NONNEGATIVE, Limits
from medic.utils.plugins import check_files

SPELLINGS = tuple(f"--{alias.replace('_', '-')}" for alias in ALIASES)
"""Options of other codebases. Underscores are taken for hyphens too."""
DRY = ("dry_run", "print_config")
"""Options with which a command writes no run."""
TITLES = {"model": "network", "optim": "optimisation"}
"""Titles of groups of settings, where they differ from the names of the groups."""


def option_of(name: str) -> str:
    """Return the option of a setting. In Python `import` is no name, so the setting is called `imports`."""
    return "--import" if name == "imports" else f"--{name.replace('_', '-')}"


def canonical(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with every option in our spelling, and values like -90% joined to their option."""

    def spelled(argument: str) -> str:
        if not argument.startswith("--"):
            return argument
        name, equals, value = argument.partition("=")
        return option_of(setting_name(name[2:])) + equals + value

    result: list[str] = []
    for argument in map(spelled, arguments):
        if re.match(r"-\d", argument) and result:  # a parser would take it for an option
            result[-1] += f"={argument}" if re.fullmatch(r"--[a-z-]+", result[-1]) else f",{argument}"
        else:
            result.append(argument)
    return result


def number(kind: type[int] | type[float], limits: Limits = ANY) -> Callable[[str], Any]:
    """Return the reader of an option that takes a number: the parser checks its limits, before torch is imported."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not limits.allow(value):
            raise ArgumentTypeError(f"{text}: give {limits.wanted(kind is int)}")
        return value

    return read


count, index = number(int, COUNT), number(int, NONNEGATIVE)


def input_file(text: str) -> Path:
    """Read an option that names a file to read."""
    path = Path(text)
    if not path.exists():
        raise ArgumentTypeError(f"{text} does not exist: check the path")
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder: give a file")
    return path


def output_file(text: str) -> Path:
    """Read an option that names a file to write, in a folder that exists."""
    return _written(text, folder=False)


def output_folder(text: str) -> Path:
    """Read an option that names a folder to write to, which is created."""
    return _written(text, folder=True)


def _written(text: str, folder: bool) -> Path:
    try:
        check_writable("", Path(text), folder)
    except ValueError as error:  # a MedicError, or a NUL in the path
        raise ArgumentTypeError(str(error).strip()) from error
    return Path(text)


def add_run_options(parser: ArgumentParser, **defaults: str) -> None:
    """Add `--config FILE` and an option for every setting of a run; `defaults` are those of the command alone."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the settings below")
    groups = {name: parser.add_argument_group(TITLES.get(name, name)) for name in GROUPS}
    for name, declared in SETTINGS.items():
        if declared.hint is bool:
            options: dict[str, Any] = {"action": "store_true"}
        elif list[str] in declared.kinds:  # given as `a b c` or `a,b,c`, or one by one
            options = {"nargs": "*", "action": "extend", "metavar": declared.takes}
        else:
            options = {"type": _reader(declared), "metavar": declared.takes, "choices": declared.choices or None}
        default = defaults.get(name, declared.default_text)
        about = declared.help + (f" (default: {default})" if default else "")
        # Suppressed, so that only options that are given are set.
        groups[declared.group].add_argument(option_of(name), dest=name, help=about, default=SUPPRESS, **options)
    parser.epilog = f"Also understood: {', '.join(SPELLINGS)}, and underscores for hyphens."


def add_import_option(
    parser: ArgumentParser, about: str = "Python file or module that the run was trained with, to execute first"
) -> None:
    """Add `--import` to a command that is not about a new run."""
    parser.add_argument(
        "--import",
        dest="imports",
        type=_imported,
        action="append",
        default=[],
        metavar="FILE|MODULE",
        help=f"{about} (may be repeated)",
    )


def _imported(text: str) -> str:
    try:
        check_files(text)
    except MedicError as error:
        raise ArgumentTypeError(str(error).removeprefix("--import ")) from error
    return text


def add_format_option(parser: ArgumentParser, formats: Iterable[str]) -> None:
    """Add `--format`, by default the first of the formats."""
    first, *others = formats
    parser.add_argument(
        "--format",
        default=first,
        choices=(first, *others),
        metavar="NAME",
        help=f"{', '.join((first, *others[:-1]))} or {others[-1]} (default: {first})",
    )


def add_device_option(parser: ArgumentParser, about: str = "", default: str | None = None) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        default=default,
        choices=SETTINGS["device"].choices,
        metavar="NAME",
        help=f"{about}auto, cpu or cuda (default: auto)",
    )


def add_force_option(parser: ArgumentParser) -> None:
    """Add `--force`, for a command that refuses a model that learned nothing."""
    parser.add_argument("--force", action="store_true", help="accept a model that learned nothing in training")


def _reader(declared: Setting) -> Callable[[str], Any]:
    """Return the function that reads the text of an option; `null` stands for the default, as in a file."""
    kind = declared.kinds[0]

    def read(text: str) -> Any:
        if text == "null":
            return None
        if any(get_origin(other) for other in declared.kinds):  # a list or a mapping, or 3,3,3 or hospital=2,year=3
            return _from_yaml(text)
        return number(kind, declared.limits or ANY)(text) if kind in (int, float) else kind(text)

    return read


def _from_yaml(text: str) -> Any:
    try:
        value = load_yaml(text)
    except RepeatedKey as error:
        raise ArgumentTypeError(f"{text}: {error.problem}") from error
    except yaml.YAMLError:
        return text
    return text if value is None else value


def user_settings(arguments: Namespace, dataset: str | None = SETTINGS["dataset"].default) -> dict[str, Any]:
    """Return the settings that were given by options, over those of a file.

    Their names are checked. `dataset` is the default one; None if the command supplies a dataset of its own.
    """
    settings = {name: value for name, value in vars(arguments).items() if name in SETTINGS}
    settings = settings if arguments.config is None else _over_file(settings, arguments)
    check_settings(settings)
    sweep_file, dry = getattr(arguments, "file", None), any(vars(arguments).get(name) for name in DRY)
    default = {} if sweep_file else {"output": SETTINGS["output"].default}
    check_paths({**default, **settings, **({"output": None} if dry else {})})
    if sweep_file is None:  # otherwise a file of settings may import what they name
        spanned = [part.partition("=")[0] for part in getattr(arguments, "span", None) or ()]
        check_names({**dict.fromkeys(spanned), **settings}, None if settings.get("extend") else dataset)
    return settings


def _over_file(settings: dict[str, Any], arguments: Namespace) -> dict[str, Any]:
    """Return the given settings over those of the file."""
    file_settings = _from_file(Path(arguments.config))
    changed = [name for name in settings if not SETTINGS[name].local]
    if changed and file_settings.keys() == SETTINGS.keys():
        raise MedicError(
            f"--config {arguments.config} fixes derived settings too, which may contradict --{changed[0]}: delete the "
            "lines that should follow from others, or give the configuration of a run, which has the settings "
            "as you wrote them beside it"
        )
    path = Path(arguments.config)
    if changed and path.name == config_file(path.parent):
        file_settings.pop("name", None)  # it is the name of the run that this is the configuration of
    return {**{name: value for name, value in file_settings.items() if value is not None}, **settings}


def _from_file(path: Path) -> dict[str, Any]:
    """Return the settings of a file, in our spelling.

    The configuration of a run is complete; the settings as the user wrote them are beside it, and are used instead, so
    that settings derived from them follow the command line.
    """
    written = path.parent / user_settings_file(path.parent)
    source = written if path.name == config_file(path.parent) and written.exists() else path
    return {known_setting(setting_name(key), f"in {source}"): value for key, value in read_settings(source).items()}
