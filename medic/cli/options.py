"""Command-line options: one per setting of a run, aliases from other codebases, and shared options."""

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
"""Option names from other codebases. Underscores work in place of hyphens."""
DRY = ("dry_run", "print_config")
"""Options that prevent a command from writing a run."""
TITLES = {"model": "network", "optim": "optimisation"}
"""Titles of setting groups, where they differ from the group names."""


def option_of(name: str) -> str:
    """Return a setting's option. The setting for `--import` is `imports`, because `import` is a Python keyword."""
    return "--import" if name == "imports" else f"--{name.replace('_', '-')}"


def canonical(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with canonical option names, and values such as -90% joined to their option."""

    def spelled(argument: str) -> str:
        if not argument.startswith("--"):
            return argument
        name, equals, value = argument.partition("=")
        return option_of(setting_name(name[2:])) + equals + value

    result: list[str] = []
    for argument in map(spelled, arguments):
        if re.match(r"-\d", argument) and result:  # argparse would treat it as an option
            result[-1] += f"={argument}" if re.fullmatch(r"--[a-z-]+", result[-1]) else f",{argument}"
        else:
            result.append(argument)
    return result


def number(kind: type[int] | type[float], limits: Limits = ANY) -> Callable[[str], Any]:
    """Return a parser for a numeric option that checks the limits, before torch is imported."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not limits.allow(value):
            raise ArgumentTypeError(f"must be {limits.wanted(kind is int)}, got {text}")
        return value

    return read


count, index = number(int, COUNT), number(int, NONNEGATIVE)


def input_file(text: str) -> Path:
    """Parse an option that names an input file."""
    path = Path(text)
    if not path.exists():
        raise ArgumentTypeError(f"{text} does not exist: check the path")
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a folder: pass a file")
    return path


def output_file(text: str) -> Path:
    """Parse an option that names an output file in an existing folder."""
    return _written(text, folder=False)


def output_folder(text: str) -> Path:
    """Parse an option that names an output folder, which is created if needed."""
    return _written(text, folder=True)


def _written(text: str, folder: bool) -> Path:
    try:
        check_writable("", Path(text), folder)
    except ValueError as error:  # MedicError, or a NUL in the path
        raise ArgumentTypeError(str(error).strip()) from error
    return Path(text)


def add_run_options(parser: ArgumentParser, **defaults: str) -> None:
    """Add `--config` and an option for every setting of a run. `defaults` overrides the defaults shown in help."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of the settings below")
    groups = {name: parser.add_argument_group(TITLES.get(name, name)) for name in GROUPS}
    for name, declared in SETTINGS.items():
        if declared.hint is bool:
            options: dict[str, Any] = {"action": "store_true"}
        elif list[str] in declared.kinds:  # `a b c`, `a,b,c`, or a repeated option
            options = {"nargs": "*", "action": "extend", "metavar": declared.takes}
        else:
            options = {"type": _reader(declared), "metavar": declared.takes, "choices": declared.choices or None}
        default = defaults.get(name, declared.default_text)
        about = declared.help + (f" (default: {default})" if default else "")
        # Suppress defaults, so that the namespace contains only options that the user passed.
        groups[declared.group].add_argument(option_of(name), dest=name, help=about, default=SUPPRESS, **options)
    parser.epilog = (
        "The starting point, which determines some defaults, depends on --weights and --tune. Names from other "
        f"codebases also work: {', '.join(SPELLINGS)}; so do underscores in place of hyphens."
    )


def add_import_option(
    parser: ArgumentParser, about: str = "Python file or module that the run requires, executed first"
) -> None:
    """Add `--import` to a command that does not accept the settings of a run."""
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
    """Add `--format`. The first format is the default."""
    first, *others = formats
    parser.add_argument(
        "--format",
        default=first,
        choices=(first, *others),
        metavar="NAME",
        help=f"output format: {', '.join((first, *others[:-1]))} or {others[-1]} (default: {first})",
    )


def add_device_option(parser: ArgumentParser, about: str = "device: ", default: str | None = None) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        default=default,
        choices=SETTINGS["device"].choices,
        metavar="NAME",
        help=f"{about}auto, cpu or cuda (default: auto)",
    )


def add_force_option(parser: ArgumentParser) -> None:
    """Add `--force`, for a command that rejects models that learned nothing."""
    parser.add_argument("--force", action="store_true", help="accept a model that learned nothing during training")


def _reader(declared: Setting) -> Callable[[str], Any]:
    """Return the parser for an option's value. As in a settings file, `null` means the default."""
    kind = declared.kinds[0]

    def read(text: str) -> Any:
        if text == "null":
            return None
        if any(get_origin(other) for other in declared.kinds):  # a YAML list or mapping, or 3,3,3 or hospital=2,year=3
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


def user_settings(
    arguments: Namespace,
    dataset: str | None = SETTINGS["dataset"].default,
    output: str = SETTINGS["output"].default,
) -> dict[str, Any]:
    """Return the settings from the options, which override those in the `--config` file.

    Names and paths are checked. `dataset` is the default dataset, or None if the command chooses it. `output` is the
    default output folder.
    """
    settings = {name: value for name, value in vars(arguments).items() if name in SETTINGS}
    settings = settings if arguments.config is None else _over_file(settings, arguments)
    check_settings(settings)
    sweep_file, dry = getattr(arguments, "file", None), any(vars(arguments).get(name) for name in DRY)
    default = {} if sweep_file else {"output": output}
    check_paths({**default, **settings, **({"output": None} if dry else {})})
    if sweep_file is None:  # a sweep file may import the code that defines the names
        spanned = [part.partition("=")[0] for part in getattr(arguments, "span", None) or ()]
        check_names({**dict.fromkeys(spanned), **settings}, None if settings.get("extend") else dataset)
    return settings


def _over_file(settings: dict[str, Any], arguments: Namespace) -> dict[str, Any]:
    """Return the settings from the `--config` file, overridden by the options."""
    file_settings = _from_file(Path(arguments.config))
    changed = [name for name in settings if not SETTINGS[name].local]
    if changed and file_settings.keys() == SETTINGS.keys():
        raise MedicError(
            f"--config {arguments.config} also sets derived settings, which may contradict --{changed[0]}: delete the "
            "lines for derived settings, or pass the configuration file in a run directory"
        )
    path = Path(arguments.config)
    if changed and path.name == config_file(path.parent):
        file_settings.pop("name", None)  # the name belongs to the run that this configuration describes
    return {**{name: value for name, value in file_settings.items() if value is not None}, **settings}


def _from_file(path: Path) -> dict[str, Any]:
    """Return the settings from a file, with canonical names.

    If the file is a run's complete configuration, read the user's original settings from the file next to it instead,
    so that derived settings follow the command line.
    """
    written = path.parent / user_settings_file(path.parent)
    source = written if path.name == config_file(path.parent) and written.exists() else path
    return {known_setting(setting_name(key), f"in {source}"): value for key, value in read_settings(source).items()}
