"""What the command line refuses: in one line, with exit code 2."""

import re
import socket
import threading

import pytest

from tests.messages import naming

TRAIN = ["train", "--target", "street"]
SWEEP = ["sweep", "--target", "street", "--method", "erm"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["trian"], "'trian' 'train'"),
    ([*TRAIN, "--method", "medik"], "'medik' 'medic'"),
    ([*TRAIN, "--method", "IRM"], "'IRM' choose from erm"),
    ([*TRAIN, "--method", "erm,vrex"], "'erm,vrex' sweep --span method=erm,vrex"),
    ([*TRAIN, "--score", "blcs"], "'blcs' 'bcls'"),
    ([*TRAIN, "--averaging", "swat"], "'swat' 'swad'"),
    ([*TRAIN, "--pretrained"], "'--pretrained' --weights"),
    (["train", "--root", "x", "--target", "y"], "--root --dataset folder"),
    (["data", "check", "."], "folder --root"),
    (["predict", "nowhere", "x"], "nowhere does not exist"),
    (["calibrate", ".", "--accept", "2"], "--accept 2"),
    ([*TRAIN, "--known", "0", "1", "11"], "'11' 0 1 9"),
    ([*TRAIN, "--method", "vrex", "--hparams", "weigth=1"],
     "'weigth' 'vrex' 'weight'"),
    ([*TRAIN, "--dataset", "digitz"], "'digitz' 'digits'"),
    (["train", "--target", "streat"], "'streat' 'street'"),
    (["train"], "target handwritten printed blended street"),
    ([*TRAIN, "--backbone", "convnett"], "'convnett' 'convnet'"),
    ([*TRAIN, "--iteration", "3"], "'--iteration' '--iterations'"),
    ([*TRAIN, "--seed", "1", "stray"], "'stray' --help"),
    ([*TRAIN, "--sources", "street", "printed"], "target 'street' sources"),
    ([*TRAIN, "--steps", "3,3"], "steps 3,3 6 9"),
    ([*TRAIN, "--steps", "5001"], "5001 --iterations"),
    ([*TRAIN, "--class-splits", "7"], "class 7 6"),
    ([*TRAIN, "--lr", "0"], "--lr must be a number above 0, got 0"),
    ([*TRAIN, "--lr", "-0.1"], "lr -0.1"),
    ([*TRAIN, "--lr", "fast"], "--lr fast"),
    ([*TRAIN, "--lr", "nan"], "--lr nan"),
    ([*TRAIN, "--iterations", "0"], "iterations 0"),
    ([*TRAIN, "--iterations", "1.5"], "--iterations 1.5"),
    ([*TRAIN, "--batch-size", "-3"], "batch_size -3"),
    ([*TRAIN, "--weights", "gone.pt"], "weights gone.pt"),
    ([*TRAIN, "--lr"], "--lr one value"),
    ([*TRAIN, "--config", "gone.yaml"], "gone.yaml path"),
    ([*TRAIN, "--penalty", ""], "penalty ''"),
    (["sweep", "gone.yaml"], "gone.yaml path"),
    (["train", "--target"], "--target --sources"),
    ([*TRAIN, "--device", "gpu"], "'gpu' 'cuda'"),
    ([*TRAIN, "--output", "/proc/nothing"], "output /proc/nothing"),
    (["evaluate", "gone"], "gone"),
    ([*TRAIN, "--target", "each"], "sweep --span target=each"),
    (["evaluate"], "RUN"),
    (["evaluate", "gone", "--scor", "x"], "'--scor' '--score'"),
    (["demo", "--target", "streat"], "'streat' 'street'"),
    (["demo", "--iterations", "0"], "iterations 0"),
    (["data"], "check fetch --root"),
    (["data", "check"], "datasets"),
    (["data", "chek", "pacs", "--root", "x"], "'chek' 'check'"),
    (["data", "check", "pcs", "--root", "x"], "'pcs' 'pacs'"),
    (["data", "check", "pacs"], "'pacs' --root fetch"),
    (["data", "check", "folder"], "'folder' --root"),
    (["data", "fetch", "pacs"], "--root"),
    ([*TRAIN, "--batch-norm", "sync"], "batch_norm 'sync' GPU torchrun"),
    ([*TRAIN, "--capture", "on", "--device", "cpu"], "--capture on GPU"),
    ([*TRAIN, "--precision", "tf32", "--device", "cpu"], "--precision tf32"),
    ([*TRAIN, "--precision", "fp16"], "precision 'fp16'"),
    ([*TRAIN, "--compile", "on", "--method", "medic"], "'medic'"),
    (["data", "check", "pacs", "--root", "gone"],
     "root gone pacs fetch"),
    (["data", "check", "digits", "--root", "."], "'digits' --root"),
    (["data", "check", "pacs", "--root", ".", "--url", "http://x"], "--url fetch"),
    (["demo", "--all", "--target", "street"], "--all --target"),
    ([*TRAIN, "--steps", "0,9"], "steps 0,9 9"),
    ([*TRAIN, "--lr", "0.1", "--learning-rat", "1"], "'--learning-rat' '--learning-rate'"),
    ([*SWEEP, "--executor", "rai"], "'rai' 'ray'"),
    ([*SWEEP, "--span", "seed=[1"], "span 'seed=[1'"),
    ([*SWEEP, "--span", "seed=0..1000000000000"], "seed 1,000,000,000,001"),
    ([*SWEEP, "--span", f"seed={'9' * 5000}"], "span"),
    ([*SWEEP, "--span", f"seed=0..{'9' * 5000}"], "seed"),
    ([*TRAIN, "--seed", "9" * 5000], "--seed"),
    ([*TRAIN, "--seed", "9" * 400], "seed"),
    ([*TRAIN, "--steps", "[" * 900 + "]" * 900], "steps"),
    ([*TRAIN, "--method", "vrex", "--hparams", "weight=1,weight=2"], "--hparams weight"),
    ([*TRAIN, "--method", "vrex", "--hparams", '{"weight": 1, "weight": 2}'], "--hparams weight"),
    ([*SWEEP, "--executor", "slurm", "--dry-run", "--output", "a\n touch b"], "--output touch"),
    ([*SWEEP, "--jobs", "0"], "jobs 0"),
    ([*SWEEP, "--retries", "-1"], "retries -1"),
    ([*SWEEP, "--address", "head:6379"], "--address ray"),
    ([*SWEEP, "--executor", "slurm", "--cpus-per-run", "2"], "--cpus-per-run ray"),
    ([*SWEEP, "--executor", "ray", "--cpus-per-run", "0"], "cpus_per_run 0"),
    ([*SWEEP, "--executor", "ray", "--slurm", "gpus=1"], "--slurm slurm"),
    ([*SWEEP, "--executor", "ray", "--address", "head:1", "--host", "::"], "--host"),
    ([*SWEEP, "--executor", "slurm", "--retries", "2"], "--retries"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "Time=1"], "slurm 'Time=1'"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "time="], "slurm 'time='"),
    ([*SWEEP, "--executor", "slurm", "--slurm", "array=0-3"], "slurm 'array=0-3'"),
])  # fmt: skip
def test_mistakes_are_one_line_and_exit_2(medic, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = medic(*arguments)
    assert code == 2
    assert re.search(naming(message), err), err
    assert err.startswith("medic: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def _answer_http(server):
    """Answer one request as a web server does."""
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_where_a_sweep_cannot_run(medic, mini, tmp_path, monkeypatch):
    """A cluster that does not answer, and a machine without Slurm: one line each, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    sweep = [*SWEEP, "--dataset", mini, "--quiet"]
    code, out, err = medic(*sweep, "--executor", "ray", "--address", address)
    assert (code, out) == (2, "")
    ways = "check host, port and firewall, and that `ray start --head` runs there"
    refused = "[Errno 111] Connection refused"
    assert err == f"medic: error: cannot reach Ray at --address {address}: {refused}; {ways}\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=_answer_http, args=[server]).start()
        code, out, err = medic(*sweep, "--executor", "ray", "--address", address)
    assert (code, out) == (2, "")
    assert err == f"medic: error: the server at --address {address} is not Ray: {ways}\n"
    code, out, err = medic(*sweep, "--executor", "slurm")
    assert (code, out) == (2, "")
    assert re.search(naming("slurm sbatch --dry-run"), err)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "message"), [
    ("targt: street\n", "c.yaml 'target'"),
    ("qqqq: street\n", "c.yaml 'qqqq' --help"),
    ("lr: fast\n", "lr 'fast'"),
    ("imports: -1\ntarget: street\n", "imports -1"),
    ("partial: 0\ntarget: street\n", "partial 0"),
    ("lr: [0.1\n", "c.yaml line 2"),
    ("lr: 1\n  seed: 2\n", "c.yaml line 2"),
    ("lr: \0\n", "c.yaml #x0000"),
    ("- a\n- b\n", "c.yaml"),
    ("", "c.yaml"),
    ("iterations: 2.5\n", "iterations 2.5"),
    ("seed: 1\nseed: 2\n", "c.yaml line 2: seed"),
    ("lr: 1\nlearning-rate: 2\n", "c.yaml line 2: lr"),
    ("hparams: {weight: 1, weight: 2}\n", "c.yaml line 1: weight"),
    ('output: "\\ud800"\n', "output string"),
    ('output: "\\0"\n', "output string"),
    (f"axes: a={'9' * 5000}\n", "axes parts"),
    ("seed: 2024-04-31\n", "c.yaml day"),
])  # fmt: skip
def test_mistakes_in_a_configuration_file(medic, tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    code, _, err = medic("train", "--target", "street", "--config", str(tmp_path / "c.yaml"))
    assert code == 2
    assert re.search(naming(message), err), err
    assert err.count("\n") == 1


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "abc"}, {"WORLD_SIZE": "2"}])
def test_mistakes_in_the_environment(medic, short, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    code, _, err = medic("train", *short, "--method", "erm")
    assert code == 2
    assert re.search(naming("WORLD_SIZE torchrun"), err)
    assert err.count("\n") == 1
