"""Every command of the README and of the documentation is run as it is printed, with `--dry-run` where it would train.

What pages leave to the reader, and the files they name, are in `tests/documented.py`.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from medic.cli import main
from medic.cli.main import COMMANDS, make_parser
from medic.cli.options import canonical
from medic.data import BENCHMARKS, Dataset
from tests.deploy.hub import NAME, serve_hub
from tests.documented import clear, make, resolve
from tests.pages import PAGES, Command, blocks, commands
from tests.plugins import forgotten

FOUND = {(one.words, one.previous, one.quoted): one for page in PAGES for one in commands(page)}.values()
"""Every command, once."""
MENTIONS = [
    one for one in FOUND if one.quoted and not any(word[0] != "-" for word in one.words[1 + (one.words[0] == "data") :])
]
"""In a sentence, the name of a command alone or with options that have no values."""
WHOLE = [one for one in FOUND if one not in MENTIONS]
PLANS = {"train", "sweep", "probe", "reproduce"}
"""Commands that have `--dry-run`."""
SHORTER = {
    "demo": ["--iterations", "1", "--seeds", "1"],
    "search": ["--trials", "1", "--iterations", "1", "--batch-size", "2", "--image-size", "32", "--device", "cpu"],
    "serve": ["--port", "0"],
    "data fetch": ["--archive", "pacs.zip"],  # in place of a download
}
"""What makes a command short: for a value that is given twice, the last one counts."""
SLOW = {"export", "reproduce domainbed", "sweep benchmarks/systems.yaml"}
"""Beginnings of commands that take seconds for the smallest network."""
FINDS = {"figures", "data check", "watch"}
"""Commands whose exit code is 1 if runs or images are missing, or look different, as they do here."""
PARSED = {"--storage": "needs a database", "--ray": "starts Ray"}
"""Options that keep a command from being run here, and why: it is only parsed."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, mini_dataset: Dataset) -> Iterator[Path]:
    """A folder that has everything the commands name, and a hub with a model."""
    folder = tmp_path_factory.mktemp("documented")
    with pytest.MonkeyPatch.context() as patch, serve_hub(patch), forgotten():
        make(folder, mini_dataset, patch)
        patch.setattr("medic.cli.demo.EXECUTOR", "here")
        patch.setattr("medic.deploy.service.server.run", lambda app, listening, ready: (ready(), listening.close()))
        with chdir(folder):
            assert main(["push", "model", NAME]) == 0
            yield folder


def is_slow(command: Command) -> bool:
    return " ".join(command.words).startswith(tuple(SLOW))


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.slow] * is_slow(one), id=str(one)) for one in WHOLE]
)
def test_a_command_runs(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = resolve(command)
    name = " ".join(words[:2]) if words[0] == "data" else words[0]
    if PARSED.keys() & set(words):
        make_parser(words[0]).parse_args(canonical(words[1:]))
        return
    plans = words[0] in PLANS and not {"--help", "--list", "--dry-run"} & set(words)
    further = ["--dry-run"] if plans else SHORTER.get(name, [])
    if "--name" in words:  # a run of this name exists, for the commands that follow
        further = [*further, "--output", "planned"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.jpg\n")))
    clear(words)
    code = main([*words, *further])
    assert code in ((0, 1) if name in FINDS else (0,))


SCRIPTS = ("CONTRIBUTING.md", "docs/data.md", "docs/design.md", "docs/tables.md", "docs/use.md")
"""Pages whose Python blocks are executed here. Other test modules execute the blocks of all other pages."""
ELSEWHERE = ("README.md", "docs/frameworks.md", "docs/gallery.md", "docs/python.md", "docs/training.md")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page == "docs/use.md")) for page in SCRIPTS]
)
def test_python_blocks_run(page: str, place: Path) -> None:
    names: dict[str, object] = {}
    with forgotten():
        for language, text in blocks(page):
            assert language == "python"
            exec(compile(text, page, "exec"), names)
    BENCHMARKS.pop("mine", None)  # from the page on data


def test_every_page_with_python_is_executed() -> None:
    pages = {page for page in PAGES if any(block.language == "python" for block in blocks(page))}
    folders = {page for page in pages if page.startswith(("docs/tutorials/", "docs/concepts/"))}
    assert pages - folders == {*SCRIPTS, *ELSEWHERE}


def test_commands_are_found() -> None:
    """A page whose blocks look otherwise would leave its commands untested."""
    pages = {page: sum(not one.quoted for one in commands(page)) for page in PAGES}
    assert sum(pages.values()) >= 140
    empty = {str(page) for page, count in pages.items() if not count}
    assert not empty & {
        "README.md",
        "docs/index.md",
        *(f"docs/{name}.md" for name in ("training", "use", "sweeps", "data")),
    }


def test_a_wrong_command_fails(place: Path) -> None:
    misspelled = "train --dataset digits --target street --method vrex --hparams wieght=1 --dry-run"
    for line in (misspelled, "reproduce pacs-resnet5", "sweep --span method=erm,medic+++ --dry-run"):
        assert main(line.split()) == 2


@pytest.mark.parametrize("command", MENTIONS, ids=str)
def test_a_mention_names_what_exists(command: Command) -> None:
    name, *options = command.words
    assert name in COMMANDS
    assert set(options) - {"check", "fetch", "--help"} <= make_parser(name)._option_string_actions.keys()
