"""The paper's tables by name: every one can be planned, and two are made."""

import csv
import io
import json
from functools import cache

import pytest

from medic.cli import main
from medic.data import benchmark
from medic.errors import MedicError
from medic.methods import METHODS
from medic.runs.recipe import make_recipe, open_benchmark
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner
from medic.tables import paper_tables
from medic.tables.paper import published
from medic.tables.paper_tables import NAMES, reproduction
from tests.data.pictures import picture


@pytest.fixture(scope="module")
def planner():
    return Planner()


@pytest.mark.parametrize("name", NAMES)
def test_every_quick_table_can_be_run(name, planner):
    table = reproduction(name, quick=True)
    cells = table.runs(seeds=(0, 1))
    assert {title for _, title in cells} == set(table.columns)
    for (label, title), runs in cells.items():
        jobs = planner.jobs(runs)
        assert len(jobs) == 2 * len(table.columns[title]), (label, title)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Every benchmark of the paper's tables, an image per class and domain; CMNIST needs none to be planned."""
    root = tmp_path_factory.mktemp("root")
    picture(0, (8, 8)).save(root / "one.png")
    image = (root / "one.png").read_bytes()
    for name in ("pacs", "office-home", "vlcs", "terra-incognita", "domainnet", "digits-dg"):
        bench = benchmark(name)
        layout = next(layout for layout in bench.layouts if not layout.has_parts)
        for domain in bench.domains:
            for label in bench.classes or [f"class_{number:03}" for number in range(345)]:
                folder = root / layout.folders[0] / domain / label
                folder.mkdir(parents=True)
                (folder / "1.png").write_bytes(image)
    return root


@pytest.mark.parametrize("name", NAMES)
def test_every_table_can_be_run(name, root):
    opened = cache(lambda name: open_benchmark(benchmark(name), root, 0))
    for runs in reproduction(name).runs(settings={"root": str(root)}).values():
        for asked in runs:
            make_recipe(asked, lambda bench, *_: opened(bench.name))


@pytest.mark.parametrize("name", published())
def test_rows_and_columns_are_the_papers(name):
    table, paper = reproduction(name), published()[name]
    assert {(one.paper, one.variant) for one in table.lines} == {(cell.method, cell.variant) for cell in paper}
    assert set(table.columns) == {cell.column for cell in paper} - {"Avg"}
    assert {metric.title for metric in table.metrics} == {cell.metric for cell in paper}
    for one in table.lines:
        assert one.settings is None or METHODS[one.settings["method"]].paper == one.paper


def test_the_authors_settings():
    (first, *_) = reproduction("pacs-resnet50").runs(methods=["medic++"])["MEDIC++", "Sketch"]
    assert first == {
        "dataset": "pacs",
        "backbone": "resnet50",
        "iterations": 6000,
        "method": "medic++",
        "averaging": "none",
        "sampling": "probe",
        "target": "sketch",
        "seed": 0,
    }


SIZES = {"CMNIST": (2, 2)}
DEFAULTS = {"lr": 6e-6, "batch_size": 12, "augment": "domainbed", "iterations": 5000, "schedule": "constant"}
OWN = {"batch_size": 16, "augment": "medic", "schedule": "step", "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("column", "default", "own"),
    [
        ("CMNIST", {"lr": 2e-4, "batch_size": 32, "augment": "none"},
         {"lr": 4e-3, "iterations": 5000, "weight_decay": 1.25e-4, "augment": "none"}),
        ("PACS", {}, {"lr": 1.8e-3, "iterations": 5000, "class_groups": None}),
        ("VLCS", {}, {"lr": 9e-4, "iterations": 5000, "class_groups": None}),
        ("OfficeHome", {}, {"lr": 1.8e-3, "iterations": 5000, "class_groups": 10}),
        ("TerraIncognita", {}, {"lr": 9e-4, "iterations": 10000, "class_groups": 5}),
        ("DomainNet", {"batch_size": 18, "iterations": 15000}, {"lr": 9e-4, "iterations": 30000, "class_groups": 20}),
    ],
)  # fmt: skip
def test_the_settings_of_domainbed(root, column, default, own):
    """As the paper's section on implementation has them; a rate of SGD is ε·α·t, one of Adam ε·α."""
    table = reproduction("domainbed")
    opened = cache(lambda name: open_benchmark(benchmark(name), root, 0))
    assert table.rule == "domainbed"
    cells = table.runs(columns=[column], settings={"root": str(root)})
    for variant, wanted in (
        ("default hyper-parameters, no binary head", {**DEFAULTS, "objective": "ce", "optimizer": "adam", **default}),
        ("own hyper-parameters, with binary head", {**OWN, "objective": "ce+ova", **own}),
    ):
        for asked in cells[f"MEDIC++, {variant}", column]:
            found = make_recipe(asked, lambda bench, *_: opened(bench.name))[0].settings
            assert {name: found[name] for name in wanted} == {
                name: pytest.approx(value) if isinstance(value, float) else value for name, value in wanted.items()
            }
            assert tuple(found["steps"]) == SIZES.get(column, (3, 3, 3))


def test_domainnet_and_openness():
    for (label, _), (asked,) in reproduction("domainnet-resnet50").runs(columns=["real"]).items():
        assert (asked["iterations"], asked.get("batch_size")) == (30000, None)
        assert asked.get("class_groups") == (10 if label.startswith("MEDIC") else None)
    for (label, _), runs in reproduction("officehome-openness").runs().items():
        for asked in runs:
            assert asked["objective"] == "ce+ova"
            assert asked.get("class_groups") == (10 if label.startswith("MEDIC") or label.endswith("cw") else None)


def test_weights_are_for_backbones_that_begin_with_some():
    cells = reproduction("domainbed").runs(settings={"weights": "w"})
    assert {title: {asked.get("weights") for asked in runs} for (_, title), runs in cells.items()} == {
        title: {None if title == "CMNIST" else "w"} for title in reproduction("domainbed").columns
    }
    with pytest.raises(MedicError, match=r"digitsdg-convnet .*leave out --weights"):
        reproduction("digitsdg-convnet").runs(settings={"weights": "w"})


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


@pytest.fixture
def small(mini, monkeypatch):
    """Make quick tables on the benchmark of 400 images."""
    stage = paper_tables.BUILT_IN._replace(dataset=mini, backbone=benchmark(mini).backbone, split="mini-6-4")
    monkeypatch.setattr(paper_tables, "BUILT_IN", stage)


SHORT = ("--iterations", "1", "--evaluate-every", "1", "--batch-size", "2")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("name", "rows"), [("paradigms", 14), ("tasks-per-step", 7)])
def test_a_table_from_scratch(capsys, tmp_path, name, rows):
    """In one process, one of the columns."""
    code, said = run(capsys, tmp_path, name, "--only", "street", *SHORT)
    assert code == 0, said.err
    lines = said.out.splitlines()
    assert lines[1] == "Acc"
    assert len(lines) == 1 + 2 * (rows + 2)
    assert "–" not in "".join(line.split(")")[-1] for line in lines[3 : 3 + rows])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


class TestOneRun:
    """Two tables share one run."""

    OPTIONS = (*SHORT, "--only", "street", "--methods", "erm")

    @pytest.fixture
    def place(self, small, capsys, shared):
        """A folder with the run, which is trained once."""
        assert run(capsys, shared, "confidence-sketch", *self.OPTIONS)[0] == 0
        return shared

    def test_a_part_of_it_and_what_is_missing(self, capsys, place):
        code, said = run(capsys, place, "confidence-sketch", *self.OPTIONS, "fish", "--dry-run")
        assert code == 0
        assert "2 runs: 1 finished, 1 to do" in said.out

    def test_nothing_but_the_format(self, capsys, place):
        title = "confidence-sketch in small: its rows and metrics on the built-in digits, with a ConvNet"
        for form in ("json", "csv", "latex", "markdown"):
            code, said = run(capsys, place, "confidence-sketch", *self.OPTIONS, "--format", form)
            assert code == 0, said.err
            if form == "json":
                found = json.loads(said.out)
                assert (found["title"], found["cells"][0]["column"]) == (title, "street")
            elif form == "csv":
                assert [row["metric"] for row in csv.DictReader(io.StringIO(said.out))] == ["conf_p", "conf_n"]
            else:
                assert said.out.startswith(r"\begin{tabular}" if form == "latex" else f"{title}\n\n| conf_p")

    def test_tables_share_runs(self, capsys, place):
        _, said = run(capsys, place, "paradigms", *self.OPTIONS, "--dry-run")
        assert "3 runs: 1 finished, 2 to do" in said.out
        assert main(["table", str(place)]) == 0
        assert "street" in capsys.readouterr().out

    def test_a_failed_run_is_said(self, capsys, place, monkeypatch):
        monkeypatch.setattr("medic.sweeps.launch.launch", lambda jobs, *_: Schedule(jobs))
        (path,) = (file.parent for file in place.glob("*/done"))
        (path / "done").rename(path / "not done")
        (path / "error.json").write_text('{"reason": "a comet"}')
        code, said = run(capsys, place, "confidence-sketch", *self.OPTIONS)
        assert code == 1
        assert f"{path} failed: a comet" in said.err
        (path / "not done").rename(path / "done")

    def test_a_damaged_run_is_said(self, capsys, place):
        (path,) = place.glob("*/results.jsonl")
        content = path.read_text()
        path.write_text("{")
        code, said = run(capsys, place, "confidence-sketch", *self.OPTIONS)
        assert code == 1
        assert f"{path.parent} is left out: its results.jsonl is damaged; delete {path.parent}" in said.err
        assert "–" in said.out
        path.write_text(content)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "medic reproduce --list"),
        (["pacs"], "unknown table of the paper 'pacs'"),
        (["paradigms", "--only", "moon"], "unknown column 'moon' of paradigms"),
        (["paradigms", "--methods", "coral"], "unknown method 'coral' of paradigms"),
        (["paradigms", "--format", "xml"], "unknown format 'xml'"),
        (["partial-classes", "--target", "printed"], "--target would change the rows or columns of partial-classes"),
        (["partial-classes", "--method", "medic++"], "--method would change"),
        (["partial-classes", "--seed", "0"], "--methods, --only and --seeds"),
        (["single-domain", "--sources", "printed"], "--sources would change"),
        (["single-domain", "--dataset", "digits"], "--dataset would change"),
        (["parameter-sharing", "--head", "shared"], "--head would change"),
        (["partial-classes", "--split", "digits-6-4"], "--split would change"),
    ],
)
def test_mistakes_are_named(capsys, tmp_path, arguments, message):
    code, said = run(capsys, tmp_path, *arguments, "--dry-run")
    assert code == 2
    assert message in said.err


def test_the_list(capsys):
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    for name in NAMES:
        assert name in said
