"""Several processes compute the update of one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

METHODS = ("erm", "fish", "fish-domainbed", "mldg", "mldg-domainbed", "medic", "medic++", "arith")

WORKER = """
import sys, torch
from medic import distributed
from medic.runs.config import RunConfig
from medic.runs.resolve import resolve
from medic.runs.build import make_trainer

torch.set_num_threads(1)
with distributed.group():
    found = {}
    for method in sys.argv[2:]:
        plan = resolve(RunConfig(target="street", method=method, batch_size=5, device="cpu", clip_norm=3.0, lr=0.01))
        dataset = plan.data.load(lambda line: None)
        torch.set_default_dtype(torch.float64)
        trainer = make_trainer(plan, dataset, plan.data.split(dataset))
        torch.set_default_dtype(torch.float32)
        trainer.model.train()
        losses = []
        vary = trainer._body.vary
        trainer._body.vary = lambda pixels, draws, vary=vary: vary(pixels, draws).double()
        for _ in range(6):
            losses += trainer.step()
        found[method] = (losses + trainer.wait(), [p.detach() for p in trainer.model.parameters()])
    if distributed.rank() == 0:
        torch.save(found, sys.argv[1])
"""


def launch(count: int, *command: str, **settings) -> subprocess.Popen:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"] if count > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = [sys.executable, *torchrun, *command]
    return subprocess.Popen(whole, env=environment, stderr=subprocess.PIPE, text=True, **settings)


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Losses and parameters after six iterations, by method, of one process and of two."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "worker.py").write_text(WORKER)
    started = [
        launch(count, str(folder / "worker.py"), str(folder / f"{count}.pt"), *METHODS, cwd=Path(__file__).parents[2])
        for count in (1, 2)
    ]
    for process in started:
        error = process.communicate()[1]
        assert process.returncode == 0, error
    return [torch.load(folder / f"{count}.pt") for count in (1, 2)]


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_compute_the_update_of_one(updates, method):
    (losses, parameters), (shared_losses, shared_parameters) = (found[method] for found in updates)
    assert shared_losses == pytest.approx(losses, rel=1e-10)
    for one, other in zip(parameters, shared_parameters, strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


def medic(count: int, output: Path, iterations: int = 400) -> subprocess.Popen:
    options = ["--target", "street", "--method", "medic++", "--batch-size", "2", "--iterations", str(iterations)]
    every = ["--evaluate-every", str(iterations), "--checkpoint-every", "2", "--output", str(output)]
    return launch(count, "-m", "medic", "train", *options, *every, stdout=subprocess.PIPE)


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
    assert "medic: error: another process has ended" in error or "medic: stopped at iteration" in error
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
