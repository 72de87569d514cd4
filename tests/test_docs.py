"""The command lines that the documentation shows: they are parsed, and their recipes made without images."""

import re
import shlex
from argparse import ArgumentError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medic.analysis import ANALYSES
from medic.cli.main import COMMANDS, make_parser
from medic.cli.options import SPELLINGS, canonical, given_settings
from medic.data import benchmark
from medic.errors import MedicError
from medic.report.against import paper_metrics
from medic.report.formats import FORMATS
from medic.runs.recipe import make_recipe
from medic.sweeps.files import read_sweep
from medic.sweeps.sweep import Sweep, parse_span
from medic.tables.paper_tables import reproduction
from medic.tables.table import SELECTIONS

DOCS = Path(__file__).parents[1] / "docs"
DOMAINBED = (DOCS / "tutorials" / "domainbed.md").read_text()
TEXTS = {name: (DOCS / f"{name}.md").read_text() for name in ("analysis", "methods", "sweeps", "tables", "use")}


def commands(text: str) -> list[str]:
    """Lines of indented blocks that begin with `medic`, with those that go on behind a backslash."""
    return re.findall(r"^    (medic (?:.*\\\n)*.*)$", text, re.MULTILINE)


def spans(text: str) -> list[str]:
    """What is written as code within a sentence or a table and begins with an option."""
    return [" ".join(span.split()) for span in re.findall(r"`(--[^`]+)`", text)]


def find(bench, root, seed):
    """What a folder with the images of a benchmark would hold."""
    return SimpleNamespace(domains=bench.domains, classes=bench.classes, axes=())


def check_run(asked: dict[str, Any]) -> None:
    """Make the recipe of a run, without its files."""
    make_recipe({**asked, "root": None, "weights": None, "device": "cpu"}, find)


def sweep_of(parsed, folder: Path) -> Sweep:
    """The sweep of some options; its file, if it has one, is the one that the page shows."""
    file = folder / "sweep.yaml"
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXTS["sweeps"], re.DOTALL)
    file.write_text(block)
    base = Sweep({}) if parsed.file is None else read_sweep(file)
    return base.changed(given_settings(parsed), parse_span(parsed.span))


LINES = [line for text in (*TEXTS.values(), DOMAINBED) for line in commands(text)]
NAMING = r"--(dataset|method|sampling|penalty|layer|averaging|objective|head|score|threshold|optimizer|schedule) [a-z]"
NAMED = [span for text in TEXTS.values() for span in spans(text) if re.match(NAMING, span)]
NEWCOMERS = ["README.md", "docs/index.md", "docs/training.md", "docs/idea.md"]
NEWCOMERS += sorted(str(path.relative_to(DOCS.parent)) for path in DOCS.glob("*/*.md") if path.stem != "domainbed")
OPTIONS = {
    *SPELLINGS,
    *(option for name in COMMANDS for action in make_parser(name)._actions for option in action.option_strings),
}


def check(line: str, folder: Path) -> None:
    """Parse a command line, and check what it names."""
    _, command, *rest = shlex.split(line.replace(" …", "").replace("\\\n", " "), comments=True)
    parsed = make_parser(command).parse_args(canonical(rest))
    if command == "train" or (command == "search" and "…" not in line):
        check_run(given_settings(parsed))
    if command == "sweep":
        first = {run.get("method"): run for run in sweep_of(parsed, folder).runs()}
        for run in first.values():
            check_run(run)
    if command == "reproduce" and parsed.table is not None:
        table = reproduction(parsed.table, parsed.quick)
        assert {*parsed.methods} <= {line.settings["method"] for line in table.lines if line.settings is not None}
        assert {*parsed.only} <= {*table.columns}
    if command == "analyze":
        assert parsed.name is None or parsed.name in ANALYSES
    if command == "table":
        assert parsed.selection in SELECTIONS
        assert parsed.format in ("text", *FORMATS)
        assert parsed.paper is None or paper_metrics(parsed.paper)


def test_there_are_some():
    counts = {name: len(commands(text)) for name, text in TEXTS.items()}
    assert counts == {"analysis": 9, "methods": 3, "sweeps": 10, "tables": 9, "use": 20}
    assert len(commands(DOMAINBED)) == 3


@pytest.mark.parametrize("line", LINES)
def test_commands(line, tmp_path):
    check(line, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "medic train --dataset officehome --target Art",
        "medic train --dataset digits --target street --method vrex --hparams wieght=1",
        "medic sweep --dataset digits --span target=each method=erm,medic+++",
        "medic sweep sweep.yaml --iteration 3",
        "medic reproduce pacs-resnet5",
    ],
)
def test_mistakes_would_be_found(line, tmp_path):
    with pytest.raises((MedicError, ArgumentError)):
        check(line, tmp_path)


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
        check_run({**given_settings(parsed), "target": benchmark(parsed.dataset).domains[0]})
    except MedicError as error:
        if {"--dataset", "--method"} & set(words) or str(error).startswith("unknown"):
            raise
