"""Draw sentences at random, to read them as somebody who has never seen the code.

    python .ci/sentences.py docs 100 --seed 0
    python .ci/sentences.py messages 50      # help texts, errors and notes
    python .ci/sentences.py docstrings 50

Each line has the file and the sentence. Tables, code and headings of the documentation are left out.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[])")


def docs() -> Iterator[tuple[str, str]]:
    """Yield the paragraphs and list items of the documentation."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        opened: list[str] = []
        for token in MarkdownIt("commonmark").enable("table").parse(path.read_text()):
            opened = [*opened, token.type] if token.nesting == 1 else opened[:-1] if token.nesting == -1 else opened
            if token.type == "inline" and not {"table_open", "heading_open"} & set(opened):
                yield str(path.relative_to(ROOT)), token.content


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of the package, also those below constants and fields."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield path, node.value.value


def messages() -> Iterator[tuple[str, str]]:
    """Yield the strings of the package that people read: at least four words, and not a docstring."""
    for path, tree in _modules():
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(
                    p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in node.values
                )
            else:
                continue
            if len(re.findall(r"[a-z]+", re.sub(r"<[^>]*>|\{[^}]*\}", "", text))) > 3 and "{{" not in text:
                yield path, text


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "medic").rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


KINDS = {"docs": docs, "messages": messages, "docstrings": docstrings}


def main() -> None:
    """Print a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sentences = [
        (path, " ".join(sentence.split()))
        for path, text in KINDS[arguments.kind]()
        for sentence in (SENTENCE.split(text) if arguments.kind != "messages" else [text])
        if len(sentence.split()) > 3
    ]
    for path, sentence in sorted(random.Random(arguments.seed).sample(sentences, arguments.count)):
        print(f"{path}: {sentence}")


if __name__ == "__main__":
    main()
