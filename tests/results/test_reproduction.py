"""The paper's tables by name: every one can be planned, and two are made."""

import csv
import io
import json

import pytest

from medic.cli import main
from medic.config.protocols import PROTOCOLS
from medic.config.resolve import resolve
from medic.data import benchmark
from medic.errors import MedicError
from medic.methods import METHODS
from medic.results import paper_tables
from medic.results.paper import published
from medic.results.paper_tables import NAMES, reproduction
from medic.sweeps.schedule import Schedule
from medic.sweeps.sweep import Planner
from tests.data.trees import plant
from tests.messages import naming
from tests.pages import ROOT
from tests.small import shrink_backbones

PAGE = ROOT / "docs" / "tables.md"
BACKBONES = ("resnet50", "gfnet_h_ti", "convnet", "mnist-cnn")


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
    """Every benchmark of the paper's tables."""
    return plant(tmp_path_factory.mktemp("root"))


def plan(name, root, *options):
    """Plan a table on the command line, as a user would before training it."""
    return main(["reproduce", name, "--root", str(root), "--dry-run", "--output", str(root / "runs"), *options])


@pytest.mark.parametrize("name", NAMES)
def test_every_table_names_its_weights(name):
    """The file, its source and the preprocessing, as the page has them."""
    table = reproduction(name)
    lines = list(table.weights(table.runs()))
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    by_backbone = {row[1].strip(" `"): row for row in rows if row[1].strip(" `") in BACKBONES}
    assert len(by_backbone) == len(BACKBONES)
    for line in lines:
        backbone, rest = line.removeprefix("weights of ").split(": ", 1)
        tables, _, file, option, images = (cell.replace("`", "").strip() for cell in by_backbone[backbone])
        assert name in tables or tables == "all others"
        assert option in rest
        assert rest.startswith(file.replace("torchvision's ", ""))
        assert rest.endswith(images if images != "as above" else "std 0.229, 0.224, 0.225")


def test_a_dry_run_prints_the_weights(capsys):
    assert main(["reproduce", "pacs-resnet50", "--quick", "--methods", "erm", "--dry-run"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == (
        "weights of convnet: none, trained from scratch. "
        "Images: resized to 32 px; mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5"
    )


@pytest.mark.parametrize("backbone", ["tf_efficientnet_lite0", "resnet50.a1_in1k", "gcvit_base", "botnet50ts_256"])
def test_weights_of_other_backbones(backbone):
    table = reproduction("pacs-resnet50")
    (line,) = table.weights(table.runs(settings={"backbone": backbone, "image_size": 160}))
    named = {"tf_efficientnet_lite0": "--weights in1k", "resnet50.a1_in1k": "--weights a1_in1k"}
    assert named.get(backbone, "--weights FILE" if backbone == "gcvit_base" else "no weights in timm") in line
    assert "resized to 160 px" in line


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", NAMES)
def test_every_table_can_be_planned(name, protocol, root, monkeypatch, capsys):
    """Through the command line, with small networks of the same names."""
    shrink_backbones(monkeypatch)
    assert plan(name, root, "--protocol", protocol) == 0
    planned = {repr(run) for runs in reproduction(name, protocol=protocol).runs().values() for run in runs}
    assert f"{len(planned)} runs: 0 finished, {len(planned)} to do" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_table_can_be_planned_with_its_networks(name, root):
    assert plan(name, root) == 0


@pytest.mark.parametrize("name", published())
def test_rows_and_columns_are_the_papers(name):
    table, paper = reproduction(name), published()[name]
    assert {(one.paper, one.variant) for one in table.lines} == {(cell.method, cell.variant) for cell in paper}
    assert set(table.columns) == {cell.column for cell in paper} - {"Avg"}
    assert {metric.title for metric in table.metrics} == {cell.metric for cell in paper}
    for one in table.lines:
        method = one.settings["method"].removesuffix("-domainbed")
        assert METHODS[method].paper == ("Fish" if one.label == "Reptile, dw=yes cw=no (i)" else one.paper)


def test_the_settings_of_a_row():
    (first, *_) = reproduction("pacs-resnet50").runs(methods=["medic++"])["MEDIC++", "Sketch"]
    assert first == {
        "dataset": "pacs", "backbone": "resnet50", "protocol": "authors", "method": "medic++", "target": "sketch",
        "seed": 0,
    }  # fmt: skip


def test_reptile_over_domains_is_fish():
    """They have the same numbers in the paper, so they are one run."""
    (reptile,) = reproduction("paradigms").runs()["Reptile, dw=yes cw=no (i)", "Sketch"]
    (fish,) = reproduction("confidence-sketch").runs()["Fish", "Sketch"]
    assert reptile == fish


def test_mldg_over_classes_has_two_splits(root):
    runs = reproduction("officehome-openness").runs(settings={"root": str(root)})
    grid = resolve(runs["MLDG, cw", "10 known"][0]).grid
    assert (grid.splits, grid.sizes) == ({"domain": 1, "class": 2}, (1, 1))


def test_time_and_memory_are_of_the_same_images(root):
    """Of ERM too, and without the passes of adaptive sampling."""
    cells = reproduction("time-memory").runs(settings={"root": str(root)})
    plans = {label: resolve(settings) for (label, _), (settings,) in cells.items()}
    assert {plan.batch_size * plan.grid.tasks for plan in plans.values()} == {72}
    assert plans["MEDIC++, 9 steps"].batch_size == 8
    assert {plan.grid.sampling for plan in plans.values()} == {"random"}
    assert len(plans) == 10
    assert plans["ERM"].grid.tasks == 1


def test_draws_of_domainbed(root):
    """They replace the rates, decays and batch sizes of every row but the authors' own."""
    runs = reproduction("domainbed").runs(columns=["PACS"], settings={"root": str(root), "hparams_seed": 1})
    settings = {label: resolve(planned[0]).config.settings for (label, _), planned in runs.items()}
    assert settings["ERM"]["lr"] == pytest.approx(2.702893e-05)
    assert settings["ERM"]["batch_size"] == 3 * 39
    assert settings["MEDIC++, default hyper-parameters, no binary head"]["lr"] == pytest.approx(2.702893e-05)
    own = settings["MEDIC++, own hyper-parameters, with binary head"]
    assert (own["lr"], own["batch_size"], own["hparams_seed"]) == (1.8e-3, 16, 0)
    cells = reproduction("domainbed").runs(columns=["PACS"], settings={"lr": 1e-4})
    assert {run["lr"] for runs in cells.values() for run in runs} == {1e-4}


def test_weights_are_for_backbones_that_begin_with_some():
    cells = reproduction("domainbed").runs(settings={"weights": "w"})
    assert {title: {settings.get("weights") for settings in runs} for (_, title), runs in cells.items()} == {
        title: {None if title == "CMNIST" else "w"} for title in reproduction("domainbed").columns
    }
    with pytest.raises(MedicError, match=r"digitsdg-convnet .*omit --weights"):
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
    assert len(lines) == 1 + 2 * (rows + 2) + 1
    assert lines[-1].startswith("note: OSCR computed with ")
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
        title = "quick version of confidence-sketch: the same rows and metrics on the built-in digits with a ConvNet"
        for form in ("json", "csv", "latex", "markdown"):
            code, said = run(capsys, place, "confidence-sketch", *self.OPTIONS, "--format", form)
            assert code == 0, said.err
            if form == "json":
                table = json.loads(said.out)
                assert (table["title"], table["cells"][0]["column"]) == (title, "street")
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
        assert f"{path.parent} is left out: its results.jsonl is damaged: delete {path.parent}" in said.err
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
        (["single-domain", "--dataset", "pacs"], "--dataset would change"),
        (["parameter-sharing", "--head", "shared"], "--head would change"),
        (["partial-classes", "--split", "digits-6-4"], "--split would change"),
    ],
)
def test_mistakes_are_named(capsys, tmp_path, arguments, message):
    code, said = run(capsys, tmp_path, *arguments, "--dry-run")
    assert code == 2
    assert message in said.err


@pytest.mark.parametrize(("table", "name", "title"), [
    ("pacs-resnet50", "sketch", "Sketch"), ("pacs-resnet50", "art_painting", "Art"), ("pacs-resnet50", "Art", "Art"),
    ("single-domain", "art_painting", "Art"), ("domainbed", "officehome", "OfficeHome"),
    ("domainnet-resnet50", "infograph", "info"),
])  # fmt: skip
def test_a_column_is_found_by_its_domain_and_in_any_case(table, name, title):
    assert reproduction(table).column(name) == title


def test_a_column_of_several_targets_is_not_one_of_them():
    with pytest.raises(MedicError, match=naming("'sketch' domainbed")):
        reproduction("domainbed").column("sketch")


def test_settings_that_a_table_has_anyway_are_accepted():
    table = reproduction("time-memory")
    assert table.runs(settings={"dataset": "pacs"}) == table.runs()
    with pytest.raises(MedicError, match="--dataset would change"):
        table.runs(settings={"dataset": "vlcs"})
    with pytest.raises(MedicError, match="--dataset would change"):  # of one column alone
        reproduction("domainbed").runs(settings={"dataset": "pacs"})


def test_the_list(capsys):
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    for name in NAMES:
        assert name in said
