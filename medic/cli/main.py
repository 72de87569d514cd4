"""Entry point of the command line: runs a command, and turns errors into one line and an exit code."""

import io
import os
import re
import signal
import sys
import warnings
from argparse import Action, ArgumentParser, HelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from textwrap import wrap
from typing import Any, NoReturn, TextIO

from medic._version import __version__
from medic.errors import (
    MedicError,
    TrainingError,
    check_choice,
    closest,
    memory_checked,
    one_line,
    without_credentials,
)
from medic.utils.logs import log_output

COMMANDS = {
    "demo": "train erm and medic++ on the built-in benchmark, and compare them",
    "train": "train a method on source domains, and evaluate it on a target domain",
    "probe": "train the heads of all methods on frozen features, and compare them with every score",
    "sweep": "train all combinations of several settings",
    "search": "search a method's hyperparameters, using source data only",
    "reproduce": "train the runs of one of the paper's tables, and compare the results with the paper",
    "soup": "average the weights of finished runs into one model, selected by source validation",
    "evaluate": "evaluate a finished run, or predictions of another program, with any score and threshold",
    "predict": "classify images with a trained model, or label them unknown",
    "watch": "check unlabelled images for domain shift, and estimate accuracy and the fraction of unknown images",
    "calibrate": "choose the threshold of a trained model, and see how many images it accepts and rejects",
    "export": "export a model with its threshold to ONNX or torch.export, and verify the result",
    "serve": "serve a model over HTTP, with a web page and POST /predict",
    "push": "upload a model to the Hugging Face Hub, with a model card",
    "pull": "download a model from the Hugging Face Hub, and validate it",
    "runs": "list finished and unfinished runs, with their state and metrics",
    "table": "print a table of finished runs, optionally next to the paper's",
    "analyze": "measure and plot one aspect of finished runs: gradients, boundaries, errors, …",
    "figures": "draw the paper's figures from a folder of runs",
    "report": "write an HTML report on a run or a folder of runs: curves, thresholds, confusions, images",
    "methods": "list the methods and how they differ",
    "datasets": "list the benchmarks",
    "data": "check a dataset on disk, or download one",
    "completion": "print a completion script for bash, zsh or fish",
}
LONGEST = 1000
"""Maximum length of an error message in characters. A quoted value may be thousands of characters long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    The exit code is 0 on success, 1 if training failed or learned nothing, 2 for invalid input, 130 on Ctrl-C, and 141
    if the reader of a pipe, such as `head`, has closed it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with _streams():
        try:
            with warnings.catch_warnings(), memory_checked():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                code = _run([argument for argument in words if argument != "--debug"])
                sys.stdout.flush()  # an error during interpreter shutdown could not be caught
                return code
        except KeyboardInterrupt as error:
            if debug:
                raise
            print(f"medic: {str(error) or 'stopped'}", file=sys.stderr)
            return int(getattr(error, "exit_code", 128 + signal.SIGINT))
        except (MedicError, TrainingError) as error:
            if debug:
                raise
            _show_error(str(error))
            return 1 if isinstance(error, TrainingError) else 2
        except OSError as error:
            if debug:
                raise
            path, reason = error.filename, error.strerror or str(error)
            _show_error(reason if path is None else f"{os.fsdecode(path)}: {reason}")
            return 2
        except _ReaderGone:
            return 128 + signal.SIGPIPE


@contextmanager
def _streams() -> Iterator[None]:
    """Make standard output and error accept any text, and replace closed streams with the null device."""
    before = sys.stdout, sys.stderr
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:  # in this order, so that each reuses the file descriptor of the closed stream
        setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    streams: Any = _Output(sys.stdout), _Messages(sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _ReaderGone(Exception):
    """The reader of standard output has closed the pipe."""


class _Output:
    """Wrapper around standard output that distinguishes its own errors from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        return self._try(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        """Flush the buffer."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except OSError as error:  # the null device receives what Python flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._fail(error)
            return None

    def _fail(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise _ReaderGone from error
        raise MedicError(f"cannot write to standard output: {error.strerror}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Messages(_Output):
    """Wrapper around standard error that ignores write errors, so that a lost message does not stop a run."""

    def _fail(self, error: OSError) -> None: ...


def _show_error(message: str) -> None:
    line = without_credentials(one_line(message))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    print("medic: error:", line, file=sys.stderr)


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"medic: note: {one_line(str(message))}", file=sys.stderr)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"medic {__version__}")
        return 0
    name, *rest = words
    check_choice("command", name, COMMANDS)
    from medic.cli.options import canonical  # deferred, because this import takes longer than `medic --help`

    parser = make_parser(name)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help(), end="")
        return 0
    with log_output():
        code: int = import_module(f"medic.cli.{name}").run(parser.parse_args(canonical(rest)))
    return code


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
    return (
        f"medic {__version__}: open set domain generalization\n\nusage: medic COMMAND [options]\n\n{lines}\n\n"
        "Run `medic COMMAND --help` for the options of a command. Add --debug to show the traceback of an error."
    )


def make_parser(name: str) -> "Parser":
    """Return the argument parser of a command."""
    parser = Parser(
        prog=f"medic {name}", description=COMMANDS[name], formatter_class=Formatter, allow_abbrev=False, add_help=False
    )
    import_module(f"medic.cli.{name}").add_options(parser)
    parser.usage = " ".join([parser.prog, "[options]", *map(_positional_usage, positionals(parser))])
    return parser


def positionals(parser: ArgumentParser) -> list[Action]:
    """Return the positional arguments of a command."""
    return [action for action in parser._actions if not action.option_strings]


def _positional_usage(action: Action) -> str:
    """Format a positional argument for the usage line. Unlike argparse's, this line does not list all options."""
    shapes = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
    return shapes.get(str(action.nargs), "{0}").format(action.metavar)


class Formatter(HelpFormatter):
    """Help formatter with a wide option column that does not break words such as max-logit."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


class Parser(ArgumentParser):
    """Argument parser that raises a `MedicError` instead of printing the usage and exiting."""

    def __init__(self, **options: Any) -> None:
        from medic.cli.options import number

        super().__init__(**options)
        self.register("type", int, number(int))
        self.register("type", float, number(float))

    def error(self, message: str) -> NoReturn:
        """Raise an argparse error as a `MedicError`."""
        if unknown := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            raise MedicError(self._unknown(unknown[1]))
        if missing := re.match(r"argument (\S+): expected (.*)", message):
            raise MedicError(f"{missing[1]} requires {missing[2].replace('argument', 'value')}")
        if both := re.match(r"argument (?:-\w/)?(\S+): not allowed with argument (?:-\w/)?(\S+)", message):
            raise MedicError(f"{both[1]} and {both[2]} cannot be combined: pass only one of them")
        # For example `argument -o/--output: must be …`.
        raise MedicError(re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1 ", message))

    def _check_value(self, action: Action, value: Any) -> None:
        """Check a value against the choices of its option."""
        if action.choices is not None and value is not None:
            check_choice(action.dest, value, action.choices)

    def _unknown(self, argument: str) -> str:
        from medic.cli.options import SPELLINGS
        from medic.config.settings import meaning

        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}; see `{self.prog} --help`"
        if (meant := meaning(argument)) and any(action.dest == meant[0] for action in self._actions):
            return f"unknown option {argument!r}: {meant[1]}"
        # Compare without dashes, which would make all options look similar.
        options = {option.lstrip("-"): option for option in (*SPELLINGS, *self._option_string_actions)}
        nearest = closest(argument.lstrip("-"), options)
        hint = f"did you mean {options[nearest]!r}?" if nearest else f"see `{self.prog} --help`"
        return f"unknown option {argument!r}: {hint}"
