"""The commands: what they print, and their exit codes."""

import dataclasses
import json
import math
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from medic.cli import demo
from medic.data import BENCHMARKS
from medic.methods import METHODS
from medic.reports.terminal import print_rows
from medic.runs.run import Run
from medic.training import Trainer
from medic.utils.parts import hyperparameters
from tests.built import plan_of
from tests.messages import naming


def test_help_is_fast_and_needs_no_torch():
    code = "import sys, medic.cli; medic.cli.main(['--help']); print('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.strip().endswith("False")
    # Processor time, which other tests that run meanwhile do not change much.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("command", ["demo", "train", "evaluate", "analyze", "figures", "methods", "datasets", "data"])
def test_every_command_has_help(medic, command):
    assert command in medic("--help")[1]
    code, out, _ = medic(command, "--help")
    assert code == 0
    assert f"usage: medic {command}" in out


def test_train_then_evaluate(medic, short):
    code, out, err = medic("train", *short, "--method", "medic++")
    assert code == 0
    assert re.search(r"iteration 2\b.*Acc", err)
    assert re.search(r"street +medic\+\+", out)
    path = out.split()[-1]
    code, out, err = medic("train", *short, "--method", "medic++")
    assert (code, out.split()[-1]) == (0, path)
    assert "iteration 2" not in err
    runs = path.rpartition("/")[0]
    code, _, err = medic("evaluate", runs)
    assert code == 2
    listed = f"pass one of them, such as {path}; `medic runs {runs}` lists them all"
    assert err == f"medic: error: {runs} contains 1 finished run: {listed}\n"
    code, out, _ = medic("evaluate", path)
    assert code == 0
    assert re.search(
        r"^in percent +cls +bcls +max-logit +energy +gen +temperature +platt +kl-matching$", out, re.MULTILINE
    )
    rows = {words[0]: words[1:] for line in out.split("by domain")[0].splitlines() if (words := line.split())}
    metrics = Run(path).metrics
    assert rows["OSCR"][:2] == [f"{100 * metrics[key]:.2f}" for key in ("oscr_c", "oscr_b")]
    assert "score" not in rows
    assert f"bcls {1 / (1 + math.exp(-metrics['threshold'])):.6g}" in " ".join(rows["threshold"])
    assert rows["Acc"] == 8 * [f"{100 * metrics['acc']:.2f}"]
    assert not rows.keys() & {"oscr", "oscr_c", "oscr_b"}
    assert re.search(r"^domain +Acc +H-score +OSCR +AUROC$", out, re.MULTILINE)
    code, _, err = medic("evaluate", path, "--threshold", "hard")
    assert code == 2
    assert re.search(naming("--threshold hard source"), err)
    code, out, _ = medic("table", path, "--metrics", "threshold")
    assert f"{metrics['threshold']:.1f}" in out
    for rule, words in (("oracle-10", "target labels"), ("two-components", "unlabelled"), ("source", None)):
        for options in ([], ["--per-class"]):
            code, out, _ = medic("evaluate", path, "--score", "bcls", "--threshold", rule, *options)
            assert code == 0
            assert words in out if words else "labels" not in out
    code, out, _ = medic("evaluate", path, "--score", "bcls", "--threshold", "oracle-10", "--rerun", "--json")
    bcls = json.loads(out)["bcls"]["target"]
    assert bcls["threshold_rule"] == "oracle-10"
    assert 0 <= bcls["hscore"] <= 1


def test_evaluate_takes_folders_of_unknown_images(medic, short, tmp_path):
    code, out, _ = medic("train", *short, "--method", "medic++")
    path = out.split()[-1]
    noise, grey = tmp_path / "noise", tmp_path / "grey"
    for folder, images in ((noise, np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3))), (grey, [[[[128] * 3]]])):
        folder.mkdir()
        for number, pixels in enumerate(images):
            Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(folder / f"{number}.png")
    code, out, _ = medic("evaluate", path, "--unknown-folder", str(noise), str(grey))
    assert code == 0
    places = [line.split()[:2] for line in out.split("unknown images from")[1].splitlines()[1:]]
    assert [place for place, _ in places] == ["sources", "target", str(noise), str(grey)]
    assert [images for _, images in places][2:] == ["6", "1"]
    code, out, _ = medic("evaluate", path, "--unknown-folder", str(noise), "--score", "cls", "--json")
    measured = json.loads(out)
    assert set(measured) == {"cls", "spectrum"}
    by_place = {row["place"]: row for row in measured["spectrum"]}
    target, on_target = measured["cls"]["target"], by_place["target"]
    assert on_target["target"] == pytest.approx(target["auroc"])
    assert on_target["rejected"] == pytest.approx(target["acc_u"])
    assert 0 <= by_place[str(noise)]["full"] <= 1
    (noise / "broken.png").write_bytes(b"no picture")
    assert medic("evaluate", path, "--unknown-folder", str(noise))[0] == 0
    for options in (["--per-class"], ["--device", "cpu"]):
        arguments = ["--unknown-folder", str(noise)] if options == ["--per-class"] else []
        assert medic("evaluate", path, *arguments, *options)[0] == 2


def test_evaluate_without_a_target_compares_with_the_sources_alone(medic, short, tmp_path):
    code, out, err = medic("train", *["none" if word == "street" else word for word in short], "--method", "erm")
    assert code in (0, 1), err
    path, noise = out.split()[-1], tmp_path / "noise"
    noise.mkdir()
    Image.new("RGB", (32, 32)).save(noise / "0.png")
    arguments = ["evaluate", path, "--unknown-folder", str(noise)]
    code, out, _ = medic(*arguments)
    assert code == 0
    rows = [line.split() for line in out.split("unknown images from")[1].splitlines()[1:]]
    assert [row[0] for row in rows] == ["sources", str(noise)]
    assert all(row[3:5] == ["–", "–"] for row in rows)
    spectrum = json.loads(medic(*arguments, "--score", "cls", "--json")[1])["spectrum"]
    assert {(row["target"], row["full"]) for row in spectrum} == {(None, None)}


def test_evaluate_prints_how_reliable_probabilities_are(medic, short):
    path = medic("train", *short, "--method", "medic++")[1].split()[-1]
    out = medic("evaluate", path)[1]
    by_title = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    header = by_title["in"][1:]
    for title in ("ECE", "Brier"):
        values = dict(zip(header, by_title[title], strict=True))
        assert {name for name, value in values.items() if value != "–"} == {"cls", "bcls", "temperature", "platt"}


def test_evaluate_shows_what_a_run_allows(medic, short):
    """The table of unknown images is left out where the run's score does not go with the rule or is not there."""
    path = medic("train", *short, "--method", "erm", "--score", "energy")[1].split()[-1]
    code, out, _ = medic("evaluate", path, "--threshold", "fixed")
    assert code == 0
    assert "unknown images by origin" not in out
    code, out, _ = medic("evaluate", path, "--rerun", "--score", "knn")
    assert code == 0
    assert "unknown images by origin, knn" in out


def test_methods_and_datasets(medic):
    _, out, _ = medic("methods")
    for name in METHODS:
        assert name in out
    rows = json.loads(medic("methods", "--json")[1])
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(row["differs in"] for row in rows)
    assert [row["paper"] for row in rows] == [method.paper for method in METHODS.values()]
    by_name = {row["method"]: row for row in rows}
    assert by_name["vrex"]["hyperparameters"] == {"weight": 10.0, "anneal": 500}
    assert by_name["vrex"]["run length"] == {"anneal": 5000}
    assert "less in a run of fewer than 5000 iterations" in medic("methods", "vrex")[1]
    assert by_name["miro"]["hyperparameters on"] == {"pacs": {"weight": 0.01}, "vlcs": {"weight": 0.01}}
    assert "handwritten, printed, blended, street" in medic("datasets")[1]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_all_of_a_dataset(medic, name):
    bench, (code, out, _) = BENCHMARKS[name], medic("datasets", name)
    assert code == 0
    assert out.startswith(name)
    assert bench.description in out
    assert f"backbone {bench.backbone}" in out
    assert all(word in out for word in (*bench.domains, *bench.classes))
    assert all(f"ROOT/{folder}" in out for layout in bench.layouts for folder in layout.folders)
    (dataset,) = json.loads(medic("datasets", name, "--json")[1])
    assert sorted([*dataset["known"], *dataset["unknown"]]) == sorted(bench.classes)


def test_classes_and_counts_of_a_dataset(medic):
    out = medic("datasets", "pacs")[1]
    assert re.search(r"^  known +dog, elephant, giraffe, guitar, horse, house\n  unknown +person$", out, re.MULTILINE)
    assert "sketch (3929)" in out
    assert "medic data fetch pacs --root DIR" in out
    assert "fetch" not in medic("datasets", "folder")[1]
    code, _, err = medic("datasets", "pcs")
    assert code == 2
    assert re.search(naming("'pcs' 'pacs'"), err)


def test_methods_fit_into_120_columns(medic):
    out = medic("methods")[1]
    assert max(map(len, out.splitlines())) <= 120
    for name, method in METHODS.items():
        (start,) = (match.end() for match in re.finditer(rf"^{re.escape(f'{name:<15}')} ", out, re.MULTILINE))
        entry = out[start:].split("\n", 3)
        assert method.idea in entry[0]
        assert method.differs in entry[1]
        assert method.citation in entry[2]
        assert (f"; {method.paper} in the paper;" if method.paper else "not in the paper") in entry[2]
        assert ("experimental" in entry[0]) == method.experimental


@pytest.mark.parametrize("name", METHODS)
def test_all_of_a_method(medic, name):
    out = medic("methods", name)[1]
    assert METHODS[name].citation in out
    averaging = METHODS[name].preset.get("averaging", "none")  # the default one is no part of a method
    plan = plan_of(method=name, averaging=averaging, iterations=5000)  # as many as in DomainBed
    declared = {owned: field for part in plan.parts for owned, field in hyperparameters(part.kind).items()}
    for owned in plan.config.settings["hparams"] or {}:
        assert f"{owned.split('.')[-1]}=" in out
        for dataset, value in declared[owned.split(".")[-1]].metadata["on"].items():
            assert f"{value:g} on {dataset}" in out
    for searched, law in plan.search.items():
        assert f"{searched}=" in out or f"--{searched.replace('_', '-')}" in out
        assert str(law) in out


def test_defaults_on_a_benchmark(medic):
    assert "weight=0.1  (0.01 on pacs; 0.01 on vlcs)" in medic("methods", "miro")[1]
    code, _, err = medic("methods", "mirro")
    assert code == 2
    assert re.search(naming("'mirro' 'miro'"), err)


def test_cells_are_printed_as_they_are(capsys):
    """Brackets are no markup, and no line is cut where nobody watches."""
    print_rows([{"run": "/data/runs[v2]/a", "what": "long " * 60}])
    assert f"/data/runs[v2]/a  {'long ' * 60}".rstrip() in capsys.readouterr().out


def test_data_check(medic, tmp_path):
    from PIL import Image

    for index, (domain, label) in enumerate((d, c) for d in "xy" for c in ("cat", "dog")):
        folder = tmp_path / "r" / domain / label
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8), (index * 20, 9, 9)).save(folder / "1.png")
    code, out, _ = medic("data", "check", "folder", "--root", str(tmp_path / "r"))
    assert code == 0
    assert re.search(r"^x +2 +1 +1$", out, re.MULTILINE)
    assert re.search(r"^image hash: [0-9a-f]{64}$", out, re.MULTILINE)
    assert re.search(r"^unreadable images: none\b", out, re.MULTILINE)
    (tmp_path / "r" / "x" / "cat" / "2.png").write_bytes((tmp_path / "r" / "x" / "cat" / "1.png").read_bytes())
    (tmp_path / "r" / "x" / "cat" / "3.png").write_bytes(b"")
    code, out, _ = medic("data", "check", "folder", "--root", str(tmp_path / "r"))
    assert code == 1
    assert re.search(r"\b1\n  x/cat/1.png = x/cat/2.png", out)
    assert re.search(r"\b1\n  .*3.png", out)
    assert "unreadable images: none" not in out


def test_warnings_are_notes_that_name_things(medic, short):
    code, _, err = medic("train", *short, "--batch-size", "40", "--iterations", "1")
    assert code == 0
    notes = [line for line in err.splitlines() if line.startswith("medic: note: ")]
    named = r".* '(handwritten|printed|blended)'.* '[0-5]'.* 8 .* 20\b.*"
    assert [bool(re.fullmatch(named, note)) for note in notes] == [True]


def test_debug_shows_the_traceback(medic):
    with pytest.raises(ValueError, match="medik"):
        medic("train", "--target", "street", "--method", "medik", "--debug")


def test_a_run_that_diverges_exits_1(medic, short):
    code, _, err = medic("train", *short, "--method", "erm", "--lr", "1e8", "--batch-size", "8", "--iterations", "30")
    assert code == 1
    assert re.search(r"^medic: error: .*iteration \d+\b.*checkpoint.*iteration \d+\b", err, re.MULTILINE)


def test_ctrl_c_exits_130_and_resumes(medic, short, monkeypatch):
    step = Trainer.step

    def interrupted(self):
        import signal

        loss = step(self)
        signal.raise_signal(signal.SIGINT)
        return loss

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        code, _, err = medic("train", *short, "--method", "erm")
    assert code == 130
    assert re.search(r"^medic: .*iteration 1\b", err, re.MULTILINE)
    assert medic("train", *short, "--method", "erm")[0] == 0


@pytest.mark.slow
def test_demo(medic, mini, monkeypatch, tmp_path):
    """The whole of it on a tenth of the images, with all targets, in this process."""
    small = dataclasses.replace(BENCHMARKS[mini], name="digits", split=BENCHMARKS["digits"].split)
    monkeypatch.setitem(BENCHMARKS, "digits", small)
    monkeypatch.setattr(demo, "EXECUTOR", "here")
    code, out, err = medic("demo", "--all", "--iterations", "2", "--seeds", "2", "--output", str(tmp_path / "demo"))
    assert code == 0, err
    assert re.search(r"^Avg +Acc +H-score +OSCR cls +OSCR bcls\nerm +\d+\.\d .*\nmedic\+\+ +\d+\.\d ", out, re.M)
    table = re.search(r"^OSCR bcls +seed 0 +seed 1\n.*\n.*\n.*$", out, re.MULTILINE)[0].splitlines()
    erm, medicpp, difference = ([float(value) for value in line.split()[1:]] for line in table[1:])
    assert difference == pytest.approx([b - a for a, b in zip(erm, medicpp, strict=True)], abs=0.11)
    note = demo.describe_order(difference)
    page = (tmp_path / "demo" / "index.html").read_text()
    assert note in page
    assert note in out
    reports = sorted((tmp_path / "demo").glob("*/report.html"))
    assert len(reports) == 8  # of the first seed
    assert all(f'"report": "{report.parent.name}/report.html"' in page for report in reports)


def test_the_order_of_the_demo():
    assert BENCHMARKS["digits"].domains == demo.DOMAINS
    assert demo.describe_order([1.0, 0.5]) == "medic++ is ahead in OSCR bcls with all 2 seeds."
    assert demo.describe_order([-1.0, -0.5]) == "erm is ahead in OSCR bcls with all 2 seeds."
    assert "0 of 2 seeds" in demo.describe_order([-1.0, 0.0])
    unstable = "the order of the two methods is not stable."
    assert demo.describe_order([1.0, -1.0, 2.0]) == f"medic++ is ahead in OSCR bcls with 2 of 3 seeds: {unstable}"


@pytest.mark.nightly
def test_the_demo_on_all_images(medic, tmp_path):
    """As a new user runs it, with one seed."""
    code, out, _ = medic("demo", "--device", "cpu", "--seeds", "1", "--output", str(tmp_path))
    assert code == 0
    assert (tmp_path / "index.html").exists()
    assert "training erm and medic++" in out.splitlines()[0]
    for path in tmp_path.glob("*/results.jsonl"):
        run = Run(path.parent)
        assert run.learned
        assert run.record["validation"]["acc"] > 0.4  # chance is 1/6


def test_module_is_the_command():
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "medic", "--version"], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith("medic ")


def test_bad_images_on_the_command_line(medic, tmp_path, monkeypatch):
    """One line by default; with `skip` a counted note, and a run."""
    from tests.data.pictures import picture

    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    for domain in ("x", "y", "z"):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / domain / label
            folder.mkdir(parents=True)
            for number in range(5):
                picture(number).save(folder / f"{number}.png")
    bad = tmp_path / "images" / "x" / "cat" / "bad one.jpg"
    bad.write_bytes(b"not a picture")
    command = [
        "train", "--dataset", "folder", "--root", str(tmp_path / "images"), "--target", "z", "--backbone", "convnet",
        "--iterations", "1", "--batch-size", "2", "--output", str(tmp_path / "runs"),
    ]  # fmt: skip
    code, _, err = medic(*command)
    assert code == 2
    assert re.search(rf"^medic: error: {re.escape(str(bad))} .*--on-bad-image skip", err, re.MULTILINE)
    code, out, err = medic(*command, "--on-bad-image", "skip")
    assert code == 0
    assert re.search(rf"report with: medic report \S+ --root {re.escape(str(tmp_path))}/images$", out, re.MULTILINE)
    assert re.search(naming(f"1 image {bad}"), err)
    assert re.search(naming("class known rejects leave-one-class-out"), err)
