"""Read the pages of the documentation and run their examples."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from medic.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page below the root of the repository."""
    text = (ROOT / page).read_text()
    return [Block(*groups) for groups in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def command_lines(text: str) -> list[str]:
    """Return the lines of a shell block, with those that go on behind a backslash joined."""
    return text.replace("\\\n", " ").splitlines()


def run_commands(text: str) -> None:
    """Run the lines of a shell block in this process, each `medic …`, in the working directory."""
    for line in command_lines(text):
        program, *words = shlex.split(line, comments=True)
        assert program == "medic", line
        assert main(words) == 0, line


def run_page(page: str, replacements: dict[str, str]) -> dict[str, Any]:
    """Run all blocks of a page from top to bottom, with some text replaced, and return the names they define.

    A block of Python that starts with the name of a file, `# calm.py`, is appended to the file and not run.
    """
    names: dict[str, Any] = {}
    for language, text in blocks(page):
        for pattern, replacement in replacements.items():
            text = re.sub(pattern, replacement, text)
        if language == "bash":
            run_commands(text)
        else:
            assert language == "python", language
            if file := re.match(r"# (\w+\.py)\n", text):
                with Path(file[1]).open("a") as opened:
                    opened.write(text)
                continue
            exec(compile(text, page, "exec"), names)
    return names


PAGES = (
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    *sorted(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md")),
)
"""The pages that show commands."""
CODE = ("python", "yaml", "json", "dockerfile")
"""Languages of fenced blocks that are no commands."""
CALL = re.compile(r"(?<![\w/.`-])medic (?=[a-z]+(?: |$|\)))|^medic (?=-)")
"""The begin of a command; tables of results, in which medic is a method, have more spaces or numbers behind it."""


class Command(NamedTuple):
    """A command on a page, without `medic`."""

    page: str
    line: int
    """The first line of its block or paragraph."""
    words: tuple[str, ...]
    previous: tuple[str, ...] = ()
    """The last command of the same name before it in its block, which an ellipsis stands for."""
    quoted: bool = False
    """Whether it stands in a sentence, where `medic train --report` may only name an option."""

    def __str__(self) -> str:
        """Return the place and the command."""
        return f"{self.page}:{self.line}: medic {shlex.join(self.words)}"


@cache
def commands(page: str) -> tuple[Command, ...]:
    """Return the commands of a page, in code blocks, in their comments, and in the text."""
    return tuple(_commands(page))


def _commands(page: str) -> Iterator[Command]:
    for token in MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text()):
        first = token.map[0] + 1 if token.map else 0
        if token.type == "code_block" or (token.type == "fence" and token.info not in CODE):
            before: dict[str, tuple[str, ...]] = {}
            for line in command_lines(token.content):
                shell, _, comment = re.sub(r"(^| )# ", "\0", line).partition("\0")
                for words in _calls(shell):
                    yield Command(page, first, words, before.get(words[0], ()))
                    before[words[0]] = words
                for sentence in re.findall(r"`([^`]+)`", comment):
                    yield from (Command(page, first, words, quoted=True) for words in _calls(sentence))
        for child in token.children or ():
            if child.type == "code_inline":
                yield from (Command(page, first, words, quoted=True) for words in _calls(child.content))


def _calls(shell: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each call of medic in a line of a shell without its comment."""
    for call in CALL.finditer(shell):
        read = shlex.shlex(shell[call.end() :], posix=True, punctuation_chars=True)
        read.whitespace_split, read.commenters = True, ""
        yield tuple(takewhile(lambda word: not set(word) <= set("|&;()<>"), read))  # up to the next command of the line
