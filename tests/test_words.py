"""The words of the project: line width, one spelling of each term, and phrases that do not read well.

Both lists hold what once stood in these pages. A sentence that needs one of the phrases can be written without it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.pages import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT)) for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md")
) + sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*/*.md"))
MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "medic").rglob("*.py"))
WIDTH = 100

TERMS = {
    r"\b[Cc]lose-set\b|\b[Cc]losed set (accuracy|head|classifier|loss)\b": "closed-set",
    r"\b[Hh]eld out (images?|samples?|sources?|domains?)\b|\b[Hh]eldout\b": "held-out",
    r"\b[Bb]atchnorm\b|\b[Bb]atch normali[sz]ation\b": "batch norm",
    r"\b[Pp]re-trained\b": "pretrained",
    r"\b[Ff]ine tun|\b[Ff]inetun": "fine-tune",
    r"\b[Oo]ptimization\b": "optimisation",
    r"\b[Oo]ne vs\.? all\b": "one-vs-all",
    r"\b[Dd]ata sets?\b": "dataset",
    r"\b[Cc]heck point": "checkpoint",
    r"\d %(?! ?s\b)(?!s)": "90%, without a space",
}
"""Spellings to avoid, and the one to use."""

PHRASES = {
    r"\bcan be had\b": "is available, is achievable",
    r"\bof one's own\b|\bof its own accord\b": "your own",
    r"\b(equally many|as many as are)\b": "the same number of",
    r"\beach next\b": "each subsequent",
    r"\bup to and with\b": "up to and including",
    r"\bdo not belong together\b": "do not match",
    r"\bprofits? from\b": "benefits from",
    r"\bdecide[sd]? like\b": "makes the same decisions as",
    r"\b(is|are) mended\b": "fixed",
    r"\b(was|were) made already\b": "has already been made",
    r"\ba stranger's?\b": "untrusted",
    r"\btaken for what\b": "confusion matrix",
    r"\bthat are none\b|\bthat are no\b": "say what the value is",
    r"\bhas not the\b|\bhave not the\b": "lacks, is missing",
    r"\bby torch\.compile\b": "with torch.compile",
    r"\bof a format that is read\b": "supported format",
    r"\bthe place of use\b": "the place where you use the model",
    r"\ba hostile day\b": "robustness",
    r"\bis refused\b|\bare refused\b": "fails, raises an error",
}
"""Phrases to avoid, and what a native speaker would say."""


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Yield the text of a page with its first line, without code, and with inline code removed."""
    for token in MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text()):
        if token.type == "inline" and token.map:
            yield (
                token.map[0] + 1,
                " ".join(child.content for child in token.children or () if child.type in ("text", "softbreak")),
            )


def strings(module: str) -> Iterator[tuple[int, str]]:
    """Yield the string constants of a module: messages, help texts and docstrings."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize("file", [*PAGES, *MODULES])
def test_words(file):
    problems = [
        f"{file}:{line}: {match[0]!r}: write {better}"
        for line, text in (strings if file.endswith(".py") else prose)(file)
        for pattern, better in {**TERMS, **PHRASES}.items()
        if (match := re.search(pattern, " ".join(text.split())))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page):
    """Tables, code, headings and pictures cannot be wrapped, and neither can a long link."""
    lines = (ROOT / page).read_text().splitlines()
    exempt: set[int] = set()
    for token in MarkdownIt("commonmark").enable("table").parse("\n".join(lines)):
        if token.map and token.type in ("fence", "code_block", "table_open", "heading_open"):
            exempt |= set(range(token.map[0], token.map[1]))
    long = [
        f"{page}:{number + 1}: {len(line)} characters"
        for number, line in enumerate(lines)
        if len(line) > WIDTH and number not in exempt and " " in line.strip() and not line.startswith("![")
    ]
    assert not long, "\n".join(long)


def test_the_lists_find_what_they_name():
    text = "A close-set image, 90 % of a data set, that can be had."
    assert sum(bool(re.search(pattern, text)) for pattern in {**TERMS, **PHRASES}) == 4


def test_every_page_is_read():
    assert "docs/training.md" in PAGES
    assert "docs/tutorials/loop.md" in PAGES
    assert Path("medic/api/training.py").as_posix() in MODULES
