"""The command line: what it prints, what it refuses, and its exit codes."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
import yaml

from medic.cli import main
from medic.cli.options import SPELLINGS
from medic.data import BENCHMARKS
from medic.experiments.directory import Run
from medic.methods import METHODS
from medic.report.table import print_rows
from medic.training import Trainer


@pytest.fixture
def medic(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def short(mini, tmp_path):
    """The options of a run of a second."""
    return [
        "--dataset", mini, "--target", "street", "--iterations", "2", "--batch-size", "2",
        "--output", str(tmp_path / "runs"),
    ]  # fmt: skip


def test_help_is_fast_and_needs_no_torch():
    code = "import sys, medic.cli; medic.cli.main(['--help']); print('torch' in sys.modules)"
    best = 9.0
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        best = min(best, time.perf_counter() - began)
    assert done.stdout.strip().endswith("False")
    assert best < 0.5


@pytest.mark.parametrize("command", ["demo", "train", "evaluate", "methods", "datasets", "data"])
def test_every_command_has_help(medic, command):
    assert command in medic("--help")[1]
    code, out, _ = medic(command, "--help")
    assert code == 0
    assert f"usage: medic {command}" in out


def test_train_then_evaluate(medic, short):
    code, out, err = medic("train", *short, "--method", "medic++")
    assert code == 0
    assert "iteration 2: validation acc" in err
    assert re.search(r"street +medic\+\+", out)
    assert "selected by source validation" in out
    path = out.split()[-1]
    code, out, err = medic("train", *short, "--method", "medic++")
    assert (code, "is finished" in err) == (0, True)
    runs = path.rpartition("/")[0]
    code, _, err = medic("evaluate", runs)
    assert (code, f"{runs} has 1 finished run in it: give one of them, {path}; `medic table {runs}" in err) == (2, True)
    code, out, _ = medic("evaluate", path)
    assert code == 0
    assert re.search(r"^in percent +cls +bcls +max-logit +energy$", out, re.MULTILINE)
    shown = {words[0]: words[1:] for line in out.split("by domain")[0].splitlines() if (words := line.split())}
    metrics = Run(path).metrics
    assert shown["OSCR"][:2] == [f"{100 * metrics[key]:.2f}" for key in ("oscr_c", "oscr_b")]
    assert shown["threshold"][1] == f"{metrics['threshold']:.4f}"
    assert shown["Acc"] == 4 * [f"{100 * metrics['acc']:.2f}"]
    assert not shown.keys() & {"oscr", "oscr_c", "oscr_b"}
    assert re.search(r"^domain +Acc +H-score +OSCR +auroc$", out, re.MULTILINE)
    code, _, err = medic("evaluate", path, "--threshold", "hard")
    assert (code, "goes with threshold 'hard': use source" in err) == (2, True)
    code, out, _ = medic("table", path, "--metrics", "threshold")
    assert f"{metrics['threshold']:.1f}" in out
    code, out, _ = medic("evaluate", path, "--score", "bcls", "--threshold", "oracle-10", "--rerun", "--json")
    found = json.loads(out)["bcls"]["target"]
    assert found["threshold_rule"] == "oracle-10"
    assert 0 <= found["hscore"] <= 1


def test_methods_and_datasets(medic):
    _, out, _ = medic("methods")
    for name in METHODS:
        assert name in out
    rows = json.loads(medic("methods", "--json")[1])
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(row["differs in"] for row in rows)
    assert [row["paper"] for row in rows] == [method.paper for method in METHODS.values()]
    assert [row["CUDA graph"] for row in rows] == [method.capturable for method in METHODS.values()]
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
    (found,) = json.loads(medic("datasets", name, "--json")[1])
    assert sorted([*found["known"], *found["unknown"]]) == sorted(bench.classes)


def test_classes_and_counts_of_a_dataset(medic):
    out = medic("datasets", "pacs")[1]
    assert re.search(r"^  known +dog, elephant, giraffe, guitar, horse, house\n  unknown +person$", out, re.MULTILINE)
    assert "sketch (3929)" in out
    assert "medic data fetch pacs --root DIR" in out
    assert "fetch" not in medic("datasets", "folder")[1]
    code, _, err = medic("datasets", "pcs")
    assert (code, "did you mean 'pacs'" in err) == (2, True)


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
        assert entry[2].endswith("; one CUDA graph" if method.capturable else "; no CUDA graph")
        assert ("experimental" in entry[0]) == method.experimental


@pytest.mark.parametrize("name", METHODS)
def test_all_of_a_method(medic, name):
    out = medic("methods", name)[1]
    assert METHODS[name].citation in out
    for number in METHODS[name].search:
        assert f"{number}=" in out or f"--{number.replace('_', '-')}" in out
    for own in METHODS[name].numbers.values():
        assert all(f"{number.partition('.')[2]}=" in out for number in own)


def test_numbers_of_a_benchmark(medic):
    assert "weight=0.1  (0.01 on pacs; 0.01 on vlcs)" in medic("methods", "miro")[1]
    code, _, err = medic("methods", "mirro")
    assert (code, "did you mean 'miro'" in err) == (2, True)


def test_print_config_and_overrides(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: medic\nlr: 0.5\nsteps: [2, 2]\nknown: ['0', '1', '2']\n")
    code, out, _ = medic("train", "--config", str(config), "--lr", "0.25", "--print-config")
    assert code == 0
    printed = yaml.safe_load(out)
    assert (printed["target"], printed["method"], printed["lr"]) == (["printed"], "medic", 0.25)
    assert printed["known"] == ["0", "1", "2"]
    assert yaml.safe_load(medic("train", "--lr", "0.25", "--config", str(config), "--print-config")[1])["lr"] == 0.25
    config.write_text("target_domains: printed\nalgorithm: medic\nbatch-size: 4\nknown: [0, 1, 2]\nlr: null\n")
    aliased = yaml.safe_load(medic("train", "--config", str(config), "--print-config")[1])
    assert (aliased["method"], aliased["batch_size"], aliased["known"]) == ("medic", 4, ["0", "1", "2"])
    config.write_text(out)
    assert medic("train", "--config", str(config), "--print-config")[1] == out


def test_cells_are_printed_as_they_are(capsys):
    """Brackets are no markup, and no line is cut where nobody watches."""
    print_rows([{"run": "/data/runs[v2]/a", "what": "long " * 60}])
    assert f"/data/runs[v2]/a  {'long ' * 60}".rstrip() in capsys.readouterr().out


def test_usual_values_on_the_line_win_over_a_file_too(medic, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("target: printed\nmethod: erm\niterations: 1000\nseed: 3\noutput: elsewhere\n")
    line = ("--iterations", "300", "--method", "medic++", "--seed", "0", "--output", "runs")
    printed = yaml.safe_load(medic("train", "--config", str(config), *line, "--print-config")[1])
    assert [printed[name] for name in ("iterations", "method", "seed", "output")] == [300, "medic++", 0, "runs"]
    config.write_text("target: printed\noutput: elsewhere\nspan: {seed: [1, 2]}\n")
    _, out, _ = medic("sweep", str(config), "--seed", "0", "--output", str(tmp_path / "o"), "--dry-run")
    assert "1 run, 0 of them there, 1 to do" in out
    config.write_text("method: erm\n")
    for line in (["--config", str(config)], ["--method", "medic++"], ["--seed", "0"]):
        code, _, err = medic("reproduce", "paradigms", "--quick", "--dry-run", *line)
        assert (code, "would make other rows or columns" in err) == (2, True)


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        (("--method", "erm"), {"method": "erm"}),
        (("--method", "ebil-hads", "--lr", "0.01"), {"method": "ebil-hads", "lr": "0.01"}),
        (("--images", "72"), {"images": "72"}),
        (("--target", "street"), {"target": "street"}),
        (("--class-splits", "2", "--steps", "2"), {"class-splits": "2", "steps": "2"}),
        (("--objective", "ce"), {"objective": "ce"}),
        (("--dataset", "digits", "--optimizer", "adam"), {"optimizer": "adam"}),
        (("--hparams-seed", "3", "--optimizer", "adam"), {"hparams-seed": "3", "optimizer": "adam"}),
    ],
)  # fmt: skip
def test_what_follows_from_a_complete_file_follows_the_line(medic, tmp_path, asked, changed):
    given = {"target": "printed", "method": "medic++", "lr": "0.05", "iterations": "7"}

    def printed(settings):
        return medic("train", *(part for name, value in settings.items() for part in (f"--{name}", value)),
                     "--print-config")[1]  # fmt: skip

    config = tmp_path / "complete.yaml"
    config.write_text(printed(given))
    code, out, err = medic("train", "--config", str(config), *asked, "--print-config")
    assert (code, err) == (0, "")
    assert out == printed(given | changed)
    config.write_text(out)  # from here on it is the same
    assert medic("train", "--config", str(config), "--iterations", "9", "--print-config")[1] == printed(
        given | changed | {"iterations": "9"}
    )


def test_other_codebases_spellings(medic):
    plain = medic("train", "--target", "street", "--method", "erm", "--known", "0", "1", "--print-config")
    assert plain[0] == 0
    aliased = medic(
        "train", "--target-domains", "street", "--algorithm", "erm", "--known-classes", "0", "1", "--print_config"
    )
    assert aliased == plain
    assert medic("train", "--target_domains", "street", "--algorithm=erm", "--known=0,1", "--print-config") == plain
    for spelling in SPELLINGS:
        assert spelling in " ".join(medic("train", "--help")[1].split())


TRAIN = ["train", "--target", "street"]
SWEEP = ["sweep", "--target", "street", "--method", "erm"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["trian"], "unknown command 'trian', did you mean 'train'?"),
    ([*TRAIN, "--method", "medik"], "unknown method 'medik', did you mean 'medic'?"),
    ([*TRAIN, "--known", "0", "1", "11"], "unknown class '11', choose from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
    ([*TRAIN, "--method", "vrex", "--hparams", "weigth=1"],
     "unknown number 'weigth' of method 'vrex', did you mean 'weight'?"),
    ([*TRAIN, "--dataset", "digitz"], "unknown dataset 'digitz', did you mean 'digits'?"),
    (["train", "--target", "streat"], "unknown domain 'streat', did you mean 'street'?"),
    (["train"], "no target given: choose the domain to test on, one of handwritten, printed, blended, street"),
    ([*TRAIN, "--backbone", "convnett"], "unknown backbone 'convnett', did you mean 'convnet'?"),
    ([*TRAIN, "--iteration", "3"], "unknown option '--iteration', did you mean '--iterations'?"),
    ([*TRAIN, "--seed", "1", "stray"], "unexpected argument 'stray'; see `medic train --help`"),
    ([*TRAIN, "--sources", "street", "printed"], "the target 'street' is among the sources street, printed"),
    ([*TRAIN, "--steps", "3,3"], "steps 3,3 hold 6 tasks, but the grid has 9"),
    ([*TRAIN, "--steps", "5001"], "the length of training is set by iterations (--iterations)"),
    ([*TRAIN, "--class-splits", "7"], "7 class splits need 7 known classes or more, but there are 6"),
    ([*TRAIN, "--lr", "0"], "lr is 0.0: give a number above 0"),
    ([*TRAIN, "--lr", "-0.1"], "lr is -0.1: give a number above 0"),
    ([*TRAIN, "--lr", "fast"], "--lr fast: expected a number"),
    ([*TRAIN, "--lr", "nan"], "--lr nan: expected a number"),
    ([*TRAIN, "--iterations", "0"], "iterations is 0"),
    ([*TRAIN, "--iterations", "1.5"], "--iterations 1.5: expected a whole number"),
    ([*TRAIN, "--batch-size", "-3"], "batch_size is -3"),
    ([*TRAIN, "--weights", "gone.pt"], "weights gone.pt do not exist"),
    ([*TRAIN, "--config", "gone.yaml"], "gone.yaml"),
    ([*TRAIN, "--output", "/proc/nothing"], "output /proc/nothing cannot be written"),
    (["evaluate", "gone"], "run gone does not exist"),
    ([*TRAIN, "--target", "each"], "use `medic sweep --span target=each`"),
    (["evaluate"], "run"),
    (["evaluate", "gone", "--scor", "x"], "unknown option '--scor', did you mean '--score'?"),
    (["demo", "--target", "streat"], "unknown domain 'streat', did you mean 'street'?"),
    (["demo", "--iterations", "0"], "iterations is 0"),
    (["data"], "what to do? `medic data check NAME --root DIR` or `medic data fetch NAME --root DIR`"),
    (["data", "check"], "which dataset? `medic data check NAME`; `medic datasets` names them"),
    (["data", "chek", "pacs", "--root", "x"], "unknown action 'chek', did you mean 'check'?"),
    (["data", "check", "pcs", "--root", "x"], "unknown dataset 'pcs', did you mean 'pacs'?"),
    (["data", "check", "pacs"], "dataset 'pacs' needs --root, the folder that its images are in; `medic data fetch"),
    (["data", "check", "folder"], "dataset 'folder' needs --root, the folder that its images are in\n"),
    (["data", "fetch", "pacs"], "no root given"),
    ([*TRAIN, "--batch-norm", "sync"], "batch_norm 'sync' needs several processes on GPUs"),
    ([*TRAIN, "--capture", "on", "--device", "cpu"], "capture 'on' makes CUDA graphs, and this run is not on a GPU"),
    ([*TRAIN, "--precision", "tf32", "--device", "cpu"], "precision 'tf32' is of GPUs"),
    ([*TRAIN, "--precision", "fp16"], "unknown precision 'fp16'"),
    ([*TRAIN, "--compile", "on", "--method", "medic"], "method 'medic' differentiates twice"),
    (["data", "check", "pacs", "--root", "gone"],
     "root gone does not exist: give the folder that pacs is in; `medic data fetch pacs --root DIR` gets it"),
    (["data", "check", "digits", "--root", "."], "dataset 'digits' is built in: it takes no --root"),
    (["data", "check", "pacs", "--root", ".", "--url", "http://x"], "--url is an option of `medic data fetch`"),
    (["demo", "--all", "--target", "street"], "--all is every target and --target is one"),
    ([*TRAIN, "--steps", "0,9"], "steps 0,9: a step holds at least one of the 9 tasks"),
    ([*TRAIN, "--lr", "0.1", "--learning-rat", "1"], "did you mean '--learning-rate'"),
    ([*SWEEP, "--executor", "rai"], "unknown executor 'rai', did you mean 'ray'?"),
    ([*SWEEP, "--span", "seed=[1"], "span 'seed=[1': a value cannot be read"),
    ([*SWEEP, "--jobs", "0"], "jobs is 0: give a whole number, 1 or more"),
    ([*SWEEP, "--retries", "-1"], "retries is -1: give a whole number, 0 or more"),
    ([*SWEEP, "--address", "head:6379"], "--address is an option of --executor ray"),
    ([*SWEEP, "--executor", "slurm", "--cpus-per-run", "2"], "--cpus-per-run is an option of --executor ray"),
    ([*SWEEP, "--executor", "ray", "--cpus-per-run", "0"], "cpus_per_run is 0: give a whole number, 1 or more"),
    ([*SWEEP, "--executor", "ray", "--slurm", "gpus=1"], "--slurm is an option of --executor slurm"),
    ([*SWEEP, "--executor", "ray", "--address", "head:1", "--host", "::"], "--host is for one that the sweep starts"),
    ([*SWEEP, "--executor", "slurm", "--retries", "2"], "--retries is for executors that wait"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "Time=1"], "slurm 'Time=1': give options of sbatch, as in time=2:"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "time="], "slurm 'time=': give options of sbatch"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "array=0-3"], "slurm 'array=0-3': the sweep sets array itself"),
])  # fmt: skip
def test_mistakes_are_one_line_and_exit_2(medic, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = medic(*arguments)
    assert code == 2
    assert message in err
    assert err.startswith("medic: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_where_a_sweep_cannot_run(medic, mini, tmp_path, monkeypatch):
    """A cluster that does not answer, and a machine without Slurm: one line each, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    sweep = [*SWEEP, "--dataset", mini, "--quiet"]
    code, out, err = medic(*sweep, "--executor", "ray", "--address", address)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"medic: error: no Ray answers at {address}: Connection refused; check host, port and firewall"
    )
    assert err.count("\n") == 1
    code, out, err = medic(*sweep, "--executor", "slurm")
    assert (code, out) == (2, "")
    assert err == (
        "medic: error: executor 'slurm' needs sbatch, which is not on this machine; --dry-run prints the script\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "message"), [
    ("targt: street\n", "c.yaml, did you mean 'target'?"),
    ("lr: fast\n", "lr is 'fast': give a number above 0"),
    ("lr: [0.1\n", "line 2: expected ',' or ']', but got '<stream end>', while parsing a flow sequence that"),
    ("lr: 1\n  seed: 2\n", "c.yaml, line 2: mapping values are not allowed here\n"),
    ("lr: \0\n", "cannot be read: unacceptable character #x0000: special characters are not allowed\n"),
    ("- a\n- b\n", "does not hold settings"),
    ("", "does not hold settings"),
    ("iterations: 2.5\n", "iterations is 2.5: give a whole number"),
])  # fmt: skip
def test_mistakes_in_a_configuration_file(medic, tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = medic("train", "--target", "street", "--config", str(tmp_path / "c.yaml"))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_data_check(medic, tmp_path):
    from PIL import Image

    for index, (domain, label) in enumerate((d, c) for d in "xy" for c in ("cat", "dog")):
        folder = tmp_path / "r" / domain / label
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8), (index * 20, 9, 9)).save(folder / "1.png")
    code, out, _ = medic("data", "check", "folder", "--root", str(tmp_path / "r"))
    assert code == 0
    assert re.search(r"^x +2 +1 +1$", out, re.MULTILINE)
    assert re.search(r"^hash of the images: [0-9a-f]{64}$", out, re.MULTILINE)
    (tmp_path / "r" / "x" / "cat" / "2.png").write_bytes((tmp_path / "r" / "x" / "cat" / "1.png").read_bytes())
    (tmp_path / "r" / "x" / "cat" / "3.png").write_bytes(b"")
    code, out, _ = medic("data", "check", "folder", "--root", str(tmp_path / "r"))
    assert code == 1
    assert "the same image more than once: 1\n  x/cat/1.png = x/cat/2.png" in out
    assert re.search(r"cannot be read: 1\n  .*3.png is empty", out)


def test_warnings_are_notes_that_name_things(medic, short):
    code, _, err = medic("train", *short, "--batch-size", "40", "--iterations", "1")
    assert code == 0
    notes = [line for line in err.splitlines() if line.startswith("medic: note: ")]
    said = r".*: domain '(handwritten|printed|blended)', class '[0-5]' has 8 samples for 20 of a task: some repeat"
    assert [bool(re.fullmatch(said, note)) for note in notes] == [True]


def test_debug_shows_the_traceback(medic):
    with pytest.raises(ValueError, match="medik"):
        medic("train", "--target", "street", "--method", "medik", "--debug")


def test_a_run_that_diverges_exits_1(medic, short):
    code, _, err = medic("train", *short, "--method", "erm", "--lr", "1e8", "--batch-size", "8", "--iterations", "30")
    assert code == 1
    assert re.search(r"^medic: error: .* at iteration \d+; the checkpoint of iteration 0 is kept", err, re.MULTILINE)


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
    assert "medic: stopped at iteration 1; the same command resumes it" in err
    assert medic("train", *short, "--method", "erm")[0] == 0


def test_demo(medic, mini, monkeypatch, tmp_path):
    """The whole of it on a tenth of the images, with all targets."""
    monkeypatch.setitem(BENCHMARKS, "digits", BENCHMARKS[mini])
    code, out, _ = medic("demo", "--all", "--iterations", "2", "--output", str(tmp_path / "demo"))
    assert code == 0
    assert len(re.findall(r"^(handwritten|printed|blended|street|average) +(erm|medic\+\+)", out, re.MULTILINE)) == 10
    page = (tmp_path / "demo" / "index.html").read_text()
    for text in ("H-score", "OSCR bcls", "Target printed", "unknown, called unknown", "<svg", "data:image/png"):
        assert text in page
    assert "One seed after 2 iterations is an example, not a result." in page
    assert "<th>images (hash)</th>" in page
    read = re.search(r'<svg role="img" aria-label="OSCR curves on street; areas ([^"]*)"', page)
    assert re.fullmatch(
        r"erm, cls: [\d.]+; erm, bcls: [\d.]+; medic\+\+, cls: [\d.]+; medic\+\+, bcls: [\d.]+", read[1]
    )
    assert page.count("<figcaption") == 4
    links = re.findall(r'<td><a href="([^"]+)">', page)
    assert len(links) == 8
    assert all((tmp_path / "demo" / link / "config.yaml").exists() for link in links)
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "<script" not in page


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
    assert err.splitlines()[-1] == f"medic: error: {bad} is not an image; --on-bad-image skip leaves it out"
    code, _, err = medic(*command, "--on-bad-image", "skip")
    assert code == 0
    assert f"1 image left out: {bad} is not an image" in err
    assert "every class is known, so only the accuracy is measured" in err
