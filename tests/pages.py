"""Read the pages of the documentation and run their examples."""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

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
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


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
