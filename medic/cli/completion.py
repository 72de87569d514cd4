"""The `medic completion` command: shell completion for commands, options and values."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from medic.cli import catalogue

SHELLS = ("bash", "zsh", "fish")


def add_options(parser: ArgumentParser) -> None:
    """Add the shell argument."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.epilog = (
        "To enable completion in the current shell, run `source <(medic completion bash)` (or zsh), or "
        "`medic completion fish | source`. To enable it in every new shell, add that line to ~/.bashrc, ~/.zshrc or "
        "~/.config/fish/config.fish."
    )


def run(arguments: Namespace) -> int:
    """Print the script."""
    commands = list(_commands())
    print(fish_script(commands) if arguments.shell == "fish" else bash_script(commands, arguments.shell), end="")
    return 0


class Option(NamedTuple):
    """An option of a command, for completion."""

    names: tuple[str, ...]
    help: str
    takes: bool
    """Whether the option takes a value."""
    several: bool
    """Whether the option takes any number of values."""
    values: tuple[str, ...]
    """The possible values, if they can be listed."""


class Command(NamedTuple):
    """A command with its options and the possible values of its positional arguments."""

    name: str
    help: str
    options: tuple[Option, ...]
    positional_values: tuple[str, ...]


def _commands() -> Iterator[Command]:
    from medic.cli.main import COMMANDS, make_parser, positionals

    contents = catalogue.load()
    for name, about in COMMANDS.items():
        parser = make_parser(name)
        options = [
            Option(
                tuple(action.option_strings),
                action.help or "",
                action.nargs != 0,
                action.nargs == "*",
                _values(contents, name, action),
            )
            for action in parser._actions
            if action.option_strings
        ]
        options.append(Option(("--help",), "show the help", False, False, ()))
        positional_values = tuple(value for action in positionals(parser) for value in _values(contents, name, action))
        yield Command(name, about, tuple(options), positional_values)


def _values(contents: Any, command: str, action: Action) -> tuple[str, ...]:
    """Return the possible values of an argument: its choices, or names from the catalogue."""
    from medic.analysis import ANALYSES

    if action.choices is not None:
        return tuple(map(str, action.choices))
    methods = [row["method"] for row in contents["methods"]]
    datasets = [row["dataset"] for row in contents["datasets"]]
    tables = [row["name"] for row in contents["tables"]]
    names = {"methods": methods, "datasets": datasets, "data": datasets, "analyze": list(ANALYSES)}
    named = {"method": methods, "methods": methods, "dataset": datasets, "table": tables, "paper": tables}
    if action.dest == "name" and not action.option_strings:
        return tuple(names.get(command, ()))
    return tuple(named.get(action.dest, contents["values"].get(action.dest, ())))


def bash_script(commands: Sequence[Command], shell: str) -> str:
    """Return the script for bash. zsh runs it too, through bashcompinit."""
    cases: list[str] = []
    for command in commands:
        by_values: dict[tuple[str, ...], list[str]] = {}
        for option in command.options:
            if option.takes:  # option=distance, the number of words from the option to the current word
                patterns = [f"{name}={'*' if option.several else '1'}" for name in option.names]
                by_values.setdefault(option.values, []).extend(patterns)
        cases.append(f"    {command.name})")
        cases.append(f"      options={_quoted(name for option in command.options for name in option.names)}")
        cases.append(f"      places={_quoted(command.positional_values)}")
        cases.append('      case "$option=$distance" in')
        cases += [f"        {'|'.join(names)}) values={_quoted(values)} ;;" for values, names in by_values.items()]
        cases += ["      esac", "      ;;"]
    return (_ZSH if shell == "zsh" else "") + _BASH.replace(
        "@commands@", _quoted(command.name for command in commands)
    ).replace("@cases@", "\n".join(cases))


_ZSH = """\
(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""

_BASH = """\
_medic() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" option="" distance=0 values="-" options="" places=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W @commands@ -- "$word"))
    return
  fi
  if [ "$word" = "=" ]; then word=""; fi  # bash splits --option=value into three words
  for ((distance = 1; COMP_CWORD - distance > 1; distance++)); do
    case "${COMP_WORDS[COMP_CWORD - distance]}" in -*) option="${COMP_WORDS[COMP_CWORD - distance]}"; break ;; esac
  done
  if [ "$distance" = 2 ] && [ "${COMP_WORDS[COMP_CWORD - 1]}" = "=" ]; then distance=1; fi
  case "$command" in
@cases@
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *)
      if [ "$values" = "-" ]; then values="$places"; fi
      if [ -n "$values" ]; then COMPREPLY=($(compgen -W "$values" -- "$word")); fi
      ;;
  esac
}
complete -o default -F _medic medic
"""


def fish_script(commands: Sequence[Command]) -> str:
    """Return the script for fish."""
    lines = ["complete -c medic -f -n __fish_use_subcommand"]
    for command in commands:
        lines.append(f"complete -c medic -f -n __fish_use_subcommand -a {command.name} -d {_quoted([command.help])}")
        within = f"complete -c medic -n '__fish_seen_subcommand_from {command.name}'"
        if command.positional_values:
            lines.append(f"{within} -a {_quoted(command.positional_values)}")
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            takes = f" -r -f -a {_quoted(option.values)}" if option.values else " -r" if option.takes else ""
            lines.append(f"{within} {names}{takes} -d {_quoted([option.help])}")
    return "\n".join(lines) + "\n"


def _quoted(words: Iterable[str]) -> str:
    """Quote words as a single shell argument."""
    joined = " ".join(words).replace("'", "’")  # shells differ in how they escape an apostrophe
    return f"'{joined}'"
