"""The command line: finds a command, runs it, and turns errors into one line and an exit code."""

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
    "demo": "train erm and medic++ on the built-in benchmark and compare them",
    "train": "train one method with one target domain",
    "probe": "train the heads of all methods on frozen features, and compare them by every score",
    "sweep": "train all combinations of some settings",
    "search": "search for hyperparameters of a method, with source data alone",
    "reproduce": "train the runs of a table of the paper, and print it beside the paper's",
    "soup": "average the weights of finished runs into one model, by source validation alone",
    "evaluate": "evaluate a finished run again, with any score and threshold",
    "predict": "name the images in files, folders or lists by a trained model, or call them unknown",
    "watch": "compare images without labels with the sources, and estimate accuracy and the share of unknown images",
    "calibrate": "choose the threshold of a trained model, and see what each choice accepts and rejects",
    "export": "write a model as one graph, ONNX or torch.export, with its decision, and check it",
    "serve": "answer over HTTP: a page to drop images on, and POST /predict",
    "push": "send a model to the Hugging Face Hub, with a model card",
    "pull": "fetch a model from the Hugging Face Hub, and check it",
    "runs": "list runs, finished or not, with their state and numbers",
    "table": "print a table of finished runs, beside the paper's on request",
    "analyze": "measure one aspect of finished runs, and draw it: gradients, boundaries, errors, …",
    "figures": "draw the paper's figures from a folder of runs",
    "report": "write a page about a run or a folder of runs: curves, thresholds, confusions, images",
    "methods": "list the methods and what each differs in",
    "datasets": "list the benchmarks",
    "data": "check a dataset on disk, or download one",
    "completion": "print a script that completes commands, options and values in bash, zsh or fish",
}
LONGEST = 1000
"""Characters of an error that are shown; a value that was given may have thousands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    The exit code is 0, 1 if training failed or learned nothing, 2 for a user's mistake, 130 on Ctrl-C, and 141, as of
    other programs, if the reader of the output has gone, such as `head`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    with _streams():
        try:
            with warnings.catch_warnings(), memory_checked():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                code = _run([argument for argument in words if argument != "--debug"])
                sys.stdout.flush()  # not when Python exits, where an error could not be caught
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
    """Let standard output and error write any text; a closed one is replaced by the null device."""
    before = sys.stdout, sys.stderr
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:  # in this order each takes the number of the closed one, which no other file must get
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
    """The reader of standard output has closed it."""


class _Output:
    """Standard output: an error that it raises is not taken for one of another file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        return self._try(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        """Write out what is buffered."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except OSError as error:  # the null device takes what Python flushes when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._fail(error)
            return None

    def _fail(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise _ReaderGone from error
        raise MedicError(f"standard output cannot be written: {error.strerror}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Messages(_Output):
    """Standard error, which fails silently: a run is worth more than its messages, and nobody could read an error."""

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
    from medic.cli.options import canonical  # only now, because its imports take longer than `medic --help`

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
        "`medic COMMAND --help` lists the options of a command; --debug shows the traceback of an error."
    )


def make_parser(name: str) -> "Parser":
    """Return the parser of a command."""
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
    """Return a positional argument in a line of usage; the line of argparse has all options too, up to 30 lines."""
    shapes = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
    return shapes.get(str(action.nargs), "{0}").format(action.metavar)


class Formatter(HelpFormatter):
    """Has room for most options beside their help, and leaves words such as max-logit whole."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False, break_long_words=False)


class Parser(ArgumentParser):
    """Raises a `MedicError` that names the option, where argparse would print its usage and exit."""

    def __init__(self, **options: Any) -> None:
        from medic.cli.options import number

        super().__init__(**options)
        self.register("type", int, number(int))
        self.register("type", float, number(float))

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse in our words."""
        if unknown := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            raise MedicError(self._unknown(unknown[1]))
        if missing := re.match(r"argument (\S+): expected (.*)", message):
            raise MedicError(f"{missing[1]}: give {missing[2].replace('argument', 'value')}")
        # `argument -o/--output: x.csv: …` of a reader, which starts with the value.
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
        # Without dashes, which would make all options alike.
        options = {option.lstrip("-"): option for option in (*SPELLINGS, *self._option_string_actions)}
        nearest = closest(argument.lstrip("-"), options)
        hint = f"did you mean {options[nearest]!r}?" if nearest else f"see `{self.prog} --help`"
        return f"unknown option {argument!r}, {hint}"
