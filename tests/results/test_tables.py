"""Selection and tables: golden records, standard errors, formats, and where a cell comes from."""

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import medic
from medic import results
from medic.cli import main
from medic.errors import MedicError
from medic.metrics import METRICS, find_metric
from medic.results.comparison import compare_metric
from medic.results.runs import Runs, find_runs
from medic.results.tabulate import find_row, tabulate
from tests.results.written import DOMAINS, seal, write_run


@pytest.fixture
def folder(tmp_path):
    for seed, value in enumerate((0.84, 0.85, 0.86)):
        write_run(tmp_path, f"erm-a-{seed}", "erm", "a", seed, (value, 0.1), user_settings={})
        write_run(tmp_path, f"erm-b-{seed}", "erm", "b", seed, (value - 0.1, 0.1), user_settings={})
        write_run(tmp_path, f"medic-a-{seed}", "medic++", "a", seed, (value + 0.02 + seed / 100, 0.1), user_settings={})
    return tmp_path


def test_mean_and_standard_error(folder):
    table = tabulate(find_runs([folder]).finished)
    cell = find_row(table, "erm").cells["a"]
    assert cell.mean(METRICS["acc"]) == pytest.approx(85.0)
    assert cell.error(METRICS["acc"]) == pytest.approx(0.4714, abs=1e-4)
    average = table.entry(find_row(table, "erm"), "Avg", METRICS["acc"])
    assert (average.mean, average.error) == (pytest.approx(80.0), None)
    assert table.entry(find_row(table, "medic++"), "Avg", METRICS["acc"]).mean is None  # b is missing


def test_a_directory_that_cannot_be_opened_is_left_out(folder, capsys, monkeypatch):
    exists = Path.exists

    def refuse(path):
        if path.parent.name == "erm-a-0":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    assert main(["table", str(folder)]) == 1
    said = capsys.readouterr()
    assert f"{folder / 'erm-a-0'} is left out: it cannot be read: Permission denied" in said.err
    assert "medic++" in said.out
    monkeypatch.setattr(Path, "iterdir", lambda path: refuse(path / "erm-a-0" / "x"))
    assert main(["table", str(folder)]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_the_selected_evaluation_counts(folder):
    table = tabulate(find_runs([folder]).finished, "last")
    assert find_row(table, "erm").cells["a"].mean(METRICS["acc"]) == pytest.approx(10.0)


def test_evaluations_without_averaged_weights(tmp_path):
    path = write_run(tmp_path, "0", "erm", "a", 0, (0.3, 0.6, 0.9), averaging="swad")
    *others, last = map(json.loads, (path / "results.jsonl").read_text().splitlines())
    records = (*others, {"averaged": True, **last})  # before the settings, which end a record
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    seal(path)
    for rule, acc in (("validation", 90.0), ("evaluation", 60.0)):
        table = tabulate(find_runs([tmp_path]).finished, rule)
        assert find_row(table, "erm").cells["a"].mean(METRICS["acc"]) == pytest.approx(acc)
        assert ("results use averaged weights (swad)" in table.notes) == (rule == "validation")


def test_formats(folder, capsys):
    printed = {}
    for form in ("text", "markdown", "latex", "csv", "json"):
        assert main(["table", str(folder), "--format", form]) == 0
        printed[form] = capsys.readouterr().out
    assert "85.0 ± 0.5" in printed["text"]
    assert "–" in printed["text"].splitlines()[3]  # the missing cell
    assert "| erm | 85.0 ± 0.5 | 75.0 ± 0.5 | 80.0 |" in printed["markdown"]
    assert r"erm & 85.0 $\pm$ 0.5 & 21.2 $\pm$ 0.1 & 42.5 $\pm$ 0.2 &" in printed["latex"]
    rows = list(csv.DictReader(io.StringIO(printed["csv"])))
    assert [row["mean"] for row in rows if (row["row"], row["target"], row["metric"]) == ("medic++", "b", "Acc")] == [
        ""
    ]
    cells = json.loads(printed["json"])["cells"]
    assert len(cells[0]["runs"]) == 3


def labels(folder):
    return [row.label for row in tabulate(find_runs([folder]).finished).rows]


class TestRows:
    """A row is a method, and the settings that were given for some of its runs."""

    def test_settings_that_were_given(self, tmp_path):
        derived = {"head": "separate", "score": "bcls"}
        write_run(tmp_path, "0", "erm", "a", 0, (0.5,), user_settings={}, objective="ce", lr=0.06, score="cls")
        write_run(tmp_path, "1", "erm", "a", 0, (0.5,), user_settings={"lr": 0.1}, objective="ce", lr=0.1, score="cls")
        write_run(tmp_path, "2", "erm", "a", 0, (0.5,), user_settings={"objective": "ce+ova"}, objective="ce+ova",
                  lr=0.06, **derived)  # fmt: skip
        assert labels(tmp_path) == [
            "erm: objective ce+ova, lr 0.06", "erm: objective ce, lr 0.06", "erm: objective ce, lr 0.1",
        ]  # fmt: skip

    def test_runs_of_two_protocols(self, tmp_path):
        for protocol, scale in (("paper", 1.0), ("authors", 0.5)):
            write_run(tmp_path, protocol, "erm", "a", 0, (scale,), user_settings={"protocol": protocol},
                      protocol=protocol, ova_scale=scale)  # fmt: skip
        write_run(tmp_path, "ours", "erm", "a", 0, (0.7,), user_settings={}, protocol=None, ova_scale=0.5)
        assert labels(tmp_path) == ["erm: protocol authors", "erm: protocol none", "erm: protocol paper"]

    def test_a_default_that_was_given_explicitly(self, tmp_path):
        write_run(tmp_path, "0", "erm", "a", 0, (0.5,), user_settings={"iterations": 300}, iterations=300)
        write_run(tmp_path, "1", "erm", "a", 1, (0.5,), user_settings={}, iterations=300)
        assert labels(tmp_path) == ["erm"]

    def test_derived_settings_and_domains_do_not_count(self, tmp_path):
        write_run(tmp_path, "0", "erm", "a", 0, (0.5,), user_settings={}, steps=[3, 3, 3], batch_size=16)
        write_run(tmp_path, "1", "erm", "b", 0, (0.5,), user_settings={"sources": ["c"]}, sources=["c"], steps=[3])
        assert labels(tmp_path) == ["erm"]

    def test_names_that_complete_settings_replace(self, tmp_path):
        """A split counts by its classes: runs with the same classes share a row, whether the split was named or not."""
        for seed, (split, known) in enumerate((("pacs-6-1", ["k"] * 6), ("pacs-5-2", ["k"] * 5), (None, ["k"] * 6))):
            user_settings = {"device": "cpu"} if split is None else {"split": split, "device": "cpu"}
            write_run(
                tmp_path, f"{split}", "erm", "a", seed, (0.5,), user_settings=user_settings, split=None, known=known
            )
        assert labels(tmp_path) == ["erm: known k,k,k,k,k", "erm: known k,k,k,k,k,k"]

    def test_hyperparameters_show_the_ones_that_differ(self, tmp_path):
        for name, hparams in (("0", {"trust": 5}), ("1", {"trust": 50}), ("2", {})):
            user_settings, complete = {"hparams": hparams}, {"prompt": 0.1, **hparams}
            write_run(tmp_path, name, "l2ot", "a", 0, (0.5,), user_settings=user_settings, hparams=complete)
        assert labels(tmp_path) == ["l2ot: hparams trust=5", "l2ot: hparams trust=50", "l2ot: hparams trust=–"]

    def test_partial_classes(self, tmp_path):
        for domain, partial in (("a", {"b": ["k"]}), ("b", {"a": ["k"]})):
            write_run(
                tmp_path, f"p{domain}", "erm", domain, 0, (0.5,), user_settings={"partial": "auto"}, partial=partial
            )
            write_run(tmp_path, domain, "erm", domain, 0, (0.5,), user_settings={}, partial=None)
        assert labels(tmp_path) == ["erm: partial False", "erm: partial True"]

    def test_a_drawn_split_is_named_once(self, tmp_path):
        """Beside classes that were listed, of which the known ones determine the unknown ones."""
        for seed in range(2):
            drawn = {"known": ["x", "y"][seed:][:1], "unknown": ["y", "x"][seed:][:1]}
            user_settings = {"split": "leave-one-class-out"}
            write_run(tmp_path, f"drawn-{seed}", "erm", "a", seed, (0.5,), user_settings=user_settings, **drawn)
        for known, unknown in (("x", ["y"]), ("y", [])):
            listed = {"known": [known], "unknown": unknown}
            write_run(tmp_path, known, "erm", "a", 0, (0.5,), user_settings={"known": [known]}, **listed)
        write_run(tmp_path, "none", "coral", "a", 0, (0.5,), known=["x"], unknown=[])
        write_run(tmp_path, "some", "coral", "a", 0, (0.5,), known=["x"], unknown=["y"])
        assert labels(tmp_path) == [
            "coral: unknown none", "coral: unknown y", "erm: known x", "erm: known y", "erm: split leave-one-class-out",
        ]  # fmt: skip

    def test_the_dataset_implies_what_differs_only_with_it(self, tmp_path):
        for name, dataset, known, lr in (
            ("0", "digits", "1", 0.06),
            ("1", "pacs", "dog", 0.1),
            ("2", "pacs", "dog", 0.2),
        ):
            given = {"dataset": dataset, "lr": lr}
            write_run(tmp_path, name, "erm", "a", 0, (0.5,), user_settings=given, dataset=dataset, known=[known], lr=lr)
        assert labels(tmp_path) == [
            "erm: dataset digits, lr 0.06", "erm: dataset pacs, lr 0.1", "erm: dataset pacs, lr 0.2",
        ]  # fmt: skip

    def test_settings_that_only_add_metrics_share_a_row(self, tmp_path):
        """Of two runs with the same seed, the one with more scores counts."""
        write_run(tmp_path, "0", "erm", "a", 0, (0.5,), user_settings={})
        path = write_run(tmp_path, "1", "erm", "a", 0, (0.5,), all_scores=True) / "results.jsonl"
        record = json.loads(path.read_text())
        record["target"]["oscr/knn"] = 0.3
        path.write_text(json.dumps(record) + "\n")
        seal(path.parent)
        write_run(tmp_path, "2", "erm", "a", 1, (0.7,), save_features=True)
        (row,) = tabulate(find_runs([tmp_path]).finished).rows
        assert (row.label, [run.path.name for run in row.runs]) == ("erm", ["1", "2"])
        table = medic.load_runs(tmp_path).table(["oscr/knn"])
        assert any("does not include 1 run without this metric" in note for note in table.notes)
        assert not any("without this metric" in note for note in medic.load_runs(tmp_path).table().notes)

    def test_a_setting_that_is_none(self, tmp_path):
        for averaging in ("swad", "none"):
            user_settings = {"averaging": averaging}
            write_run(tmp_path, averaging, "erm", "a", 0, (0.5,), user_settings=user_settings, averaging=averaging)
        assert labels(tmp_path) == ["erm: averaging none", "erm: averaging swad"]

    def test_weights(self, tmp_path):
        for weights in "vw":
            write_run(tmp_path, weights, "medic++", "a", 0, (0.5,), weights=weights, user_settings={})
        assert labels(tmp_path) == ["medic++: weights v", "medic++: weights w"]

    def test_several_settings(self, tmp_path):
        write_run(tmp_path, "0", "erm", "a", 0, (0.5,), objective="ce", score="cls", lr=0.1, layer="none")
        write_run(tmp_path, "1", "erm", "a", 0, (0.5,), objective="ce", score="cls")
        write_run(tmp_path, "2", "erm", "a", 0, (0.5,), objective="ce+ova", score="bcls", known=["k"] * 345)
        assert labels(tmp_path) == [
            "erm: known 345 values, objective ce+ova, lr none, score bcls",
            "erm: known k,k,k,k,k,k, objective ce, lr 0.1, score cls",
            "erm: known k,k,k,k,k,k, objective ce, lr none, score cls",
        ]


def test_how_many_seeds_a_mean_is_over(folder, capsys):
    said = "mean ± standard error over 3 seeds (population deviation / √seeds, as in DomainBed)"
    assert tabulate(find_runs([folder]).finished).notes == (said,)
    write_run(folder, "medic-b-0", "medic++", "b", 0, (0.5, 0.5))
    assert tabulate(find_runs([folder]).finished).notes == (f"{said}; fewer seeds in medic++, b (1)",)
    assert tabulate(find_runs([folder / "erm-a-0"]).finished).notes == ()
    assert main(["table", str(folder), "--explain", "medic++", "b"]) == 0
    assert "medic++, b: 1 run, model selection: validation" in capsys.readouterr().out


class TestScores:
    @pytest.fixture
    def scored(self, tmp_path):
        """Write a run per method, whose record names the score that ranked the images."""

        def write(**scores):
            for method, score in scores.items():
                path = write_run(tmp_path, method, method, "a", 0, (0.5,)) / "results.jsonl"
                record = json.loads(path.read_text())
                record["target"] |= {"score": score, "oscr/energy": 0.3}
                path.write_text(json.dumps(record) + "\n")
                seal(path.parent)
            return find_runs([tmp_path]).finished

        return write

    def test_one_score_is_noted_once(self, scored):
        assert tabulate(scored(erm="cls", vrex="cls")).notes == ("H-score and OSCR computed with score cls",)

    def test_different_scores_are_noted_by_row(self, scored):
        (note,) = tabulate(scored(erm="cls", vrex="cls", medic="bcls")).notes
        assert note == "H-score and OSCR computed with each row's own score: cls (erm; vrex), bcls (medic)"

    def test_a_comparison_notes_the_scores_of_its_rows(self, scored, tmp_path, capsys):
        results = scored(erm="cls", vrex="energy", medic="bcls")
        assert main(["table", str(tmp_path), "--compare", "erm", "medic"]) == 0
        said = "note: H-score and OSCR computed with each row's own score: cls (erm), bcls (medic)\n"
        assert said in capsys.readouterr().out
        assert Runs(tuple(results)).compare("erm", "medic", metrics="acc").notes == ()

    def test_a_metric_that_names_its_score_or_needs_none_has_no_note(self, scored):
        results = scored(erm="cls", medic="bcls")
        assert tabulate(results, metrics=[find_metric("acc"), find_metric("oscr/energy")]).notes == ()


def test_a_threshold_by_target_labels_is_noted(folder, capsys):
    said = "uses the best of ten thresholds, chosen with target labels: not a valid result"
    assert main(["table", str(folder), "--metrics", "hscore/oracle-10"]) == 0
    assert f"H-score oracle-10 {said}" in capsys.readouterr().out
    assert main(["table", str(folder), "--paper", "pacs-resnet50"]) == 0
    assert f"H-score {said}" in capsys.readouterr().out
    assert main(["table", str(folder)]) == 0
    assert said not in capsys.readouterr().out


def test_draws_compete_by_validation(tmp_path):
    def write(name, values, draw, rate, **user_settings):
        write_run(tmp_path, name, "erm", "a", 0, values, draw=draw, lr=rate, user_settings=user_settings)

    write("d0", (0.9, 0.1), 0, 0.1, images=96)
    write("d1", (0.3, 0.2, 0.1), 1, 0.2, hparams_seed=1)
    table = tabulate(find_runs([tmp_path]).finished)
    (row,) = table.rows
    # Both have the same best validation accuracy: the later draw wins, whatever the target says.
    assert row.cells["a"].values(METRICS["acc"]) == [pytest.approx(20.0)]
    # A learning rate that was given is one more candidate.
    write("mine", (0.5,), 0, 0.3, lr=0.3)
    table = tabulate(find_runs([tmp_path]).finished)
    assert [len(row.cells["a"].picks) for row in table.rows] == [1]


class TestLeavingOut:
    @pytest.fixture
    def runs(self, tmp_path):
        """Target a: by validation the second draw is best, but on unseen sources it is worse."""
        for draw, value, met in ((0, 0.9, 0.6), (1, 0.3, 0.5)):
            settings = {"draw": draw, "lr": 0.1 * (draw + 1), "user_settings": {"hparams_seed": draw}}
            write_run(tmp_path, f"a-{draw}", "erm", "a", 0, (value, 0.1, 0.1)[: draw + 2], steps=[1, 1], **settings)
            for other in "bc":
                pair = {"target": ["a", other], "sources": [d for d in DOMAINS if d not in ("a", other)]}
                write_run(tmp_path, f"a{other}-{draw}", "erm", "a", 0, (0, 0, 0)[: draw + 2], accs={other: met},
                          steps=[1], **pair, **settings)  # fmt: skip
        return tmp_path

    def test_the_row_has_the_runs_with_two_targets(self, runs):
        """They have fewer sources, so settings that follow the number of sources differ."""
        table = tabulate(find_runs([runs]).finished, "leave-one-out")
        assert (len(table.rows), table.columns) == (1, ("a",))
        (pick,) = table.rows[0].cells["a"].picks
        assert pick.run.path.name == "a-0"
        assert table.notes == ("model selection: leave-one-out",)

    def test_the_runs_that_decided_are_listed(self, runs, capsys):
        arguments = ["table", str(runs), "--selection", "leave-one-out", "--explain", "erm", "a"]
        assert main([*arguments, "--format", "json"]) == 0
        (pick,) = json.loads(capsys.readouterr().out)
        assert (pick["decided by"], pick["selection"]) == ("ab-0, ac-0", "leave-one-out")
        assert main(arguments) == 0
        assert "ab-0, ac-0" in capsys.readouterr().out

    def test_what_was_given_tells_rows_apart(self, tmp_path):
        """The same number of images becomes another batch size if there is one source less."""
        for images in (12, 36):
            write_run(
                tmp_path, f"a-{images}", "erm", "a", 0, (0.5,), user_settings={"images": images}, batch_size=images // 2
            )
            for other, source in ("bc", "cb"):
                pair = {"target": ["a", other], "sources": [source], "batch_size": images}
                write_run(
                    tmp_path, f"a{other}-{images}", "erm", "a", 0, (0.5,), user_settings={"images": images}, **pair
                )
        table = tabulate(find_runs([tmp_path]).finished, "leave-one-out")
        assert [row.label for row in table.rows] == ["erm: batch_size 18", "erm: batch_size 6"]
        decided = [[run.path.name for run in row.cells["a"].picks[0].decided_by] for row in table.rows]
        assert decided == [["ab-36", "ac-36"], ["ab-12", "ac-12"]]

    def test_without_one_of_them_there_is_no_value(self, runs):
        results = [result for result in find_runs([runs]).finished if result.path.name not in ("ab-0", "ac-1")]
        with pytest.raises(MedicError, match="'leave-one-out' requires an additional run per source domain"):
            tabulate(results, "leave-one-out")

    def test_other_rules_leave_them_out(self, runs):
        table = tabulate(find_runs([runs]).finished)
        assert (len(table.rows), table.columns) == (1, ("a",))
        assert table.notes[0].startswith("4 runs with two targets are left out")
        assert table.rows[0].cells["a"].picks[0].run.path.name == "a-1"


def test_other_images_or_commits_are_not_averaged_silently(folder, capsys):
    assert main(["table", str(folder)]) == 0
    assert "these runs have" not in capsys.readouterr().out
    write_run(folder, "other", "erm", "c", 0, (0.5, 0.5), commit="c1", images="i1")
    assert main(["table", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "2 different image lists" in said
    assert "2 different commits" in said


def test_what_else_stands_side_by_side_is_told(folder, capsys):
    write_run(folder, "other", "coral", "a", 0, (0.5, 0.5), commit="c0-dirty", backbone="convnet", label_noise=0.4)
    write_run(folder, "third", "coral", "b", 0, (0.5, 0.5), dataset="domainnet")
    assert main(["table", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "note: these methods use different backbones: " in said
    assert "convnet (coral)" in said
    assert "note: these methods use different label-noise levels: " in said
    assert "note: column 'b' mixes 2 datasets (domainnet, pacs)" in said
    assert "note: these runs have 2 different commits: " in said
    assert "c0-dirty (other)" in said
    assert "numbers of iterations" not in said


def test_records_that_disagree(folder):
    write_run(folder, "again", "erm", "a", 0, (0.5, 0.4))
    with pytest.raises(MedicError, match=r"same settings but different results: move one"):
        tabulate(find_runs([folder]).finished)


@pytest.mark.parametrize(
    ("values", "images", "message"),
    [
        ((0.2, 0.1), "i0", "different results: move"),
        ((0.84, 0.1), "i0", None),
        ((0.8, 0.1), "i1", r"in images \(i0, i1\)"),
    ],
)
def test_all_records_are_compared(folder, values, images, message):
    """The last one alone may agree by chance."""
    write_run(folder, "f", "erm", "a", 0, values, images=images)
    results = find_runs([folder]).finished
    if message is None:
        assert len(tabulate(results).rows[0].cells["a"].picks) == 3
    else:
        with pytest.raises(MedicError, match=message):
            tabulate(results)


def test_what_is_missing_is_shown(folder, capsys):
    """A target and a method without a finished run."""
    for name, settings, file in (
        ("later", {"target": ["c"], "sources": ["a", "b"], "method": "erm"}, ".lock"),
        ("failed", {"target": ["a"], "sources": ["b", "c"], "method": "coral"}, "error.json"),
    ):
        path = folder / name
        path.mkdir()
        complete = {"dataset": "pacs", "backbone": "resnet50", "known": ["k"] * 6, "seed": 0, "trial_seed": 0}
        (path / "config.json").write_text(json.dumps({**complete, **settings}))
        (path / "settings.json").write_text(json.dumps({**settings, "device": "cpu"}))
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
    assert "1 run is unfinished" in said.err


def test_a_comparison_says_what_a_table_does(folder, capsys):
    write_run(folder, "other", "erm", "b", 3, (0.5, 0.5), commit="c1")
    assert main(["table", str(folder), "--compare", "erm", "medic++"]) == 0
    assert "note: these runs have 2 different commits" in capsys.readouterr().out
    assert main(["table", str(folder), "--compare", "erm", "medic++", "--format", "json"]) == 0
    assert "2 different commits" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "required", "chosen"), [("erm", {}, 85.0), ("swad", {"required": True}, 90.0)])
@pytest.mark.parametrize("rule", ["validation", "evaluation", "domainbed", "last", "oracle"])
def test_averaged_weights_are_no_evaluation_unless_they_are_the_method(tmp_path, method, required, chosen, rule):
    """The average is much worse on source validation, but SWAD's row is always SWAD's average."""
    path = write_run(tmp_path, "run", method, "a", 0, (0.84, 0.85, 0.9)) / "results.jsonl"
    *evaluations, last = map(json.loads, path.read_text().splitlines())
    averaged = {"averaged": True, **required, **last, "step": 1, "validation": {"acc": 0.1, "images": 100}}
    path.write_text("".join(json.dumps(one) + "\n" for one in (*evaluations, averaged)))
    seal(path.parent)
    (row,) = tabulate(find_runs([tmp_path]).finished, rule).rows
    assert row.cells["a"].mean(METRICS["acc"]) == pytest.approx(chosen)


def test_half_written_damaged_and_foreign_folders(folder, capsys):
    (folder / "half").mkdir()
    (folder / "half" / "config.json").write_text("")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("hello")
    damaged = write_run(folder, "damaged", "erm", "c", 0, (0.5,))
    for content in (b'{"half a rec', b"\xff\xfe\x00"):
        (damaged / "results.jsonl").write_bytes(content)
        assert main(["table", str(folder)]) == 1
        said = capsys.readouterr()
        assert "1 run is unfinished" in said.err
        assert f"its results.jsonl is damaged: delete {damaged} and train the run again" in said.err
        assert "85.0 ± 0.5" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "folder nowhere does not exist"),
        (["{folder}", "--selection", "best"], "unknown selection 'best'"),
        (["{folder}", "--format", "xml"], "unknown format 'xml'"),
        (["{folder}", "--paper", "pacs"], "unknown table of the paper 'pacs'"),
        (["{folder}", "--explain", "erm", "d"], "unknown target domain 'd'"),
        (["{folder}", "--compare", "erm", "coral"], "unknown row 'coral': choose from erm, medic++"),
        (["{folder}", "--compare", "erm", "erm"], "'erm' and 'erm' are the same row"),
        (["{folder}", "--explain", "medic", "a"], "unknown row 'medic': did you mean 'medic++'"),
        (["{empty}"], "no finished runs"),
        (["{folder}", "--metrics", "nonsense"], "unknown metric 'nonsense': choose from domainbed, iteration"),
        (["{folder}", "--explain", "erm", "a", "--format", "csv"], "--explain requires --format text or json, got csv"),
    ],
)
def test_mistakes_are_named(folder, tmp_path_factory, capsys, arguments, message):
    places = {"folder": folder, "empty": tmp_path_factory.mktemp("empty")}
    assert main(["table", *(part.format(**places) for part in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_paired_comparison_of_one_target_is_over_its_seeds(folder, capsys):
    """Differences 2, 3 and 4 points: mean 3, deviation 1, error 1/√3, t = 3√3 with 2 degrees of freedom."""
    table = tabulate(find_runs([folder]).finished)
    comparison = compare_metric(find_row(table, "erm"), find_row(table, "medic++"), METRICS["acc"], ["a", "b"])
    assert (comparison.pairs, comparison.columns) == (3, 1)
    assert comparison.difference == pytest.approx(3)
    assert (comparison.low, comparison.high) == (
        pytest.approx(3 - 2.4841, abs=1e-3),
        pytest.approx(3 + 2.4841, abs=1e-3),
    )
    assert comparison.p == pytest.approx(0.03510, abs=1e-4)
    assert main(["table", str(folder), "--compare", "erm", "medic++"]) == 0
    said = "paired t-test over 3 seeds of one target: the interval does not apply to other targets\n"
    assert said in capsys.readouterr().out


def test_a_paired_comparison_is_over_targets(folder, capsys):
    """Seeds of a target count once: a, b and c differ by 3, 1 and 2 on average, so the error is 1/√3, and t 2√3."""
    for seed, more in enumerate((0.00, 0.01, 0.02)):
        write_run(folder, f"medic-b-{seed}", "medic++", "b", seed, (0.74 + seed / 100 + more, 0.1), user_settings={})
    for method, acc in (("erm", 0.5), ("medic++", 0.52)):
        write_run(folder, f"{method}-c", method, "c", 0, (acc, 0.1), user_settings={})
    table = tabulate(find_runs([folder]).finished)
    comparison = compare_metric(find_row(table, "erm"), find_row(table, "medic++"), METRICS["acc"], ["a", "b", "c"])
    assert (comparison.pairs, comparison.columns, comparison.difference) == (7, 3, pytest.approx(2))
    assert (comparison.low, comparison.high) == (
        pytest.approx(2 - 2.4841, abs=1e-3),
        pytest.approx(2 + 2.4841, abs=1e-3),
    )
    assert comparison.p == pytest.approx(0.07418, abs=1e-4)
    assert main(["table", str(folder), "--compare", "erm", "medic++"]) == 0
    assert "paired t-test over 3 targets, each averaged over its seeds\n" in capsys.readouterr().out


@pytest.mark.parametrize(("places", "over"), [("a", "seeds"), ("aa", "seeds"), ("ab", "targets")])
def test_one_or_two_differences_have_no_interval(tmp_path, capsys, places, over):
    for seed, target in enumerate(places):
        write_run(tmp_path, f"erm-{seed}", "erm", target, seed, (0.5, 0.1))
        write_run(tmp_path, f"medic-{seed}", "medic++", target, seed, (0.52 + seed / 10, 0.1))
    assert main(["table", str(tmp_path), "--compare", "erm", "medic++"]) == 0
    said = capsys.readouterr().out
    mean = {1: "+2.00", 2: "+7.00"}[len(places)]
    assert re.search(rf"^Acc +\{mean} +– +– +{len(places)}$", said, re.MULTILINE)
    assert f"an interval requires at least three {over} to compare: train runs with more {over}\n" in said


def test_from_a_cell_to_its_runs(folder, capsys):
    assert main(["table", str(folder), "--explain", "erm", "a"]) == 0
    said = capsys.readouterr().out
    for part in ("erm-a-0", "erm-a-2", "c0", "i0", "validation"):
        assert part in said
    assert "erm-b" not in said
    assert main(["table", str(folder), "--explain", "erm", "a", "--format", "json", "--metrics", "acc"]) == 0
    picks = json.loads(capsys.readouterr().out)
    assert [one["Acc"] for one in picks] == [pytest.approx(value) for value in (84, 85, 86)]
    write_run(folder, "old", "fish", "a", 0, (0.5, 0.5))
    text = (folder / "old" / "results.jsonl").read_text()
    (folder / "old" / "results.jsonl").write_text(text.replace('"oscr"', '"other"'))
    seal(folder / "old")
    assert main(["table", str(folder), "--explain", "fish", "a"]) == 0
    assert "–" in capsys.readouterr().out


def test_from_a_run_to_its_unknown_class(tmp_path, capsys):
    """A drawn split depends on the seed, so both lists of runs name the unknown class."""
    for seed, unknown in enumerate(("dog", "horse")):
        drawn = {"unknown": [unknown], "user_settings": {"split": "leave-one-class-out"}}
        write_run(tmp_path / "drawn", str(seed), "erm", "a", seed, (0.5,), **drawn)
    write_run(tmp_path / "listed", "0", "erm", "a", 0, (0.5,), unknown=["cat"])
    for command in (["table", "{}", "--explain", "erm", "a"], ["runs", "{}"]):
        drawn, listed = ([part.format(tmp_path / name) for part in command] for name in ("drawn", "listed"))
        assert main(drawn) == 0
        said = capsys.readouterr().out
        assert re.search(r"^\S*0 .* dog .*\n\S*1 .* horse ", said, re.MULTILINE)
        assert main([*drawn, "--format", "json"]) == 0
        assert [one["unknown"] for one in json.loads(capsys.readouterr().out)] == [["dog"], ["horse"]]
        assert main(listed) == 0
        assert "cat" not in capsys.readouterr().out


def test_a_comparison_in_python(folder, capsys):
    """It is what the command prints; the numbers are those of a paired comparison of one target."""
    comparison = medic.load_runs(folder).compare("erm", "medic++", metrics=["acc", "oscr"])
    assert main(["table", str(folder), "--compare", "erm", "medic++", "--metrics", "acc", "oscr"]) == 0
    assert repr(comparison) == str(comparison) == capsys.readouterr().out.rstrip("\n")
    assert str(comparison).splitlines()[:3] == [
        "medic++ minus erm, in percentage points, paired by target and seed:",
        "metric  difference   95% interval      p  pairs",
        "Acc          +3.00  +0.52 … +5.48  0.035      3",
    ]
    page = comparison._repr_html_()
    assert "<td>Acc</td><td>+3.00</td><td>+0.52 … +5.48</td><td>0.035</td><td>3</td>" in page
    assert "paired t-test over 3 seeds of one target" in page
    pytest.importorskip("pandas")
    acc = comparison.to_frame().set_index("metric").loc["Acc"]
    assert (acc["of"], acc["over"], acc["p"]) == ("medic++", "erm", pytest.approx(0.0351, abs=1e-4))
    with pytest.raises(MedicError, match="the same row"):
        medic.load_runs(folder).compare("erm", "erm")
    last = medic.load_runs(folder).compare("erm", "medic++", "acc", selection="last")
    assert last.differences[0].difference == 0
    assert last.notes == ("model selection: last",)


def test_a_comparison_as_json(folder, capsys):
    assert main(["table", str(folder), "--compare", "erm", "medic++", "--format", "json"]) == 0
    comparison = json.loads(capsys.readouterr().out)[0]
    assert (comparison["of"], comparison["over"], comparison["difference"]) == ("medic++", "erm", pytest.approx(3))
    assert comparison["test"].startswith("paired t-test over 3 seeds of one target")


def test_notes_of_a_csv_are_not_in_it(folder, capsys):
    write_run(folder, "other", "erm", "c", 0, (0.5, 0.5), commit="c1")
    assert main(["table", str(folder), "--format", "csv"]) == 0
    said = capsys.readouterr()
    assert "2 different commits" in said.err
    assert "commits" not in said.out


def test_runs_as_a_frame(folder):
    pytest.importorskip("pandas")
    frame = medic.load_runs(folder).to_frame()
    assert len(frame) == 9
    assert frame[frame.method == "erm"]["target/acc"].max() == pytest.approx(0.86)
    assert len(medic.load_runs(folder).to_frame(every=True)) == 18
    write_run(folder, "fast", "erm", "c", 0, (0.5, 0.5), lr=0.1)
    row = medic.load_runs(folder / "fast").to_frame().iloc[0]
    assert (row["lr"], row["lr/now"]) == (0.1, 0.01)
    assert row["targets/c/acc"] == 0.5


def test_precisions_and_images_that_are_drawn_by_seed(tmp_path):
    """What differs is said; what is drawn anew for every seed is not."""
    for seed in (0, 1):
        write_run(tmp_path / "cmnist", f"run-{seed}", "erm", "a", seed, (0.5, 0.5), images=f"i{seed}", dataset="cmnist")
        write_run(tmp_path / "pacs", f"run-{seed}", "erm", "a", seed, (0.5, 0.5), images=f"i{seed}")
    notes = {name: tabulate(find_runs([tmp_path / name]).finished).notes for name in ("cmnist", "pacs")}
    assert not any("image lists" in note for note in notes["cmnist"])
    assert any("2 different image lists" in note for note in notes["pacs"])
    for seed, precision in ((0, "bf16"), (1, "fp32")):
        path = tmp_path / "cmnist" / f"run-{seed}" / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "precision": precision}))
        seal(path.parent)
    (note,) = [note for note in tabulate(find_runs([tmp_path / "cmnist"]).finished).notes if "precisions" in note]
    assert note == "these runs have 2 different precisions: bf16 (run-0), fp32 (run-1)"


def test_only_the_papers_tables_import_torch():
    names = sorted(path.stem for path in Path(results.__file__).parent.glob("[a-z]*.py"))
    ours = [name for name in names if name not in ("conditions", "paper_tables", "reproduction")]
    code = f"import sys; [__import__(f'medic.results.{{name}}') for name in {ours}]; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_defaults_of_two_versions_are_separate_rows(tmp_path):
    """Nobody set batch norm or iterations, but their defaults changed."""
    for seed in range(2):
        write_run(
            tmp_path, f"old{seed}", "erm", "a", seed, (0.5,), user_settings={}, batch_norm="local", iterations=300
        )
        write_run(
            tmp_path, f"new{seed}", "erm", "a", seed, (0.6,), user_settings={}, batch_norm="frozen", iterations=1200
        )
    rows = tabulate(find_runs([tmp_path]).finished).rows
    assert sorted(row.label for row in rows) == [
        "erm: batch_norm frozen, iterations 1200",
        "erm: batch_norm local, iterations 300",
    ]


def test_how_much_the_target_would_flatter(tmp_path, capsys):
    """The last but one evaluation is selected; the best one on the target is another."""
    for domain, values in (("a", (0.5, 0.8, 0.7, 0.6)), ("b", (0.4, 0.3, 0.4, 0.5))):
        write_run(tmp_path, f"erm-{domain}", "erm", domain, 0, values)
    assert main(["table", str(tmp_path), "--honesty", "--metrics", "acc", "oscr", "--format", "json"]) == 0
    acc, oscr = json.loads(capsys.readouterr().out)
    assert (acc["row"], acc["metric"]) == ("erm", "Acc")
    assert acc["selected"] == pytest.approx(55)
    assert acc["difference"] == pytest.approx((10 + 10) / 2)
    assert oscr["best on the target"] == pytest.approx((40 + 25) / 2)
    assert main(["table", str(tmp_path), "--honesty"]) == 0
    assert "not a valid result" in capsys.readouterr().out
    write_run(tmp_path, "coral-a", "coral", "a", 0, (0.5, 0.6))
    assert main(["table", str(tmp_path), "--honesty", "--metrics", "acc"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["coral", "Acc", "–", "–", "–"] in lines
    assert main(["table", str(tmp_path), "--honesty", "--compare", "erm", "erm"]) == 2
    assert "use only one of them" in capsys.readouterr().err
