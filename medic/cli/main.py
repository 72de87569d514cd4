"""The command line: finds a command, runs it, and turns errors into one line and an exit code."""

import re
import sys
import warnings
from argparse import ArgumentError, HelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from medic._version import __version__
from medic.errors import MedicError, TrainingError, check_choice, closest
from medic.logs import shown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

COMMANDS = {
    "demo": "train erm and medic++ on the built-in benchmark and compare them",
    "train": "train one method with one target domain",
    "sweep": "train all combinations of some settings",
    "search": "search for hyperparameters of a method, by source validation alone",
    "reproduce": "train the runs of a table of the paper, and print it beside the paper's",
    "evaluate": "evaluate a finished run again, with any score and threshold",
    "table": "print a table of finished runs, beside the paper's on request",
    "methods": "list the methods and what each differs in",
    "datasets": "list the benchmarks",
    "data": "check a dataset on disk, or download one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 1 if training failed, 2 for a user's mistake, 130 on Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            return _run(given)
    except (MedicError, ArgumentError, TrainingError, KeyboardInterrupt) as error:
        if debug:
            raise
        return _fail(error, given)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        return 0


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"medic: note: {message}", file=sys.stderr)


def _fail(error: BaseException, given: Sequence[str]) -> int:
    """Print an error as one line and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        print(f"medic: {str(error) or 'stopped'}", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))
    message = str(error) if isinstance(error, TrainingError) else _one_line(str(error), given)
    print(f"medic: error: {message}", file=sys.stderr)
    return 1 if isinstance(error, TrainingError) else 2


def _run(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if given[0] in ("-V", "--version"):
        print(f"medic {__version__}")
        return 0
    name, *rest = given
    check_choice("command", name, COMMANDS)
    from medic.cli.options import canonical  # only now, because its imports take longer than `medic --help`

    parser = make_parser(name)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help(), end="")
        return 0
    with shown():
        code: int = import_module(f"medic.cli.{name}").run(parser.parse_args(canonical(rest)))
    return code


def make_parser(name: str) -> "ArgumentParser":
    """Return the parser of a command; it raises instead of exiting, and takes no abbreviations."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog=f"medic {name}",
        description=COMMANDS[name],
        exit_on_error=False,
        allow_abbrev=False,
        add_help=False,
        print_config=None,
        formatter_class=HelpFormatter,
    )
    import_module(f"medic.cli.{name}").add_options(parser)
    return parser


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        f"medic {__version__}: open set domain generalization\n\nusage: medic COMMAND [options]\n\n{lines}\n\n"
        "`medic COMMAND --help` lists the options of a command; --debug shows the traceback of an error."
    )


def _one_line(message: str, given: Sequence[str]) -> str:
    """Rewrite an error of the parser as one line that names the option."""
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        return _unknown_option(unknown[1], given[0])
    if unknown := re.match(r"Option '(\w+)' is not accepted", message):
        return _unknown_option(f"--{unknown[1].replace('_', '-')}", given[0])
    if wrong := re.match(r'Parser key "([\w.]+)".*(?:Given|Got) value: ([^\n]*)', message, re.DOTALL):
        wanted = "a whole number" if "int" in message and "float" not in message else "a number"
        wanted = wanted if "'float'" in message or "'int'" in message else "another type of value"
        return f"--{wrong[1].replace('_', '-')} {wrong[2]}: expected {wanted}"
    message = re.sub(r'Parser key "(\w+)": ', lambda key: f"--{key[1]}: ", message)
    return " ".join(line.strip() for line in message.splitlines())


def _unknown_option(option: str, command: str) -> str:
    from medic.cli.options import SPELLINGS

    if not option.startswith("-"):
        return f"unexpected argument {option!r}; see `medic {command} --help`"
    name = option.split("=")[0]
    spellings = [spelling for action in make_parser(command)._actions for spelling in action.option_strings]
    nearest = closest(name, [*SPELLINGS, *spellings])
    hint = f"did you mean {nearest!r}?" if nearest else f"see `medic {command} --help`"
    return f"unknown option {name!r}, {hint}"
