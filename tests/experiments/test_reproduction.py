"""The paper's tables by name: every one can be planned, and two are made."""

import pytest

from medic.cli import main
from medic.experiments.config import RunConfig
from medic.experiments.paper import PaperTable, paper_tables
from medic.experiments.reproduction import NAMES, Asked, reproduction
from medic.experiments.sweeps import Planner
from medic.methods import METHODS
from medic.report.against import column_title


@pytest.fixture(scope="module")
def planner():
    return Planner()


@pytest.mark.parametrize("name", NAMES)
def test_every_quick_table_can_be_run(name, planner):
    table = reproduction(name, quick=True)
    cells = table.configs(Asked(seeds=(0, 1)))
    assert {title for _, title in cells} == set(table.columns)
    for (label, title), configs in cells.items():
        jobs = planner.jobs(configs)
        assert len(jobs) == 2 * len(table.columns[title]), (label, title)


@pytest.mark.parametrize("name", paper_tables())
def test_rows_and_columns_are_the_papers(name):
    table, paper = reproduction(name), PaperTable(name)
    assert {(one.paper, one.variant) for one in table.lines} == set(paper.methods)
    titles = {column_title(column, paper.columns) for column in table.columns}
    assert titles == set(paper.columns) - {"Avg"}
    assert set(table.metrics) == set(paper.metrics)
    for one in table.lines:
        assert one.settings is None or METHODS[one.settings["method"]].paper == one.paper


def test_the_authors_settings():
    (first, *_) = reproduction("pacs-resnet50").configs(Asked(methods=["medic++"]))["MEDIC++", "Sketch"]
    assert first == RunConfig(
        dataset="pacs",
        backbone="resnet50",
        iterations=6000,
        method="medic++",
        sampling="probe",
        target="sketch",
        seed=0,
    )


def run(capsys, tmp_path, *arguments):
    options = [
        "--quick",
        "--executor",
        "here",
        "--quiet",
        "--output",
        str(tmp_path),
        "--device",
        "cpu",
        "--track",
        "none",
    ]
    code = main(["reproduce", *arguments, *options])
    return code, capsys.readouterr()


@pytest.mark.parametrize(("name", "rows"), [("paradigms", 14), ("tasks-per-step", 7)])
def test_a_table_from_nothing(capsys, tmp_path, name, rows):
    """As CI does: in one process, 20 iterations a run, one of the columns."""
    short = ("--iterations", "20", "--evaluate-every", "20", "--batch-size", "4")
    code, said = run(capsys, tmp_path, name, "--only", "street", *short)
    assert code == 0, said.err
    lines = said.out.splitlines()
    assert lines[1] == "Acc"
    assert len(lines) == 1 + 2 * (rows + 2)
    assert "–" not in "".join(line.split(")")[-1] for line in lines[3 : 3 + rows])


def test_a_part_of_it_and_what_is_missing(capsys, tmp_path):
    options = ("partial-classes", "--iterations", "2", "--only", "street", "--batch-size", "2")
    assert run(capsys, tmp_path, *options, "--methods", "erm")[0] == 0
    code, said = run(capsys, tmp_path, *options, "--methods", "erm", "fish", "--dry-run")
    assert code == 0
    assert "2 runs, 1 of them there, 1 to do" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which table?"),
        (["pacs"], "unknown table of the paper 'pacs'"),
        (["paradigms", "--only", "moon"], "unknown column of paradigms 'moon'"),
        (["paradigms", "--methods", "coral"], "unknown method of paradigms 'coral'"),
        (["paradigms", "--format", "xml"], "unknown format 'xml'"),
    ],
)
def test_mistakes_are_named(capsys, tmp_path, arguments, message):
    code, said = run(capsys, tmp_path, *arguments)
    assert code == 2
    assert message in said.err


def test_the_list(capsys):
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    for name in NAMES:
        assert name in said
