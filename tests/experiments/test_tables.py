"""Selection and tables: golden records, standard errors, formats, and where a cell comes from."""

import csv
import io
import json
import time

import pytest

import medic
from medic.cli import main
from medic.errors import MedicError
from medic.experiments import selection
from medic.experiments.comparison import compare
from medic.experiments.paper import PaperTable, mismatch, paper_tables, published
from medic.experiments.results import collect
from medic.experiments.tables import Metric, find_row, tabulate
from medic.report.formats import entry

DOMAINS = ("a", "b", "c")


def record(step, target, out, inside=None, acc=None, **values):
    """An evaluation with `target` (in, out) accuracies of domain 0, and those of validation of the others."""
    given = {f"env{i + 1}_out_acc": value for i, value in enumerate(out)}
    given |= {f"env{i + 1}_in_acc": value for i, value in enumerate(inside or out)}
    mean = sum(out) / len(out) if acc is None else acc
    return {
        "iteration": step, "step": step, "env0_in_acc": target[0], "env0_out_acc": target[1], **given,
        "validation": {"acc": mean}, "target": {"acc": target[0]}, **values,
    }  # fmt: skip


def shown(records):
    return [selection.shown(one, [0]) for one in records]


class TestGoldenRecords:
    """The checks that DomainBed's protocol asks for."""

    def test_training_domain_validation(self):
        records = [record(0, (0.1, 0.2), (0.6, 0.7)), record(1, (0.3, 0.4), (0.7, 0.8))]
        chosen = selection.by_domains([shown(records)])
        assert (chosen.record, chosen.value) == (1, pytest.approx(0.75))
        assert records[chosen.record]["env0_in_acc"] == 0.3

    def test_oracle_takes_the_last_step(self):
        records = [record(0, (0.75, 0.70), (0.5, 0.5)), record(1, (0.65, 0.60), (0.5, 0.5))]
        chosen = selection.by_oracle([records], 0)
        assert (chosen.record, chosen.value) == (1, 0.60)
        assert records[chosen.record]["env0_in_acc"] == 0.65

    def test_leave_one_domain_out(self):
        single = [record(0, (0.1, 0.1), (0.9, 0.9))]
        pairs = {1: [record(0, (0, 0), (0, 0), (0.5, 0))], 2: [record(0, (0, 0), (0, 0), (0, 0.6))]}
        chosen = selection.by_leaving_out([shown(single)], [pairs], 2)
        assert chosen.value == pytest.approx(0.55)
        assert single[chosen.record]["env0_in_acc"] == 0.1
        del pairs[2]
        assert selection.by_leaving_out([shown(single)], [pairs], 2) is None

    def test_ties_do_not_look_at_the_target(self):
        better, worse = (record(0, (value, value), (0.5, 0.5)) for value in (0.9, 0.1))
        for runs in ([[better], [worse]], [[worse], [better]]):
            # Across draws the last wins, as DomainBed's stable sort has it; within a run the first.
            assert selection.by_validation([shown(run) for run in runs]).run == 1
        assert selection.select(shown([better, worse])) == selection.select(shown([worse, better])) == 0

    def test_what_is_no_number_is_worst(self):
        runs = [[record(0, (0, 0), (0.1, 0.1))], [record(0, (0, 0), (float("nan"),) * 2)]]
        assert selection.by_domains([shown(run) for run in runs]).run == 0

    def test_honest_rules_see_no_target(self):
        assert (
            not {"target", "targets", "source", "env0_in_acc", "env0_out_acc"}
            & selection.shown(record(0, (0.1, 0.2), (0.6, 0.7), targets={}, source={}), [0]).keys()
        )


def write_run(folder, name, method, domain, seed, values, commit="c0", images="i0", draw=0, **settings):
    """A finished run with an evaluation per value, the best on validation second to last."""
    path = folder / name
    path.mkdir(parents=True)
    hparams = {
        "method": method, "dataset": "pacs", "backbone": "resnet50", "target": [domain], "known": ["k"] * 6,
        "sources": [d for d in DOMAINS if d != domain], "seed": seed, "trial_seed": seed, "validation": "cell",
        "hparams_seed": draw, **settings,
    }  # fmt: skip
    args = {"test_envs": [DOMAINS.index(domain)], "hparams_seed": draw, "seed": seed}
    records = [
        {
            "iteration": step, "step": step, "step_time": 0.1, "args": args, "hparams": hparams,
            "validation": {"acc": 0.5 - abs(step - (len(values) - 2)) / 10},
            "target": {"acc": value, "oscr": value / 2}, "targets": {domain: {"acc": value}},
            **{f"env{i}_{part}_acc": value for i in range(3) for part in ("in", "out")},
        }
        for step, value in enumerate(values)
    ]  # fmt: skip
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (path / "environment.json").write_text(json.dumps({"commit": commit, "images": images, "weights": "w"}))
    (path / "config.yaml").write_text("")
    (path / "done").write_text("")
    return path


@pytest.fixture
def folder(tmp_path):
    for seed, value in enumerate((0.84, 0.85, 0.86)):
        write_run(tmp_path, f"erm-a-{seed}", "erm", "a", seed, (value, 0.1))
        write_run(tmp_path, f"erm-b-{seed}", "erm", "b", seed, (value - 0.1, 0.1))
        write_run(tmp_path, f"medic-a-{seed}", "medic++", "a", seed, (value + 0.02 + seed / 100, 0.1))
    return tmp_path


def test_mean_and_standard_error(folder):
    table = tabulate(collect([folder]).results)
    cell = find_row(table, "erm").cells["a"]
    assert cell.mean(Metric("acc")) == pytest.approx(85.0)
    assert cell.error(Metric("acc")) == pytest.approx(0.4714, abs=1e-4)
    assert entry(table, find_row(table, "erm"), "Avg", "Acc").mean == pytest.approx(80.0)
    assert entry(table, find_row(table, "medic++"), "Avg", "Acc").mean is None  # b is missing


def test_the_selected_evaluation_counts(folder):
    table = tabulate(collect([folder]).results, "last")
    assert find_row(table, "erm").cells["a"].mean(Metric("acc")) == pytest.approx(10.0)


def test_formats(folder, capsys):
    shown = {}
    for form in ("text", "markdown", "latex", "csv", "json"):
        assert main(["table", str(folder), "--format", form]) == 0
        shown[form] = capsys.readouterr().out
    assert "85.0 ± 0.5" in shown["text"]
    assert "–" in shown["text"].splitlines()[3]  # the missing cell
    assert "| erm | 85.0 ± 0.5 | 75.0 ± 0.5 | 80.0 |" in shown["markdown"]
    assert r"erm & 85.0 $\pm$ 0.5 & 42.5 $\pm$ 0.2 &" in shown["latex"]
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert [row["mean"] for row in rows if (row["row"], row["target"], row["metric"]) == ("medic++", "b", "Acc")] == [
        ""
    ]
    cells = json.loads(shown["json"])["cells"]
    assert len(cells[0]["runs"]) == 3


def test_rows_are_told_apart_by_what_they_differ_in(folder):
    write_run(folder, "more", "erm", "a", 0, (0.5, 0.5), lr=0.1)
    labels = [row.label for row in tabulate(collect([folder]).results).rows]
    assert labels == ["erm: lr 0.1", "erm: lr –", "medic++"]


def test_draws_compete_by_validation(tmp_path):
    write_run(tmp_path, "d0", "erm", "a", 0, (0.9, 0.1), draw=0, lr=0.1)
    write_run(tmp_path, "d1", "erm", "a", 0, (0.3, 0.2, 0.1), draw=1, lr=0.2)
    table = tabulate(collect([tmp_path]).results)
    (row,) = table.rows
    # Both have the same best validation accuracy: the later draw wins, whatever the target says.
    assert row.cells["a"].values(Metric("acc")) == [pytest.approx(20.0)]


def test_other_images_or_commits_are_not_averaged_silently(folder, capsys):
    assert main(["table", str(folder)]) == 0
    assert "note" not in capsys.readouterr().out
    write_run(folder, "other", "erm", "c", 0, (0.5, 0.5), commit="c1", images="i1")
    assert main(["table", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "of 2 lists of images" in said
    assert "of 2 commits" in said


def test_records_that_disagree(folder):
    write_run(folder, "again", "erm", "a", 0, (0.5, 0.4))
    with pytest.raises(MedicError, match=r"same settings and other results: move one"):
        tabulate(collect([folder]).results)


def test_half_written_damaged_and_foreign_folders(folder, capsys):
    (folder / "half").mkdir()
    (folder / "half" / "config.yaml").write_text("")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("hello")
    damaged = write_run(folder, "damaged", "erm", "c", 0, (0.5,))
    (damaged / "results.jsonl").write_text('{"half a rec')
    assert main(["table", str(folder)]) == 1
    said = capsys.readouterr()
    assert "1 run is not finished" in said.err
    assert "damaged is left out: its results.jsonl is damaged" in said.err
    assert "85.0 ± 0.5" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "folder nowhere does not exist"),
        (["{folder}", "--selection", "best"], "unknown selection 'best'"),
        (["{folder}", "--format", "xml"], "unknown format 'xml'"),
        (["{folder}", "--paper", "pacs"], "unknown table of the paper 'pacs'"),
        (["{folder}", "--explain", "erm", "d"], "unknown target domain 'd'"),
        (["{folder}", "--compare", "erm", "coral"], "row 'coral' is not one"),
        (["{empty}"], "no finished runs"),
    ],
)
def test_mistakes_are_named(folder, tmp_path_factory, capsys, arguments, message):
    places = {"folder": folder, "empty": tmp_path_factory.mktemp("empty")}
    assert main(["table", *(part.format(**places) for part in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_paired_comparison(folder):
    """Differences 2, 3 and 4 points: mean 3, deviation 1, error 1/√3, t = 3√3 with 2 degrees of freedom."""
    table = tabulate(collect([folder]).results)
    found = compare(find_row(table, "erm"), find_row(table, "medic++"), "Acc", Metric("acc"), ["a", "b"])
    assert found.pairs == 3
    assert found.difference == pytest.approx(3)
    assert (found.low, found.high) == (pytest.approx(3 - 2.4841, abs=1e-3), pytest.approx(3 + 2.4841, abs=1e-3))
    assert found.p == pytest.approx(0.03510, abs=1e-4)


def test_from_a_cell_to_its_runs(folder, capsys):
    assert main(["table", str(folder), "--explain", "erm", "a"]) == 0
    said = capsys.readouterr().out
    for part in ("erm-a-0", "erm-a-2", "c0", "i0", "validation"):
        assert part in said
    assert "erm-b" not in said


class TestThePapersNumbers:
    def test_all_are_there(self):
        assert len(published()) == 1128
        assert len(paper_tables()) == 12
        table = PaperTable("pacs-resnet50")
        assert table.metrics == ("Acc", "H-score", "OSCR")
        assert table.value("Acc", "MEDIC++", "Photo") is not None
        assert table.value("Acc", "MEDIC++", "Moon") is None

    def test_beside_ours(self, tmp_path, capsys):
        for target in ("photo", "art_painting"):
            settings = {"target": [target], "sources": ["x", "y"]}
            write_run(tmp_path, target, "erm", "a", 0, (0.8, 0.1), **settings)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        published_value = PaperTable("pacs-resnet50").value("Acc", "ERM", "Photo")
        assert f"80.0 ({published_value:.1f}, {80 - published_value:+.1f})" in capsys.readouterr().out

    def test_no_difference_between_unlike_things(self, tmp_path, capsys):
        write_run(tmp_path, "x", "erm", "a", 0, (0.8, 0.1), target=["photo"], backbone="tf_efficientnet_lite0")
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        assert ", backbone)" in capsys.readouterr().out
        settings = {"dataset": "pacs", "backbone": "resnet50", "known": ["k"] * 6, "validation": "cell"}
        assert mismatch("pacs-resnet50", settings, "w") is None
        assert mismatch("pacs-resnet50", settings, None).word == "weights"
        assert mismatch("pacs-resnet50", {**settings, "known": ["k"] * 5}, "w").word == "classes"


def test_runs_as_a_frame(folder):
    pytest.importorskip("pandas")
    frame = medic.load_runs(folder)
    assert len(frame) == 9
    assert frame[frame.method == "erm"]["target/acc"].max() == pytest.approx(0.86)
    assert len(medic.load_runs(folder, every=True)) == 18


def test_five_thousand_runs(tmp_path):
    """With the records of seven evaluations each; a loose bound, the machines are shared."""
    methods = [f"m{number}" for number in range(50)]
    for method in methods:
        for target in DOMAINS:
            for seed in range(4):
                write_run(tmp_path, f"{method}-{target}-{seed}", method, target, seed, (0.5,) * 7)
    began = time.perf_counter()
    table = tabulate(collect([tmp_path]).results)
    assert len(table.rows) == 50
    assert (time.perf_counter() - began) * 5000 / 600 < 30
