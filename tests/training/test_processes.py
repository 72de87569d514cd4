"""Several processes compute the update of one."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from medic.config.resolve import resolve
from medic.models import HALVES, OURS
from medic.runs.build import build_trainer
from medic.training.frozen import CHUNK
from medic.utils import distributed
from medic.utils.plugins import Plugin
from tests.built import loaded
from tests.small import small_network

METHODS = ("erm", "fish", "fish-domainbed", "mldg", "mldg-domainbed", "medic", "medic++", "arith")


def in_float64(size: int) -> torch.nn.Module:
    network = small_network().double()
    network.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(),))
    return network


def trained(method: str) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of six iterations and the parameters after them, in this process or in all of its group."""
    settings = {"target": "street", "method": method, "backbone": "float64", "batch_size": 5, "clip_norm": 3.0}
    plan, dataset, problem = loaded(**settings, lr=0.01)
    torch.set_default_dtype(torch.float64)
    try:
        trainer = build_trainer(plan, dataset, problem)
    finally:
        torch.set_default_dtype(torch.float32)
    trainer.model.train()
    losses = [loss for _ in range(6) for loss in trainer.step()]
    return losses + trainer.wait(), [parameter.detach() for parameter in trainer.model.parameters()]


def loaded_plugins() -> tuple[Plugin, ...]:
    """The code behind the backbone, which exists in this process only."""
    return resolve({"target": "street", "method": "erm", "backbone": "float64"}).plugins


def train_in_group(rank: int, port: int, file: Path) -> None:
    """Train every method as one of two processes; the first writes the results."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    OURS["float64"] = (in_float64, HALVES)
    with distributed.group():
        results: dict[str, object] = {method: trained(method) for method in METHODS}
        results["code"] = [[""], [""]]
        torch.distributed.all_gather_object(results["code"], [plugin.sha256 for plugin in loaded_plugins()])
        if distributed.rank() == 0:
            torch.save(results, file)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Losses and parameters by method, of two processes."""
    file = tmp_path_factory.mktemp("processes") / "found.pt"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = get_context("forkserver")  # both processes are forked from one that has imported torch
    context.set_forkserver_preload(["medic.runs.train", "torch._dynamo"])
    processes = [context.Process(target=train_in_group, args=(rank, port, file)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return torch.load(file)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_compute_the_update_of_one(shared, method, monkeypatch):
    monkeypatch.setitem(OURS, "float64", (in_float64, HALVES))
    (losses, parameters), (shared_losses, shared_parameters) = trained(method), shared[method]
    assert shared_losses == pytest.approx(losses, rel=1e-10)
    for one, other in zip(parameters, shared_parameters, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_processes_agree_on_code_that_is_in_no_file(shared):
    """Otherwise, each process would train another run."""
    first, second = shared["code"]
    assert first == second
    assert len(first) == 1


def medic(count: int, output: Path, iterations: int = 400, *more: str) -> subprocess.Popen:
    """Start `medic train` in as many processes."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"] if count > 1 else []
    options = ["--target", "street", "--method", "medic++", "--batch-size", "2", "--iterations", str(iterations)]
    every = ["--evaluate-every", str(iterations), "--checkpoint-every", "2", "--output", str(output), *more]
    command = [sys.executable, *torchrun, "-m", "medic", "train", *options, *every]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


WHO_COMPUTES = """
from pathlib import Path
from medic.training.frozen import FrozenBackbone

def computing(*arguments, compute=FrozenBackbone._compute):
    with Path(__file__).with_suffix(".txt").open("a") as file:
        file.write("computed ")
    return compute(*arguments)

FrozenBackbone._compute = staticmethod(computing)
"""


@pytest.mark.slow
def test_one_process_computes_the_features_for_all(tmp_path, monkeypatch):
    """Any of the two, and the other one waits: neither waits for ever."""
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "who.py").write_text(WHO_COMPUTES)
    process = medic(2, tmp_path / "runs", 4, "--tune", "head", "--import", str(tmp_path / "who.py"))
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 0, error
    (path,) = (tmp_path / "cache").glob("features-*.npz")
    parts = math.ceil(len(np.load(path)["features"]) / CHUNK)
    assert (tmp_path / "who.txt").read_text().count("computed") == parts


@pytest.mark.slow
def test_a_dead_process_leaves_a_checkpoint_that_another_number_resumes(tmp_path):
    process = medic(2, tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/checkpoint/last.pt")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "medic: error: " in error or "medic: stopped at iteration" in error
    (checkpoint,) = tmp_path.glob("*/checkpoint/last.pt")
    iteration = torch.load(checkpoint)["trainer"]["iteration"]
    assert iteration > 0
    resumed = medic(1, tmp_path)
    for line in resumed.stderr:
        if "resumes at iteration" in line:
            break
    assert int(line.split()[-1]) == iteration
    resumed.kill()
    resumed.communicate()
