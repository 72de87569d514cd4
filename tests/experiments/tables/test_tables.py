"""Selection and tables: golden records, standard errors, formats, and where a cell comes from."""

import csv
import io
import json
import re
import time
from types import SimpleNamespace

import pytest

import medic
from medic.cli import main
from medic.data.dataset import Built
from medic.errors import MedicError
from medic.experiments.config import RunConfig
from medic.experiments.resolve import resolve
from medic.experiments.results import collect
from medic.experiments.tables.cells import Metric
from medic.experiments.tables.comparison import compare
from medic.experiments.tables.paper import PaperTable, paper_tables, published
from medic.experiments.tables.paper_tables import reproduction
from medic.experiments.tables.reproduction import Asked
from medic.experiments.tables.table import find_row, tabulate
from medic.report.against import AgainstPaper
from medic.report.formats import entry, written

DOMAINS = ("a", "b", "c")


def write_run(
    folder, name, method, domain, seed, values, commit="c0", images="i0", weights="w", counts=None, draw=0, accs=None,
    **settings,
):  # fmt: skip
    """A finished run with an evaluation per value, the best on validation second to last.

    `accs` has, by domain, its accuracies; without it they are the values.
    """
    path = folder / name
    path.mkdir(parents=True)
    hparams = {
        "method": method, "dataset": "pacs", "backbone": "resnet50", "target": [domain], "known": ["k"] * 6,
        "sources": [d for d in DOMAINS if d != domain], "seed": seed, "trial_seed": seed, "validation": "cell",
        "hparams_seed": draw, **settings,
    }  # fmt: skip
    targets = [target for target in hparams["target"] if target in DOMAINS] or [domain]
    args = {"test_envs": [DOMAINS.index(target) for target in targets], "hparams_seed": draw, "seed": seed}
    records = [
        {
            "iteration": step, "step": step, "step_time": 0.1, "lr": 0.01, "args": args, "hparams": hparams,
            "validation": {"acc": 0.5 - abs(step - (len(values) - 2)) / 10},
            "target": {"acc": value, "oscr": value / 2, "hscore": value / 4, "hscore/oracle-10": value / 3},
            "targets": {domain: {"acc": value}},
            **{f"env{i}_{part}_acc": (accs or {}).get(name, value) for i, name in enumerate(DOMAINS)
               for part in ("in", "out")},
        }
        for step, value in enumerate(values)
    ]  # fmt: skip
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    environment = {"commit": commit, "images": images, "weights": weights, "counts": counts}
    (path / "environment.json").write_text(json.dumps(environment))
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
    assert r"erm & 85.0 $\pm$ 0.5 & 21.2 $\pm$ 0.1 & 42.5 $\pm$ 0.2 &" in shown["latex"]
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
    write_run(folder, "others", "medic++", "a", 0, (0.5, 0.5), weights="v")
    labels = [row.label for row in tabulate(collect([folder]).results).rows]
    assert labels[2:] == ["medic++: weights v", "medic++: weights w"]


def test_labels_have_one_order_and_nothing_that_follows(tmp_path):
    plain = {"head": "close", "objective": "ce", "score": "cls"}
    ova = {"ova_scale": 0.5, "score": "bcls", "objective": "ce+ova", "head": "separate"}
    rows = [
        ("erm", {**plain, "lr": 0.06}), ("erm", {"lr": 0.1, **plain}), ("erm", {**ova, "lr": 0.06}),
        ("fish", {"lr": 0.1, "class_splits": 2, "steps": [3, 3], "batch_size": 24}),
        ("fish", {"steps": [3, 3, 3], "batch_size": 16, "class_splits": 3, "lr": 0.2}),
    ]  # fmt: skip
    for number, (method, settings) in enumerate(rows):
        write_run(tmp_path, f"run-{number}", method, "a", 0, (0.5, 0.5), **settings)
    assert [row.label for row in tabulate(collect([tmp_path]).results).rows] == [
        "erm: objective ce+ova, lr 0.06", "erm: objective ce, lr 0.06", "erm: objective ce, lr 0.1",
        "fish: lr 0.1, class_splits 2", "fish: lr 0.2, class_splits 3",
    ]  # fmt: skip
    write_run(tmp_path, "shared", "erm", "a", 0, (0.5, 0.5), **{**ova, "lr": 0.06, "head": "shared"})
    labels = [row.label for row in tabulate(collect([tmp_path]).results).rows]
    assert labels[2:4] == [f"erm: head {head}, objective ce+ova, lr 0.06" for head in ("separate", "shared")]


def test_how_many_seeds_a_mean_is_over(folder, capsys):
    said = "means are over 3 seeds, ± their standard error"
    assert tabulate(collect([folder]).results).notes == (said,)
    write_run(folder, "medic-b-0", "medic++", "b", 0, (0.5, 0.5))
    assert tabulate(collect([folder]).results).notes == (f"{said}; over fewer: medic++, b (1)",)
    assert tabulate(collect([folder / "erm-a-0"]).results).notes == ()
    assert main(["table", str(folder), "--explain", "medic++", "b"]) == 0
    assert "medic++, b: 1 run, of each" in capsys.readouterr().out


def test_draws_compete_by_validation(tmp_path):
    write_run(tmp_path, "d0", "erm", "a", 0, (0.9, 0.1), draw=0, lr=0.1)
    write_run(tmp_path, "d1", "erm", "a", 0, (0.3, 0.2, 0.1), draw=1, lr=0.2)
    table = tabulate(collect([tmp_path]).results)
    (row,) = table.rows
    # Both have the same best validation accuracy: the later draw wins, whatever the target says.
    assert row.cells["a"].values(Metric("acc")) == [pytest.approx(20.0)]
    # A choice of the user's is one more, and no run of a draw.
    write_run(tmp_path, "mine", "erm", "a", 0, (0.5,), draw=0, lr=0.3)
    table = tabulate(collect([tmp_path]).results)
    assert [len(row.cells["a"].picks) for row in table.rows] == [1]


class TestLeavingOut:
    @pytest.fixture
    def runs(self, tmp_path):
        """Target a: by validation the second draw is best, but sources that it has not seen it meets worse."""
        for draw, value, met in ((0, 0.9, 0.6), (1, 0.3, 0.5)):
            settings = {"draw": draw, "lr": 0.1 * (draw + 1)}
            write_run(tmp_path, f"a-{draw}", "erm", "a", 0, (value, 0.1, 0.1)[: draw + 2], steps=[1, 1], **settings)
            for other in "bc":
                pair = {"target": ["a", other], "sources": [d for d in DOMAINS if d not in ("a", other)]}
                write_run(tmp_path, f"a{other}-{draw}", "erm", "a", 0, (0, 0, 0)[: draw + 2], accs={other: met},
                          steps=[1], **pair, **settings)  # fmt: skip
        return tmp_path

    def test_the_row_has_the_runs_with_two_targets(self, runs):
        """Theirs are fewer sources, so that settings which follow the number of these differ."""
        table = tabulate(collect([runs]).results, "leave-one-out")
        assert (len(table.rows), table.columns) == (1, ("a",))
        (pick,) = table.rows[0].cells["a"].picks
        assert pick.result.path.name == "a-0"
        assert table.notes == ("of each run the evaluation that 'leave-one-out' selects",)

    def test_the_runs_that_decided_are_listed(self, runs, capsys):
        arguments = ["table", str(runs), "--selection", "leave-one-out", "--explain", "erm", "a"]
        assert main([*arguments, "--format", "json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["decided by"], found["selection"]) == ("ab-0, ac-0", "leave-one-out")
        assert main(arguments) == 0
        assert "ab-0, ac-0" in capsys.readouterr().out

    def test_without_one_of_them_there_is_no_value(self, runs):
        results = [result for result in collect([runs]).results if result.path.name not in ("ab-0", "ac-1")]
        with pytest.raises(MedicError, match="needs, beside every run, one for each source domain"):
            tabulate(results, "leave-one-out")

    def test_other_rules_leave_them_out(self, runs):
        table = tabulate(collect([runs]).results)
        assert (len(table.rows), table.columns) == (1, ("a",))
        assert table.notes[0].startswith("4 runs with two targets are left out")
        assert table.rows[0].cells["a"].picks[0].result.path.name == "a-1"


def test_other_images_or_commits_are_not_averaged_silently(folder, capsys):
    assert main(["table", str(folder)]) == 0
    assert "these runs are of" not in capsys.readouterr().out
    write_run(folder, "other", "erm", "c", 0, (0.5, 0.5), commit="c1", images="i1")
    assert main(["table", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "of 2 lists of images" in said
    assert "of 2 commits" in said


def test_records_that_disagree(folder):
    write_run(folder, "again", "erm", "a", 0, (0.5, 0.4))
    with pytest.raises(MedicError, match=r"same settings and other results: move one"):
        tabulate(collect([folder]).results)


@pytest.mark.parametrize(
    ("values", "images", "message"),
    [((0.2, 0.1), "i0", "other results: move"), ((0.84, 0.1), "i0", None), ((0.8, 0.1), "i1", r"in images \(i0, i1\)")],
)
def test_all_records_are_compared(folder, values, images, message):
    """The last one alone may agree by chance."""
    write_run(folder, "f", "erm", "a", 0, values, images=images)
    results = collect([folder]).results
    if message is None:
        assert len(tabulate(results).rows[0].cells["a"].picks) == 3
    else:
        with pytest.raises(MedicError, match=message):
            tabulate(results)


def test_what_is_missing_is_shown(folder, capsys):
    """A target and a method of which no run has come to its end."""
    for name, settings, file in (
        ("later", {"target": ["c"], "sources": ["a", "b"], "method": "erm"}, ".lock"),
        ("failed", {"target": ["a"], "sources": ["b", "c"], "method": "coral"}, "error.json"),
    ):
        path = folder / name
        path.mkdir()
        asked = RunConfig(dataset="pacs", backbone="resnet50", known=["k"] * 6, seed=0, trial_seed=0, **settings)
        (path / "config.yaml").write_text(asked.to_yaml())
        (path / "environment.json").write_text('{"weights": "w"}')
        (path / file).write_text("{}")
    assert main(["table", str(folder), "--metrics", "acc"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1:5] == [
        "                  a           b  c  Avg",
        "coral             –           –  –    –",
        "erm      85.0 ± 0.5  75.0 ± 0.5  –    –",
        "medic++  88.0 ± 0.9           –  –    –",
    ]
    assert "1 run is not finished" in said.err


def test_a_comparison_says_what_a_table_does(folder, capsys):
    write_run(folder, "other", "erm", "b", 3, (0.5, 0.5), commit="c1")
    assert main(["table", str(folder), "--compare", "erm", "medic++"]) == 0
    assert "these runs are of 2 commits" in capsys.readouterr().err


def test_half_written_damaged_and_foreign_folders(folder, capsys):
    (folder / "half").mkdir()
    (folder / "half" / "config.yaml").write_text("")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("hello")
    damaged = write_run(folder, "damaged", "erm", "c", 0, (0.5,))
    for content in (b'{"half a rec', b"\xff\xfe\x00"):
        (damaged / "results.jsonl").write_bytes(content)
        assert main(["table", str(folder)]) == 1
        said = capsys.readouterr()
        assert "1 run is not finished" in said.err
        assert f"its results.jsonl is damaged; delete {damaged} and run it again" in said.err
    (damaged / "results.jsonl").write_text('{"speed": 9}')
    (damaged / "environment.json").write_text("[]")
    assert main(["table", str(folder)]) == 1
    said = capsys.readouterr()
    assert f"{damaged} is left out: its results.jsonl is not of a run of medic\n" in said.err
    assert "85.0 ± 0.5" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "folder nowhere does not exist"),
        (["{folder}", "--selection", "best"], "unknown selection 'best'"),
        (["{folder}", "--format", "xml"], "unknown format 'xml'"),
        (["{folder}", "--paper", "pacs"], "unknown table of the paper 'pacs'"),
        (["{folder}", "--explain", "erm", "d"], "unknown target domain 'd'"),
        (["{folder}", "--compare", "erm", "coral"], "unknown row 'coral', choose from erm, medic++"),
        (["{folder}", "--compare", "erm", "erm"], "'erm' and 'erm' are one row"),
        (["{folder}", "--explain", "medic", "a"], "unknown row 'medic', did you mean 'medic++'"),
        (["{empty}"], "no finished runs"),
        (["{folder}", "--metrics", "nonsense"], "unknown metric 'nonsense', choose from domainbed, iteration"),
        (["{folder}", "--explain", "erm", "a", "--format", "csv"], "shown as text or json, not as csv"),
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
    assert main(["table", str(folder), "--explain", "erm", "a", "--format", "json", "--metrics", "acc"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["Acc"] for one in found] == [pytest.approx(value) for value in (84, 85, 86)]
    write_run(folder, "old", "fish", "a", 0, (0.5, 0.5))
    text = (folder / "old" / "results.jsonl").read_text()
    (folder / "old" / "results.jsonl").write_text(text.replace('"oscr"', '"other"'))
    assert main(["table", str(folder), "--explain", "fish", "a"]) == 0
    assert "–" in capsys.readouterr().out


def test_a_comparison_as_json(folder, capsys):
    assert main(["table", str(folder), "--compare", "erm", "medic++", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert (found["of"], found["over"], found["difference"]) == ("medic++", "erm", pytest.approx(3))


def test_notes_of_a_csv_are_not_in_it(folder, capsys):
    write_run(folder, "other", "erm", "c", 0, (0.5, 0.5), commit="c1")
    assert main(["table", str(folder), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "of 2 commits" in said.err
    assert "commits" not in said.out


class TestThePapersNumbers:
    def test_all_are_there(self):
        assert len(published()) == 1128
        assert len(paper_tables()) == 12
        table = PaperTable("pacs-resnet50")
        assert table.metrics == ("Acc", "H-score", "OSCR")
        assert table.value("Acc", "MEDIC++", "Photo") is not None
        assert table.value("Acc", "MEDIC++", "Moon") is None

    def test_beside_ours(self, tmp_path, capsys):
        for title in ("Photo", "Art"):
            write_like(tmp_path, "pacs-resnet50", "ERM", title)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        value = PaperTable("pacs-resnet50").value("Acc", "ERM", "Photo")
        said = capsys.readouterr()
        assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in said.out
        average = PaperTable("pacs-resnet50").value("Acc", "ERM", "Avg")
        assert f"80.0 ({average:.1f}, columns)" in said.out  # of two columns, not of four
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--metrics", "acc"]) == 0
        assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"backbone": "tf_efficientnet_lite0"}, "backbone"),
            ({"iterations": 2000}, "iterations"),
            ({"known": ["dog", "elephant"]}, "classes"),
            ({"sources": ["cartoon", "sketch"]}, "sources"),
            ({"optimizer": "adam", "lr": 1e-4}, "optimizer, lr"),
            ({"image_size": 112, "batch_size": 8}, "image_size, batch_size"),
            ({"partial": {"sketch": ["dog"]}}, "partial"),
            ({"label_noise": 0.2}, "label_noise"),
            ({"weights": None}, "weights"),
            ({"validation": "domainbed"}, "validation"),
            ({"validation": "official", "holdout": None, "seed": 3}, None),
            ({"evaluate_every": 100, "on_bad_image": "skip"}, "on_bad_image, evaluate_every"),
            ({"counts": {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3928}}, None),
            ({"counts": {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3900}}, "images"),
            ({"dataset": "digits"}, "dataset"),
        ],
    )
    def test_no_difference_between_unlike_things(self, tmp_path, capsys, changes, words):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", **changes)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        value = PaperTable("pacs-resnet50").value("Acc", "ERM", "Photo")
        assert f"80.0 ({value:.1f}, {words or f'{80 - value:+.1f}'})" in said
        assert (words is not None) == ("note: not as in the paper: " in said)

    def test_latex_of_settings_with_an_underscore(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", image_size=112)
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--format", "latex"]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("erm &")]
        assert len(rows) == 1
        assert r", image\_size)" in rows[0]
        assert not re.search(r"(?<!\\)_", rows[0])

    def test_every_run_of_a_cell_counts(self, tmp_path, capsys):
        """Of two seeds the second has fewer sources, which does not make it another row."""
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", seed=1, sources=["sketch", "cartoon"])
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        assert ", sources)" in capsys.readouterr().out

    def test_the_rule_of_selection(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50", "--selection", "last"]) == 0
        assert ", selection)" in capsys.readouterr().out

    def test_columns_are_exact_names(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo", target=["photograph"])
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        said = capsys.readouterr().out
        assert "80.0\n" in said
        assert "no column here is one of pacs-resnet50" in said

    def test_hard_decisions_are_read_as_they_are(self, tmp_path, capsys):
        write_like(tmp_path, "pacs-resnet50", "OpenMax", "Photo")
        write_like(tmp_path, "pacs-resnet50", "ERM", "Photo")
        assert main(["table", str(tmp_path), "--paper", "pacs-resnet50"]) == 0
        table = PaperTable("pacs-resnet50")
        said = capsys.readouterr().out
        for method, ours in (("OpenMax", 20.0), ("ERM", 80 / 3)):
            theirs = table.value("H-score", method, "Photo")
            assert f"{ours:.1f} ({theirs:.1f}, {ours - theirs:+.1f})" in said

    def test_variants_are_told_by_their_settings(self, tmp_path, capsys):
        for variant in ("5 4", "3 3 3"):
            write_like(tmp_path, "tasks-per-step", f"MEDIC++, {variant}", "Sketch")
        assert main(["table", str(tmp_path), "--paper", "tasks-per-step"]) == 0
        said = capsys.readouterr().out
        for variant in ("5 4", "3 3 3"):
            value = PaperTable("tasks-per-step").value("Acc", "MEDIC++", "Sketch", variant)
            assert f"80.0 ({value:.1f}, {80 - value:+.1f})" in said

    def test_variants_that_settings_do_not_tell(self, tmp_path, capsys):
        """Two rows of this table are made of the same runs."""
        write_like(tmp_path, "classifiers", "ERM, train ce+ova, infer cls", "Sketch")
        assert main(["table", str(tmp_path), "--paper", "classifiers"]) == 0
        assert "cannot be told from their settings: erm; `medic reproduce classifiers`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "weights", "changes", "words"),
    [
        ("PACS", "w", {}, None),
        ("CMNIST", None, {}, None),
        ("CMNIST", "w", {}, "weights"),
        ("TerraIncognita", "w", {"iterations": 5000}, "iterations"),
        ("VLCS", "w", {"lr": 1.8e-3}, "lr"),
    ],
)
def test_every_dataset_of_domainbed_has_settings_of_its_own(tmp_path, column, weights, changes, words):
    """A cell is the mean over its targets; the run of the last one is changed."""
    variant = "own hyper-parameters, with binary head"
    table, label = reproduction("domainbed"), f"MEDIC++, {variant}"
    last = len(table.columns[column]) - 1
    paths = [
        write_like(tmp_path, "domainbed", label, column, 0, weights, part, **(changes if part == last else {}))
        for part in range(last + 1)
    ]
    jobs = {(label, column): [SimpleNamespace(name=path.name) for path in paths]}
    made = table.tabulate(jobs, {result.path.name: result for result in collect([tmp_path]).results})
    said = written(entry(made, find_row(made, label), column, "Acc", AgainstPaper(made, table)))
    value = PaperTable("domainbed").value("Acc", "MEDIC++", column, variant)
    assert said == f"80.0 ({value:.1f}, {words or f'{80 - value:+.1f}'})"


def write_like(folder, table, label, title, seed=0, weights="w", part=0, **changes):
    """A run with the settings of a cell of one of the paper's tables, but for some changes."""

    def described(bench, root, seed):
        return Built(bench.name, bench.domains, bench.classes, None)

    config = reproduction(table).configs(Asked())[label, title][part]
    settings = {**resolve(config, described).config.identity(), "seed": seed, **changes}
    name = f"{label}-{title}-{part}-{seed}".replace(" ", "")
    return write_run(folder, name, settings.pop("method"), "a", settings.pop("seed"), (0.8, 0.1), weights=weights,
                     **settings)  # fmt: skip


def test_runs_as_a_frame(folder):
    pytest.importorskip("pandas")
    frame = medic.load_runs(folder)
    assert len(frame) == 9
    assert frame[frame.method == "erm"]["target/acc"].max() == pytest.approx(0.86)
    assert len(medic.load_runs(folder, every=True)) == 18
    write_run(folder, "fast", "erm", "c", 0, (0.5, 0.5), lr=0.1)
    found = medic.load_runs(folder / "fast").iloc[0]
    assert (found["lr"], found["lr/now"]) == (0.1, 0.01)


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
