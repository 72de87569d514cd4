"""The options and names that pages mention in sentences exist. Whole commands are in test_commands.py."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medic.cli.main import COMMANDS, make_parser
from medic.cli.options import SPELLINGS, canonical, user_settings
from medic.config.resolve import resolve
from medic.data import benchmark
from medic.errors import MedicError

DOCS = Path(__file__).parents[1] / "docs"
TEXTS = {name: (DOCS / f"{name}.md").read_text() for name in ("analysis", "methods", "sweeps", "tables", "use")}


def spans(text: str) -> list[str]:
    """What is written as code within a sentence or a table and begins with an option."""
    return [" ".join(span.split()) for span in re.findall(r"`(--[^`]+)`", text)]


def find(bench, root, seed):
    """What a folder with the images of a benchmark would hold."""
    return SimpleNamespace(domains=bench.domains, classes=bench.classes, axes=())


def check_run(settings: dict[str, Any]) -> None:
    """Make the recipe of a run, without its files."""
    resolve({**settings, "root": None, "weights": None, "device": "cpu"}, find)


NAMING = r"--(dataset|method|sampling|penalty|layer|averaging|objective|head|score|threshold|optimizer|schedule) [a-z]"
NAMED = [span for text in TEXTS.values() for span in spans(text) if re.match(NAMING, span)]
NEWCOMERS = ["README.md", "docs/index.md", "docs/training.md", "docs/idea.md"]
NEWCOMERS += sorted(str(path.relative_to(DOCS.parent)) for path in DOCS.glob("*/*.md") if path.stem != "domainbed")
OPTIONS = {
    *SPELLINGS,
    *(option for name in COMMANDS for action in make_parser(name)._actions for option in action.option_strings),
}


@pytest.mark.parametrize("page", TEXTS)
def test_options_within_sentences(page):
    for span in spans(TEXTS[page]):
        assert not set(re.findall(r"--[a-z][a-z-]*", span)) - OPTIONS, span


@pytest.mark.parametrize("page", NEWCOMERS)
def test_options_of_pages_for_newcomers(page):
    """Every option that they name exists, in sentences and in blocks; one is torchrun's."""
    text = (DOCS.parent / page).read_text()
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= OPTIONS | {"--help", "--nproc-per-node"}


@pytest.mark.parametrize("span", NAMED)
def test_names_within_sentences(span):
    """With a dataset or a method it is a run; a part alone may want another method, but its name is known."""
    words = shlex.split(span.replace(" N", " 1"))
    parsed = make_parser("train").parse_args(
        canonical(words if "--dataset" in words else ["--dataset", "digits", *words])
    )
    try:
        check_run({**user_settings(parsed), "target": benchmark(parsed.dataset).domains[0]})
    except MedicError as error:
        if {"--dataset", "--method"} & set(words) or str(error).startswith("unknown"):
            raise
