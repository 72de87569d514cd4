"""What the command line refuses: in one line, with exit code 2."""

import socket

import pytest

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
    (["train"], "no target given: choose a domain with --target, one of handwritten, printed, blended, street"),
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
    (["data"], "`medic data check NAME --root DIR` or `medic data fetch NAME --root DIR`"),
    (["data", "check"], "`medic data check NAME`; `medic datasets`"),
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
     "root gone does not exist: give the folder that pacs is in; `medic data fetch pacs --root DIR`"),
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
