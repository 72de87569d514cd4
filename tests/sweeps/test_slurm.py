"""Sweeps on Slurm: the script that `sbatch` is given, its tasks, and which runs are submitted again."""

import json
import os
import stat
import subprocess
import sys

import pytest
import yaml

from medic.cli import main
from medic.errors import MedicError
from medic.results.runs import find_runs
from medic.sweeps.executors import make_executor
from medic.sweeps.executors import slurm as executor
from medic.sweeps.executors.slurm import parse_option
from medic.sweeps.launch import launch
from medic.sweeps.sweep import Planner
from tests.results.written import write_run

SECRET = "hunter2-in-the-environment"


@pytest.fixture
def sweep(folder, tmp_path, capsys):
    """Run `medic sweep --executor slurm` over two seeds: exit code, standard output, standard error."""
    settings = tmp_path / "sweep.yaml"
    settings.write_text(json.dumps({**folder, "span": {"seed": [0, 1]}}))

    def run(*options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["sweep", str(settings), "--executor", "slurm", "--output", str(tmp_path / "out"), *options])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with an `sbatch` that keeps what it is given, and a `squeue` that says what is in a file."""
    place = tmp_path / "cluster's"
    place.mkdir()
    (place / "queue").touch()
    commands = {
        "sbatch": 'for last; do :; done\ncp "$last" given.sh\necho "$@" > arguments\necho "4711;cluster"',
        "squeue": 'echo "$@" > asked\ncat queue',
    }
    for name, body in commands.items():
        path = place / name
        path.write_text(f'#!/bin/bash\ncd "$(dirname "$0")"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    return place


def header(script):
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_the_script(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["time=2:00:00", "partition=gpu a", "gpus=1", "exclusive", "job-name=mine"]
    code, script, _ = sweep("--dry-run", "--jobs", "1", "--slurm", *options)
    assert code == 0
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    assert script == (tmp_path / "out" / "slurm" / "sweep.sh").read_text()
    assert header(script) == [
        "--job-name=mine", "--open-mode=append", "--signal=B:TERM@120", "--time=2:00:00", "'--partition=gpu a'",
        "--gpus=1", "--exclusive", "--array=0-1%1", f"--chdir={tmp_path}",
        f"--output={tmp_path}/out/logs/slurm-%A-%a.log",
    ]  # fmt: skip
    assert (tmp_path / "out" / "logs").is_dir()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.slow
def test_a_task_does_its_run(sweep, tmp_path):
    """The printed script, as Slurm would start it for one task; and what is left is submitted without it."""
    _, script, _ = sweep("--dry-run")
    assert "--array=0-1\n" in script
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [result] = find_runs([tmp_path / "out"]).finished
    assert result.settings["seed"] == 0
    _, script, _ = sweep("--dry-run")
    assert "--array=0-0\n" in script
    assert result.path.name not in script


def test_what_is_submitted(sweep, slurm, tmp_path):
    code, out, err = sweep("--quiet")
    output = tmp_path / "out"
    assert (code, err) == (0, "")
    assert (
        out == f"0 of 2 runs are finished in {output}\n2 runs are queued as Slurm job 4711; logs are in {output}/logs\n"
    )
    assert (slurm / "arguments").read_text() == f"--parsable {output}/slurm/sweep.sh\n"
    script = (slurm / "given.sh").read_text()
    assert "--array=0-1\n" in script
    configs = sorted((output / "slurm").glob("*.yaml"))
    assert sorted(yaml.safe_load(path.read_text())["seed"] for path in configs) == [0, 1]
    assert all(path.stem in script for path in configs)
    for path in output.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text()


def test_what_is_queued_is_not_submitted_again(sweep, slurm, tmp_path):
    sweep("--quiet")
    names = json.loads((tmp_path / "out" / "slurm" / "submitted.json").read_text())["4711"]
    (slurm / "given.sh").unlink()
    (slurm / "queue").write_text("99 N/A\n4711 0\n4711 1\n17 1\n")
    _, out, _ = sweep("--quiet")
    assert "2 runs are queued as Slurm job 4711;" in out
    assert (slurm / "asked").read_text() == "--me --noheader --array --format=%F %K\n"
    assert not (slurm / "given.sh").exists()
    (slurm / "queue").write_text("4711 1\n")  # the first task has ended without a result
    _, out, _ = sweep("--quiet")
    assert "2 runs are queued" in out
    script = (slurm / "given.sh").read_text()
    assert names[0] in script
    assert names[1] not in script
    assert f"{sys.executable} -P -m medic train" in script


def test_what_is_there_is_not_submitted(sweep, slurm, tmp_path):
    sweep("--dry-run")
    for path in (tmp_path / "out" / "slurm").glob("*.yaml"):
        write_run(tmp_path / "out", path.stem, "erm", "a", 0, (0.5,))
    code, out, _ = sweep("--quiet")
    assert (code, out) == (
        0,
        f"2 of 2 runs are finished in {tmp_path}/out\ncompare the runs with: medic table {tmp_path}/out\n",
    )
    assert not (slurm / "given.sh").exists()


def test_more_runs_than_an_array_holds(sweep, slurm, monkeypatch):
    monkeypatch.setattr(executor, "LARGEST", 1)
    (slurm / "sbatch").write_text('#!/bin/bash\ngrep -c "array=0-0" "$2"\necho >> "$0.called"\n')
    _, out, _ = sweep("--quiet")
    assert "2 runs are queued" in out
    assert (slurm / "sbatch.called").read_text() == "\n\n"


def test_what_sbatch_refuses(sweep, slurm, tmp_path):
    (slurm / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    code, out, err = sweep("--quiet")
    assert (code, out) == (2, "")
    assert err.endswith("exit code 1: sbatch: error: invalid partition specified: gpu\n")
    assert not (tmp_path / "out" / "slurm" / "submitted.json").exists()


def test_values_of_the_environment_stay_out_of_the_script():
    with pytest.raises(MedicError, match="export=ALL,TOKEN") as error:
        parse_option(f"export=ALL,TOKEN={SECRET}")
    assert SECRET not in str(error.value)
    parse_option("export=ALL,TOKEN")
    parse_option("export=NONE")


def test_queued_runs_are_not_done(folder, slurm, tmp_path):
    """So that a command that shows results can tell that they are missing."""
    [job] = Planner().jobs([{**folder, "output": tmp_path / "out"}])
    schedule = launch([job], make_executor("slurm"))
    assert schedule.queued == {job.name: "Slurm job 4711"}
    assert not schedule.done
    with pytest.raises(MedicError, match="--retries"):
        launch([job], make_executor("slurm"), retries=1)
