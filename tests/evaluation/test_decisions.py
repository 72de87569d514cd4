"""Decisions by class, by confusion and by group, and predictions of other programs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from medic import openset
from medic.cli import main
from medic.errors import MedicError
from medic.evaluation.decisions import Decisions, wilson
from medic.evaluation.prediction_files import read_decisions

HEADER = "path,label,prediction,confidence,domain\n"
ROWS = (
    "1.png,cat,cat,0.9,day\n2.png,cat,dog,0.8,day\n3.png,dog,dog,0.7,night\n4.png,dog,dog,0.2,night\n"
    "5.png,-1,cat,0.6,day\n6.png,-1,dog,0.1,night\n"
)


@pytest.fixture
def write(tmp_path):
    def written(text, name="p.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def unreadable():
    return pytest.warns(UserWarning, match="1 of 4 images were unreadable")


@pytest.fixture
def decisions(write):
    return read_decisions(write(HEADER + ROWS), threshold=0.5)


class TestDecisions:
    def test_by_class(self, decisions):
        cat, dog, unknown = decisions.by_class()
        assert (cat.name, cat.acc, cat.acc_k, cat.rejected, cat.taken_for, cat.share) == (
            "cat",
            0.5,
            0.5,
            0,
            "dog",
            0.5,
        )
        assert (dog.name, dog.acc, dog.acc_k, dog.rejected, dog.taken_for) == ("dog", 1, 0.5, 0.5, None)
        assert (unknown.known, unknown.acc, unknown.rejected, unknown.images) == (False, None, 0.5, 2)

    def test_confusions_are_of_accepted_images(self, decisions):
        confusions = [(one.true, one.taken_for, one.known, one.images, one.of) for one in decisions.confusions()]
        assert confusions == [("-1", "cat", False, 1, 2), ("cat", "dog", True, 1, 2)]

    def test_groups_are_the_worst_first(self, decisions):
        day, night = decisions.by("domain")
        assert (day.group, day.known, day.unknown, day.correct) == ("day", 2, 1, pytest.approx(1 / 3))
        assert (night.group, night.correct, night.metrics["acc_u"]) == ("night", pytest.approx(2 / 3), 1)
        assert day.metrics["hscore"] == 0
        with pytest.raises(MedicError, match=r"unknown column 'donain'.*'domain'"):
            decisions.by("donain")

    def test_a_group_of_few_images_is_not_first_by_chance(self):
        label = np.array([0] * 101)
        predicted = np.array([0] * 20 + [1] * 80 + [1])
        decisions = Decisions(
            ["a", "b"], 2, label, predicted, np.ones(101), None, {"g": np.array(["many"] * 100 + ["one"])}
        )
        assert [one.group for one in decisions.by("g")] == ["many", "one"]

    def test_metrics_are_those_of_openset(self, decisions):
        columns = [0.9, 0.8, 0.7, 0.2, 0.6, 0.1], [0, 1, 1, 1, 0, 1], [0, 0, 1, 1, -1, -1]
        expected = {**openset.evaluate(*columns), **openset.hscore(*columns, 0.5)._asdict()}
        assert decisions.metrics() == pytest.approx(expected)

    def test_wilson(self):
        assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
        assert wilson(0.0, 10)[0] == 0
        assert wilson(1.0, 10)[1] == pytest.approx(1)
        assert wilson(0.0, 0) == (0, 1)


class TestFiles:
    @pytest.mark.parametrize(("text", "known"), [
        (HEADER + ROWS, ["cat", "dog"]),
        (HEADER + ROWS.replace("-1", "unknown"), ["cat", "dog"]),
        (HEADER + ROWS.replace("cat", "0").replace("dog", "1"), ["0", "1"]),
    ])  # fmt: skip
    def test_unknown_images(self, write, text, known):
        decisions = read_decisions(write(text))
        assert decisions.classes[: decisions.known] == known
        assert decisions.is_known.tolist() == [True] * 4 + [False] * 2
        assert decisions.metrics()["acc"] == 0.75

    def test_a_class_that_is_labelled_but_never_predicted_is_known_beside_minus_one(self, write):
        decisions = read_decisions(write(HEADER + ROWS + "7.png,cow,cat,0.3,day\n"))
        assert decisions.classes[: decisions.known] == ["cat", "cow", "dog"]

    def test_known_classes_that_are_given(self, write):
        decisions = read_decisions(write(HEADER + ROWS.replace("-1", "bird")), known=["cat"])
        assert (decisions.classes, decisions.known) == (["cat", "bird", "dog"], 1)
        assert decisions.is_known.tolist() == [True] * 2 + [False] * 4
        assert decisions.metrics()["acc"] == 0.5  # an image taken for a dog is taken for no known class

    @pytest.mark.parametrize("rows", [
        "cat,cat,0.9\ndog,cat,0.8\ndog,cat,0.7\n",
        "cat,cat,0.9\ndog,unknown,0.1\n",
    ])  # fmt: skip
    def test_a_class_that_is_never_predicted_is_not_taken_for_unknown(self, write, capsys, rows):
        path = write("label,prediction,confidence\n" + rows)
        with pytest.raises(MedicError, match=r"images of class 'dog', which is never predicted: .*--known"):
            read_decisions(path)
        assert main(["evaluate", "--predictions", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert read_decisions(path, known=["cat", "dog"]).is_known.all()
        assert int(read_decisions(path, known=["cat"]).is_known.sum()) == 1

    @pytest.mark.parametrize("mark", ["-1", "unknown"])
    @pytest.mark.parametrize("dragon", ["0", "dragon"])
    def test_an_unknown_class_with_a_name(self, write, mark, dragon):
        rows = f"0,cat,0,0.9\n1,dog,0,0.8\n{mark},dragon,{dragon},0.1\n{mark},unknown,1,0.1\n"
        decisions = read_decisions(write("label,class,prediction,confidence\n" + rows))
        assert decisions.is_known.tolist() == [True, True, False, False]
        assert (decisions.classes[decisions.label[2]], decisions.metrics()["auroc"]) == ("dragon", 1)

    def test_a_prediction_of_unknown_is_no_class(self, write, capsys):
        rows = "7.png,dog,unknown,0.9,day\n8.png,-1,unknown,0.9,day\n9.png,cow,unknown,0.9,day\n"
        path = write(HEADER + ROWS + rows)
        decisions = read_decisions(path, threshold=0.5)
        assert (decisions.classes, decisions.known) == (["cat", "cow", "dog", "-1"], 3)
        assert {one.taken_for for one in decisions.confusions()} == {"cat", "dog"}
        results = {one.name: one for one in decisions.by_class()}
        assert (results["cow"].images, results["cow"].acc, results["cow"].taken_for) == (1, 0, None)
        assert (results["dog"].acc, results["dog"].taken_for) == (pytest.approx(2 / 3), None)
        metrics = decisions.metrics()
        assert (metrics["acc"], metrics["acc_u"]) == (0.5, pytest.approx(1 / 3))
        assert main(["evaluate", "--predictions", str(path), "--per-class"]) == 0
        assert "of 3 known classes" in capsys.readouterr().out

    def test_logits_of_every_kind(self, write, tmp_path):
        text = "label,logit_cat,logit_dog\ncat,2,1\ndog,0,3\n-1,0.5,0\n"
        decisions = read_decisions(write(text))
        np.savez(tmp_path / "p.npz", label=[0, 1, -1], logits=[[2.0, 1], [0, 3], [0.5, 0]])
        again = read_decisions(tmp_path / "p.npz")
        assert (decisions.classes[:2], again.classes[:2]) == (["cat", "dog"], ["0", "1"])
        assert decisions.metrics() == again.metrics()
        np.testing.assert_allclose(decisions.confidence, [1, 3, 0.5])

    def test_parquet_and_json_lines(self, write, tmp_path):
        from pyarrow import csv, parquet

        path = write(HEADER + ROWS)
        parquet.write_table(csv.read_csv(path), tmp_path / "p.parquet")
        names = HEADER.strip().split(",")
        rows = [dict(zip(names, line.split(","), strict=True)) for line in ROWS.splitlines()]
        lines = write("".join(json.dumps(row) + "\n" for row in rows), "p.jsonl")
        expected = read_decisions(path).metrics()
        assert read_decisions(tmp_path / "p.parquet").metrics() == read_decisions(lines).metrics() == expected

    @pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet"])
    def test_what_medic_predict_writes(self, write, tmp_path, name):
        from medic.data.decode import BadImage
        from medic.deploy.predictor import Prediction
        from medic.deploy.writers import open_writer, pick_format

        path = tmp_path / name
        with open_writer(path, pick_format(path, None), 2, 0.5) as writer:
            writer.write("a", Prediction("cat", True, 0.9, (("cat", 0.9), ("dog", 0.1))))
            writer.write("b", Prediction("unknown", False, 0.2, (("dog", 0.6), ("cat", 0.4))))
            writer.write("broken", BadImage("broken"))
            writer.write("c", Prediction("unknown", False, 0.1, (("cat", 0.6), ("dog", 0.4))))
        with (
            pytest.raises(
                MedicError,
                match="labels are predictions: add a column 'class' with the true classes, or pass a file with",
            ),
            unreadable(),
        ):
            read_decisions(path)
        labels = write("path,class\na,cat\nb,dog\nc,bird\nmore,dog\n", "labels.csv")
        with pytest.raises(MedicError, match="images of class 'bird', which is never predicted"), unreadable():
            read_decisions(path, labels)
        with unreadable():
            decisions = read_decisions(path, labels, known=["cat", "dog"])
        assert (decisions.threshold, decisions.classes, decisions.known) == (0.5, ["cat", "dog", "bird"], 2)
        metrics = decisions.metrics()
        assert (metrics["acc"], metrics["acc_k"], metrics["acc_u"]) == (1, 0.5, 1)
        with (
            pytest.warns(UserWarning, match="1 of 3 images have no label and are not evaluated, such as c"),
            unreadable(),
        ):
            decisions = read_decisions(path, write("path,class\na,cat\nb,dog\n", "few.csv"))
        assert decisions.columns["path"].tolist() == ["a", "b"]
        with (
            pytest.raises(MedicError, match=r"no labels for the images in .*, such as a: compare the paths"),
            unreadable(),
        ):
            read_decisions(path, write("path,class\nsome/a,cat\n", "elsewhere.csv"))

    def test_classes_of_images_without_a_label_are_known(self, write):
        """An empty label is none. The predictions of all images say which classes are known."""
        path = write("path,prediction,confidence\na,cat,1\nb,dog,1\nc,cat,0\nd,dog,1\n")
        labels = write("path,class\na,cat\nb,\nc,dog\n", "some.csv")
        with pytest.warns(UserWarning, match="2 of 4 images have no label .*, such as b"):
            decisions = read_decisions(path, labels)
        assert decisions.columns["path"].tolist() == ["a", "c"]
        assert decisions.classes[: decisions.known] == ["cat", "dog"]

    def test_unreadable_images_are_a_note(self, write, capsys):
        rows = "a,cat,true,0.9,0.5,cat,\nb,,,,,,broken\nc,unknown,false,0.2,0.5,cat,\n"
        path = write("path,label,known,score,threshold,top1,error\n" + rows)
        labels = write("path,class\na,cat\nc,-1\n", "labels.csv")
        assert main(["evaluate", "--predictions", str(path), "--labels", str(labels)]) == 0
        assert capsys.readouterr().err == (
            f"medic: note: file {path}: 1 of 3 images were unreadable and are not evaluated\n"
        )

    def test_rows_of_several_thresholds(self, write):
        rows = "a,cat,true,0.9,0.5,cat\nb,unknown,false,0.2,0.75,cat\n"
        path = write("path,label,known,score,threshold,top1\n" + rows)
        labels = write("path,class\na,cat\nb,-1\n", "labels.csv")
        with pytest.raises(
            MedicError, match=r"rows with 2 thresholds, such as 0.5 and 0.75: choose one with --threshold"
        ):
            read_decisions(path, labels)
        assert read_decisions(path, labels, threshold=0.6).threshold == 0.6

    @pytest.mark.parametrize(("text", "message"), [
        ("", "has no rows"),
        (HEADER, "has no rows"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("path,prediction\na,cat\n", "no column 'label'.*--labels; its columns: path, prediction"),
        ("label,confidence\ncat,1\n", "no column 'prediction'; its columns: label, confidence"),
        ("label,prediction\ncat,cat\n", "no column 'confidence' or 'score'"),
        ("label,prediction,confidence\ncat,cat,nan\n", "row 1: confidence 'nan' is not a number"),
        ("label,prediction,confidence\ncat,cat,1\ncat,cat,high\n", "row 2: confidence 'high' is not a number"),
        ("label,prediction,confidence\ncat,cat,1\n,cat,1\n", "row 2: the label is empty"),
        ("label,prediction,confidence\ncow,cat,1\n", "images of class 'cow', which is never predicted"),
        ("label,prediction,confidence\n-1,cat,1\n", "no image of a known class"),
        ("label,logit_cat\ncat,nan\n", "row 1: logit_cat 'nan' is not a number"),
        ("label,prediction,confidence\ncat,cat\n", "row 2: the number of values does not match the header"),
        (HEADER + ROWS + ROWS, "has 2 rows for 1.png"),
    ])  # fmt: skip
    def test_mistakes_are_one_line(self, write, capsys, text, message):
        path = write(text)
        with pytest.raises(MedicError, match=message):
            read_decisions(path)
        assert main(["evaluate", "--predictions", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    @pytest.mark.parametrize(("name", "content", "message"), [
        ("p.txt", b"x", "expected one of .csv"),
        ("p.npz", b"PK no more", "cannot be read"),
        ("p.npz", b"", "cannot be read"),
        ("p.jsonl", b"{\n", "line 1"),
        ("p.jsonl", b"[1, 2]\n", "line 1"),
        ("p.parquet", b"PAR1", "cannot be read"),
    ])  # fmt: skip
    def test_damaged_files(self, write, name, content, message):
        with pytest.raises(MedicError, match=message):
            read_decisions(write(content, name))

    def test_arrays_of_other_shapes(self, tmp_path):
        np.savez(tmp_path / "p.npz", label=[0, 1], logits=[[2.0, 1]])
        with pytest.raises(MedicError, match="columns of different lengths: label 2, logits 1"):
            read_decisions(tmp_path / "p.npz")
        np.savez(tmp_path / "p.npz", label=np.array([object()]))
        with pytest.raises(MedicError, match="cannot be read"):
            read_decisions(tmp_path / "p.npz")

    def test_arrays_that_would_fill_the_memory_are_not_read(self, tmp_path, monkeypatch):
        path = tmp_path / "p.npz"
        monkeypatch.setattr("medic.utils.files.MAX_ARRAYS", 2**20)
        monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the file is read"))
        np.savez_compressed(path, label=np.zeros(2**16, np.int64), logits=np.zeros((2**16, 2)))
        assert path.stat().st_size < 2**14
        with pytest.raises(MedicError, match=r"p.npz cannot be read: its arrays take 0.0 GiB") as caught:
            read_decisions(path)
        assert "\n" not in str(caught.value)

    def test_a_line_separator_inside_a_text_ends_no_line(self, tmp_path):
        path = tmp_path / "p.jsonl"
        rows = [{"label": name, "prediction": name, "confidence": 1} for name in ("a\u2028b", "c")]
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        assert read_decisions(path).classes == ["a\u2028b", "c"]
        path.write_text('{"label": "a", "prediction": "a"}\n\n{', encoding="utf-8")
        with pytest.raises(MedicError, match="line 3"):
            read_decisions(path)

    def test_an_array_or_damaged_data_in_place_of_a_npz_file(self, tmp_path, write):
        np.savez_compressed(tmp_path / "p.npz", label=np.arange(1000))
        content = bytearray((tmp_path / "p.npz").read_bytes())
        content[60:90] = b"\xff" * 30
        np.save(tmp_path / "p.npy", np.zeros(3))
        for damaged in (bytes(content), (tmp_path / "p.npy").read_bytes()):
            with pytest.raises(MedicError, match="cannot be read"):
                read_decisions(write(damaged, "p.npz"))


class TestCommand:
    def test_predictions(self, write, capsys):
        path = str(write(HEADER + ROWS))
        assert main(["evaluate", "--predictions", path, "--threshold", "0.5"]) == 0
        out = capsys.readouterr().out
        assert "4 images of 2 known classes, 2 unknown" in out
        rows = {words[0]: words[-1] for line in out.splitlines() if (words := line.split())}
        assert (rows["Acc"], rows["H-score"], rows["acc_u"]) == ("75.00", "50.00", "50.00")
        assert (rows["day"], rows["night"]) == ("100.00", "100.00")
        assert main(["evaluate", "--predictions", path, "--json"]) == 0
        metrics = json.loads(capsys.readouterr().out)
        assert (metrics["acc"], set(metrics["domains"])) == (0.75, {"day", "night"})

    def test_groups_of_another_file(self, write, capsys):
        path = str(write(HEADER + ROWS))
        groups = write("path,camera\n" + "".join(f"{n}.png,{'xy'[n % 2]}\n" for n in range(1, 7)), "g.csv")
        assert main(["evaluate", "--predictions", path, "--by", "camera", "--groups", str(groups), "--json"]) == 0
        known_by_group = {one["group"]: one["known"] for one in json.loads(capsys.readouterr().out)["camera"]}
        assert known_by_group == {"x": 2, "y": 2}
        assert main(["evaluate", "--predictions", path, "--by", "lens", "--groups", str(groups)]) == 2
        assert "no column 'lens'; its columns: path, camera" in capsys.readouterr().err

    def test_a_run(self, mini, tmp_path, capsys):
        import medic
        from tests.runs.short import SHORT

        run = medic.train(dataset=mini, output=tmp_path, **SHORT)
        assert main(["evaluate", str(run.path), "--per-class", "--by", "class"]) == 0
        out = capsys.readouterr().out
        assert "known classes, in percent:" in out
        assert "unknown classes, in percent:" in out
        at = 1 / (1 + np.exp(-run.metrics["threshold"]))  # on the scale of `medic predict`
        assert f"threshold {at:.6g} (rule source)" in out
        assert main(["evaluate", str(run.path), "--per-class", "--threshold", str(at)]) == 0
        assert f"threshold {at:.6g} (given)" in capsys.readouterr().out
        assert main(["evaluate", str(run.path), "--per-class", "--by", "domain", "--json"]) == 0
        evaluation = json.loads(capsys.readouterr().out)
        known = [one for one in evaluation["classes"] if one["known"]]
        assert np.mean([one["acc"] for one in known]) == pytest.approx(run.metrics["acc"])
        assert np.mean([one["rejected"] for one in evaluation["classes"] if not one["known"]]) == pytest.approx(
            run.metrics["acc_u"]
        )
        street = next(one for one in evaluation["domain"] if one["group"] == "street")["metrics"]
        assert street["oscr"] == pytest.approx(run.metrics["oscr"])
        assert {one["group"] for one in evaluation["domain"]} == {"street", "handwritten", "printed", "blended"}
        again = read_decisions(run.path / "predictions.npz", threshold=run.metrics["threshold"])
        assert again.metrics()["hscore"] == pytest.approx(run.metrics["hscore"])
        assert again.metrics()["oscr"] == pytest.approx(run.metrics["oscr"])

    def test_a_score_of_an_installed_package(self, mini, tmp_path, monkeypatch):
        import medic
        from medic.openset import registry
        from medic.runs.reevaluate import make_decisions
        from tests.runs.short import SHORT

        run = medic.train(dataset=mini, output=tmp_path, **SHORT)
        theirs = replace(openset.SCORES["cls"], name="theirs")
        find = registry.SCORE_GROUP.find
        monkeypatch.setattr(
            type(registry.SCORE_GROUP), "find", lambda _, name: theirs if name == "theirs" else find(name)
        )
        assert make_decisions(run, "theirs", "source")[1] == "theirs"

    @pytest.mark.parametrize(("arguments", "message"), [
        ([], "expected either a RUN directory or --predictions FILE"),
        (["run", "--predictions", "p.csv"], "expected either a RUN directory or --predictions FILE"),
        (["run", "--labels", "l.csv"], "--labels requires --predictions"),
        (["run", "--groups", "g.csv"], "--groups requires --by"),
        (["--predictions", "gone.csv"], "gone.csv does not exist"),
        (
            ["--predictions", "p.csv", "--threshold", "source"],
            "--threshold must be a number on the scale of the confidence, got source",
        ),
        (["--predictions", "p.csv", "--score", "cls"], "--score requires a run"),
    ])  # fmt: skip
    def test_mistakes(self, capsys, monkeypatch, tmp_path, arguments, message):
        monkeypatch.chdir(tmp_path)
        for name in ("p.csv", "l.csv", "g.csv"):
            (tmp_path / name).touch()
        assert main(["evaluate", *arguments]) == 2
        assert message in capsys.readouterr().err
