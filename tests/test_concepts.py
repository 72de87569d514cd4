"""The examples of the concepts: every `# → value` is the value of its line."""

import ast
import re
from typing import Any

import pytest

from tests.pages import DOCS, blocks

PAGES = sorted(path.stem for path in (DOCS / "concepts").glob("*.md"))
EXAMPLES = {"hscore": 4, "oscr": 1, "scores": 4, "selection": 3, "thresholds": 2}


def test_each_concept_has_an_example():
    assert list(EXAMPLES) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_values(page):
    names: dict[str, Any] = {}
    (block,) = blocks(f"docs/concepts/{page}.md")
    examples = 0
    for line in block.text.splitlines():
        expected = re.fullmatch(r"(.+)  # → (.+)", line)
        if expected is None:
            exec(line, names)
            continue
        assert eval(expected[1], names) == pytest.approx(ast.literal_eval(expected[2])), line
        examples += 1
    assert examples == EXAMPLES[page]
