"""`medic predict`: rows in every format, odd names, exit codes, and memory that does not grow."""

import csv
import dataclasses
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc

import pytest
import torch

from medic.cli import main
from medic.deploy import writers
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.evaluation.prediction_files import read_decisions
from tests.data.pictures import picture
from tests.messages import naming
from tests.pages import DOCS, blocks


@pytest.fixture
def predict(trained, capsys):
    """Run the command on the finished run in this process: exit code, standard output, standard error."""

    def run(*arguments, run=trained.path):
        capsys.readouterr()
        code = main(["predict", str(run), *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_rows_are_those_of_the_evaluation(trained, images, predict):
    code, out, err = predict(images / "z")
    rows, kept = rows_of(out), trained.predictions
    target = {str(images / path): place for place, path in enumerate(kept["path"]) if kept["split"][place] == "target"}
    assert code == 0
    assert [row["path"] for row in rows] == sorted(target)
    for row in rows:
        place = target[row["path"]]
        label = kept["prediction"][place]
        assert row["label"] == ("unknown" if label < 0 else trained.predictor.classes[label])
        assert row["known"] == ("false" if label < 0 else "true")
        score = torch.tensor(kept["confidence"][place]).sigmoid()
        assert float(row["score"]) == pytest.approx(float(score), rel=1e-5)
        assert float(row["threshold"]) == trained.predictor.threshold.probability
        probability = torch.from_numpy(kept["logits"][place]).double().softmax(0).max()
        assert float(row["top1_probability"]) == pytest.approx(float(probability), rel=1e-5)
        assert row["error"] == ""
    known = sum(row["known"] == "true" for row in rows)
    assert err == f"{len(rows)} images: {known} known, {len(rows) - known} unknown\n"


def test_names_are_no_formulas(trained, images, predict, tmp_path, monkeypatch):
    """A spreadsheet executes neither a class nor a path, and our own commands read the names as they are."""
    monkeypatch.chdir(tmp_path)
    names = ("=cmd|' /C calc'!A0", "-dog")
    dataclasses.replace(trained.predictor, classes=names).save("model")
    shutil.copy(images / "z" / "cat" / "1.png", "+1.png")
    code, out, _ = predict("./+1.png", "*.png", "--threshold", 0, run="model")
    assert code == 0
    first, second = rows_of(out)
    assert (first["path"], second["path"]) == ("./+1.png", "'+1.png")
    assert {first["top1"], first["top2"]} == {f"'{name}" for name in names}
    assert first["label"] == first["top1"]
    (tmp_path / "rows.csv").write_text(out)
    (tmp_path / "true.csv").write_text("path,class\n./+1.png,-dog\n+1.png,unknown\n")
    decisions = read_decisions(tmp_path / "rows.csv", tmp_path / "true.csv", known=names)
    assert {*decisions.predicted.tolist()} == {names.index(first["top1"][1:])}


def test_unreadable_images_have_their_row_and_an_exit_code(images, predict, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    good = images / "z" / "cat" / "1.png"
    (tmp_path / "list.txt").write_text(f"{tmp_path / 'gone.png'}\n")
    code, out, err = predict(good, tmp_path / "bad.png", f"@{tmp_path / 'list.txt'}", good)
    first, bad, gone, last = rows_of(out)
    assert code == 1
    assert "4 images" in err
    assert "2 unreadable" in err
    assert first["label"] == last["label"] != ""
    for row, name, reason in ((bad, "bad.png", "not in a supported image format"), (gone, "gone.png", "No such file")):
        assert row["path"] == str(tmp_path / name)
        assert reason in row["error"]
        assert {value for key, value in row.items() if key not in ("path", "error")} == {""}


ODD = ["a,b.png", 'say "hi".png', "two\nlines.png", "car\rriage.png", "both\r\n.png", "märz ☃ 😀.png", " space .png"]


@pytest.fixture
def odd(tmp_path):
    """Images with odd names, by the text that stands for them."""
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in ODD:
        picture().save(folder / name, "PNG")
    with open(os.fsencode(folder) + b"/\xff.png", "wb") as file:  # noqa: PTH123
        picture().save(file, "PNG")
    return folder, {str(folder / name) for name in [*ODD, "\\udcff.png"]}


@pytest.mark.parametrize(
    ("kind", "to_file"), [("csv", True), ("csv", False), ("jsonl", True), ("jsonl", False), ("parquet", True)]
)
def test_odd_names_survive_every_format(odd, predict, tmp_path, kind, to_file):
    folder, expected = odd
    file = tmp_path / f"out.{kind}"
    code, out, _ = predict(folder, *(["-o", file] if to_file else ["--format", kind]))
    assert code == 0
    if kind == "parquet":
        from pyarrow import parquet

        rows = parquet.read_table(file).to_pylist()
    else:
        text = file.read_bytes().decode() if to_file else out
        rows = rows_of(text) if kind == "csv" else [json.loads(line) for line in text.splitlines()]
    assert {row["path"] for row in rows} == expected
    assert len(rows) == len(expected)
    assert {row["label"] for row in rows} <= {"cat", "dog", "unknown"}


def test_formats_have_the_same_content(images, predict, tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(writers, "ROWS", 4)  # several groups
    (tmp_path / "bad.png").write_bytes(b"no image")
    for kind in ("csv", "jsonl", "parquet"):
        assert predict(images / "z", tmp_path / "bad.png", "--top", 1, "-o", tmp_path / f"out.{kind}")[0] == 1
    of_csv = rows_of((tmp_path / "out.csv").read_text())
    of_json = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    file = parquet.ParquetFile(tmp_path / "out.parquet")
    of_parquet = file.read().to_pylist()
    assert file.num_row_groups == 4
    assert [*of_csv[0]] == [*of_parquet[0]]
    decision = ["path", "label", "known", "score", "threshold", "p_value"]
    assert [*of_csv[0]] == [*decision, "top1", "top1_probability", "error"]
    assert [*of_json[0]] == [*decision, "top", "error"]
    for one, two, three in zip(of_csv, of_json, of_parquet, strict=True):
        top = two.pop("top")
        assert top == ([] if two["error"] else [{"class": three["top1"], "probability": three["top1_probability"]}])
        assert {key: three[key] for key in two} == two
        assert {key: "" if value is None else str(value) for key, value in three.items()} == {
            **one,
            "known": one["known"].capitalize(),
        }


def test_a_score_that_is_not_a_number_is_valid_json(tmp_path, capsys):
    from medic.deploy.predictor import Prediction

    with writers.open_writer(None, "jsonl", 1, float("inf")) as writer:
        writer.write("x", Prediction("unknown", False, float("nan"), (("cat", 0.5),)))
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (row["score"], row["threshold"]) == (None, None)


def test_threshold(images, predict, settings, trained):
    image = images / "z" / "cat" / "1.png"
    score = float(rows_of(predict(image)[1])[0]["score"])
    for threshold, known in ((score - 1e-3, "true"), (score + 1e-3, "false"), (0, "true"), (1, "false")):
        (row,) = rows_of(predict(image, "--threshold", threshold)[1])
        assert (row["known"], float(row["threshold"])) == (known, threshold)


def test_threshold_of_a_score_that_is_not_a_probability(trained, images):
    import dataclasses

    from medic.openset import get_score

    plain = dataclasses.replace(trained.predictor, score=get_score("max-logit"))
    image = images / "z" / "cat" / "1.png"
    (prediction,) = plain.predict(image)
    assert plain.at(prediction.score - 1e-3).predict(image)[0].known
    assert not plain.at(prediction.score + 1e-3).predict(image)[0].known
    assert plain.at(-2.5).display_threshold == -2.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "1.5"], "threshold 1.5 bcls probability"),
        (["--threshold", "-1"], "threshold -1"),
        (["--threshold", "nan"], "threshold nan"),
        (["--threshold", "high"], "--threshold high number"),
        (["--top", "0"], "--top 0"),
        (["--batch-size", "0"], "--batch-size 0"),
        (["--device", "gpu"], "'gpu' 'cuda'"),
        (["--format", "jsonn"], "'jsonn' 'jsonl'"),
        (["--format", "parquet"], "parquet standard output -o"),
        (["-o", "out.txt"], "out.txt .csv .jsonl .parquet --format"),
        (
            ["-o", "nowhere/out.csv"],
            "--output nowhere/out.csv cannot be written: create the folder nowhere, or use another one",
        ),
        (["-o", ".", "--format", "csv"], "output . folder"),
    ],
)
def test_mistakes(images, predict, options, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = predict(images / "z" / "cat", *options)
    assert (code, out) == (2, "")
    assert re.search(naming(message), err), err
    assert err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_missing_pyarrow_is_named(images, predict, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = predict(images, "-o", tmp_path / "out.parquet")
    assert code == 2
    assert "pip install 'medic-osdg[parquet]'" in err


def test_models_that_cannot_be_used(trained, images, predict, tmp_path):
    copied = tmp_path / "copy"
    shutil.copytree(trained.path, copied)
    assert "contains 1 finished run" in predict(images, run=tmp_path)[2]
    (copied / "done").unlink()
    assert f"medic train --config {copied / 'config.json'} --output {tmp_path}" in predict(images, run=copied)[2]
    shutil.copy(trained.path / "done", copied)
    (copied / WEIGHTS).write_bytes((copied / WEIGHTS).read_bytes()[:-1])
    assert "delete" in predict(images, run=copied)[2]
    code, _, err = predict(images, run=tmp_path / "gone")
    assert code == 2
    assert "does not exist" in err


def test_a_run_after_the_images_is_a_mistake(trained, images, predict):
    for swapped in (images, images / "z" / "cat" / "1.png"):
        code, out, err = predict(trained.path, run=swapped)
        assert (code, out) == (2, "")
        assert f"{swapped} is not a run or a model: pass the run first, then the images" in err


def test_an_argument_that_does_not_exist_is_a_mistake(images, predict, tmp_path):
    code, out, err = predict(images, tmp_path / "nowhere")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "nowhere does not exist" in err
    (tmp_path / "list.txt").write_text(str(tmp_path / "nowhere"))
    assert predict(f"@{tmp_path / 'list.txt'}")[0] == 1


def test_two_files_suffice(trained, images, predict, tmp_path):
    for name in (DESCRIPTION, WEIGHTS):
        shutil.copy(trained.path / name, tmp_path)
    assert predict(images / "z", run=tmp_path) == predict(images / "z")
    assert predict(images / "z", run=tmp_path / DESCRIPTION) == predict(images / "z")


def test_quiet(images, predict):
    assert predict(images / "z", "--quiet")[2] == ""


def test_an_old_file_is_kept_until_the_new_one_is_complete(images, predict, tmp_path, monkeypatch):
    file = tmp_path / "out.csv"
    file.write_text("old")
    values = writers.Writer.values
    counter = itertools.count()

    def interrupted(self, *arguments):
        if next(counter) == 3:
            raise KeyboardInterrupt
        return values(self, *arguments)

    monkeypatch.setattr(writers.Writer, "values", interrupted)
    assert predict(images / "z", "-o", file)[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    assert file.read_text() == "old"
    monkeypatch.undo()
    assert predict(images / "z", "-o", file)[0] == 0
    assert len(rows_of(file.read_text())) == 15


@pytest.fixture
def process(trained):
    """Start the command as a process that reads paths from standard input."""

    def start(*options):
        call = [sys.executable, "-m", "medic", "predict", str(trained.path), "-", *options]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(call, **pipes)

    return start


@pytest.mark.slow
def test_rows_come_before_the_last_path_and_ctrl_c_stops(process, images):
    with process("--batch-size", "1") as running:
        path = os.fsencode(images / "z" / "cat" / "1.png") + b"\n"
        for _ in range(300):  # standard output is buffered
            running.stdin.write(path)
        running.stdin.flush()
        assert running.stdout.readline().startswith(b"path,label")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate()
    assert (running.returncode, err) == (130, b"medic: stopped\n")


@pytest.mark.slow
def test_the_reader_has_gone(process, images):
    with process() as running:
        running.stdout.close()
        running.stdin.write((os.fsencode(images / "z" / "cat" / "1.png") + b"\n") * 300)
        running.stdin.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_paths(images, predict, tmp_path, monkeypatch):
    """3,000 more paths take less than 67 bytes each: a path alone takes more."""
    values, sizes = writers.Writer.values, []

    def measured(self, *arguments):
        sizes.append(tracemalloc.get_traced_memory()[0])
        return values(self, *arguments)

    def peak(count):
        (tmp_path / "list.txt").write_text(f"{images / 'z' / 'cat' / '1.png'}\n" * count)
        sizes.clear()
        assert predict(f"@{tmp_path / 'list.txt'}", "-o", tmp_path / "out.jsonl", "--batch-size", 8)[0] == 0
        return max(sizes)

    monkeypatch.setattr(writers.Writer, "values", measured)
    tracemalloc.start()
    try:
        peak(100)
        assert peak(3500) - peak(500) < 200_000
    finally:
        tracemalloc.stop()


def test_the_page_about_it(trained, watched, tmp_path, monkeypatch, capsys):
    """Its examples in Python are run, except the slow export, and its table has the columns of a row."""
    (tmp_path / "photos").mkdir()
    for number in range(20):
        picture(number).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(trained.path)
    (tmp_path / "runs" / "product").symlink_to(watched)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("docs/use.md")[:2]:
        exec(block.text, names)
    assert len(capsys.readouterr().out.splitlines()) == 3
    columns = re.findall(r"^\| `(.+?)` *(?:,|\|)", (DOCS / "use.md").read_text().split("## Score")[0], re.MULTILINE)
    assert columns == [name for name in writers.JsonWriter(print, 1, 0.5).columns if name != "top1_probability"]


def test_waiting_threads_of_torch_leave_the_cores_to_decoding(images, predict, monkeypatch):
    """The variable is read when torch is imported, so nothing may import it before the command sets it."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert predict(images / "z" / "cat", "--quiet")[0] == 0
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    early = "import medic.cli.options; from medic.cli.main import make_parser; make_parser('predict')"
    check = f"import sys; {early}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
