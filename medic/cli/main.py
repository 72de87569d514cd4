"""Finds the command, runs it, and turns errors into one line and an exit code."""

import re
import sys
import warnings
from argparse import ArgumentError, HelpFormatter
from collections.abc import Sequence
from importlib import import_module

from jsonargparse import ArgumentParser, Namespace

from medic._version import __version__
from medic.cli.options import SPELLINGS, canonical
from medic.errors import MedicError, TrainingError, check_choice, closest

COMMANDS = {
    "demo": "train erm and medic++ on the built-in benchmark and compare them",
    "train": "train one method with one target domain",
    "sweep": "train many: all combinations of some settings",
    "search": "search for a method's numbers, by source validation alone",
    "reproduce": "make a table of the paper, by its name, and put it beside the paper's",
    "evaluate": "measure a finished run again, with any score and threshold",
    "table": "make a table of finished runs, beside the paper's if asked",
    "methods": "list the methods and what each differs in",
    "datasets": "list the benchmarks",
    "data": "check a dataset on disk against what it should hold, or fetch one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 1 if training failed, 2 for a mistake in what was asked, 130 on Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _note  # type: ignore[assignment]
            return _run(given)
    except (MedicError, ArgumentError) as error:
        if debug:
            raise
        return _say(_one_line(error, given), 2)
    except TrainingError as error:
        if debug:
            raise
        return _say(str(error), 1)
    except KeyboardInterrupt as error:
        if debug:
            raise
        return _say(str(error) or "stopped", getattr(error, "exit_code", 130))
    except BrokenPipeError:  # the reader of our output, `head` say, has gone
        sys.stderr.close()
        return 0


def _note(message: Warning | str, *_: object) -> None:
    """A warning, in one line."""
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
    command = import_module(f"medic.cli.{name}")
    parser = make_parser(name)
    command.add_options(parser)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help(), end="")
        return 0
    parsed: Namespace = parser.parse_args(canonical(rest))
    code: int = command.run(parsed)
    return code


def make_parser(name: str) -> ArgumentParser:
    """A parser that raises instead of exiting, and takes no abbreviations."""
    return ArgumentParser(
        prog=f"medic {name}",
        description=COMMANDS[name],
        exit_on_error=False,
        allow_abbrev=False,
        add_help=False,
        print_config=None,
        formatter_class=HelpFormatter,
    )


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        f"medic {__version__}: open set domain generalization\n\nusage: medic COMMAND [options]\n\n{lines}\n\n"
        "`medic COMMAND --help` lists the options of a command; --debug shows the traceback of an error."
    )


def _say(message: str, code: int) -> int:
    print(f"medic: error: {message}" if code in (1, 2) else f"medic: {message}", file=sys.stderr)
    return code


def _one_line(error: Exception, given: Sequence[str]) -> str:
    """What a parser's error says, in the words of the command line."""
    message = str(error)
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
    if not option.startswith("-"):
        return f"unexpected argument {option!r}; see `medic {command} --help`"
    name = option.split("=")[0]
    parser = make_parser(command)
    import_module(f"medic.cli.{command}").add_options(parser)
    spellings = [*SPELLINGS, *(spelling for action in parser._actions for spelling in action.option_strings)]
    nearest = closest(name, spellings)
    hint = f"did you mean {nearest!r}?" if nearest else f"see `medic {command} --help`"
    return f"unknown option {name!r}, {hint}"
