"""The command line: finds a command, runs it, and turns errors into one line and an exit code."""

import re
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from medic._version import __version__
from medic.errors import MedicError, TrainingError, check_choice, closest
from medic.logs import shown

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
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            return _run([argument for argument in given if argument != "--debug"])
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        sys.stderr.close()
        return 0
    except (MedicError, TrainingError, KeyboardInterrupt) as error:
        if debug:
            raise
        if isinstance(error, KeyboardInterrupt):
            print(f"medic: {str(error) or 'stopped'}", file=sys.stderr)
            return int(getattr(error, "exit_code", 130))
        print("medic: error:", *map(str.strip, str(error).splitlines()), file=sys.stderr)  # one line
        return 1 if isinstance(error, TrainingError) else 2


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"medic: note: {message}", file=sys.stderr)


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


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        f"medic {__version__}: open set domain generalization\n\nusage: medic COMMAND [options]\n\n{lines}\n\n"
        "`medic COMMAND --help` lists the options of a command; --debug shows the traceback of an error."
    )


def make_parser(name: str) -> "Parser":
    """Return the parser of a command."""
    parser = Parser(prog=f"medic {name}", description=COMMANDS[name], allow_abbrev=False, add_help=False)
    import_module(f"medic.cli.{name}").add_options(parser)
    return parser


class Parser(ArgumentParser):
    """Raises a `MedicError` that names the option, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse in our words."""
        if unknown := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            raise MedicError(self._unknown(unknown[1]))
        if wrong := re.match(r"argument (\S+): invalid (int|float) value: .(.*).", message, re.DOTALL):
            wanted = "a whole number" if wrong[2] == "int" else "a number"
            raise MedicError(f"{wrong[1]} {wrong[3]}: expected {wanted}")
        if missing := re.match(r"argument (\S+): expected (.*)", message):
            raise MedicError(f"{missing[1]}: give {missing[2].replace('argument', 'value')}")
        raise MedicError(message)

    def _unknown(self, argument: str) -> str:
        from medic.cli.options import SPELLINGS

        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}; see `{self.prog} --help`"
        nearest = closest(argument, [*SPELLINGS, *self._option_string_actions])
        hint = f"did you mean {nearest!r}?" if nearest else f"see `{self.prog} --help`"
        return f"unknown option {argument!r}, {hint}"
