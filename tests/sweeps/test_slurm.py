"""Sweeps by Slurm: what `sbatch` is given, what its tasks do, and what is submitted again."""

import json
import os
import stat
import subprocess

import pytest
from medic.runs.config import RunConfig

from medic.cli import main
from medic.errors import MedicError
from medic.sweeps import launch
from medic.sweeps.executors.slurm import check_option
from medic.sweeps.sweep import Planner
from medic.tables.results import collect

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


def test_a_task_does_its_run(sweep, tmp_path):
    """The printed script, as Slurm would start it for one task; and what is left is submitted without it."""
    _, script, _ = sweep("--dry-run")
    assert "--array=0-1\n" in script
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [result] = collect([tmp_path / "out"]).results
    assert result.settings["seed"] == 0
    _, script, _ = sweep("--dry-run")
    assert "--array=0-0\n" in script
    assert result.path.name not in script


def test_what_is_submitted(sweep, slurm, tmp_path):
    code, out, err = sweep("--quiet")
    output = tmp_path / "out"
    assert (code, err) == (0, "")
    assert out == f"0 of 2 runs are in {output}, 0 queued, 2 submitted as job 4711, which writes to {output}/logs\n"
    assert (slurm / "arguments").read_text() == f"--parsable {output}/slurm/sweep.sh\n"
    given = (slurm / "given.sh").read_text()
    assert "--array=0-1\n" in given
    configs = sorted((output / "slurm").glob("*.yaml"))
    assert sorted(RunConfig.from_yaml(path).seed for path in configs) == [0, 1]
    assert all(path.stem in given for path in configs)
    for path in output.rglob("*"):
        assert path.is_dir() or SECRET not in path.read_text()


def test_what_is_queued_is_not_submitted_again(sweep, slurm, tmp_path):
    sweep("--quiet")
    names = json.loads((tmp_path / "out" / "slurm" / "submitted.json").read_text())["4711"]
    (slurm / "given.sh").unlink()
    (slurm / "queue").write_text("99 N/A\n4711 0\n4711 1\n17 1\n")
    _, out, _ = sweep("--quiet")
    assert out == f"0 of 2 runs are in {tmp_path}/out, 2 queued\n"
    assert (slurm / "asked").read_text() == "--me --noheader --array --format=%F %K\n"
    assert not (slurm / "given.sh").exists()
    (slurm / "queue").write_text("4711 1\n")  # the first task has ended without a result
    _, out, _ = sweep("--quiet")
    assert "0 of 2 runs" in out
    assert "1 queued, 1 submitted as job 4711" in out
    given = (slurm / "given.sh").read_text()
    assert names[0] in given
    assert names[1] not in given


def test_what_is_there_is_not_submitted(sweep, slurm, tmp_path):
    sweep("--dry-run")
    for path in (tmp_path / "out" / "slurm").glob("*.yaml"):
        (tmp_path / "out" / path.stem).mkdir()
        (tmp_path / "out" / path.stem / "done").touch()
        measured = {"target": {"acc": 1}, "validation": {"acc": 1}, "args": {"test_envs": [2]}}
        record = json.dumps({**measured, "hparams": {"method": "erm"}})
        (tmp_path / "out" / path.stem / "results.jsonl").write_text(record)
    code, out, _ = sweep("--quiet")
    assert (code, out) == (0, f"2 of 2 runs are in {tmp_path}/out, 0 queued\n")
    assert not (slurm / "given.sh").exists()


def test_more_runs_than_an_array_holds(sweep, slurm, monkeypatch):
    monkeypatch.setattr(launch, "LARGEST", 1)
    _, out, _ = sweep("--quiet")
    assert "1 submitted as job 4711" in out
    assert out.endswith("; the same command submits the other 1\n")
    assert "--array=0-0\n" in (slurm / "given.sh").read_text()


def test_what_sbatch_refuses(sweep, slurm, tmp_path):
    (slurm / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    code, out, err = sweep("--quiet")
    assert (code, out) == (2, "")
    assert err == "medic: error: sbatch ended with exit code 1: sbatch: error: invalid partition specified: gpu\n"
    assert not (tmp_path / "out" / "slurm" / "submitted.json").exists()


def test_values_of_the_environment_stay_out_of_the_script():
    with pytest.raises(MedicError, match="give names, export=ALL,TOKEN, set here") as error:
        check_option(f"export=ALL,TOKEN={SECRET}")
    assert SECRET not in str(error.value)
    check_option("export=ALL,TOKEN")
    check_option("export=NONE")


def test_what_was_handed_over_is_missing(folder, slurm, tmp_path, capsys):
    """So that a command that shows results knows that there are none yet."""
    asked = launch.Launch("slurm")
    schedule = asked.run(Planner().jobs([RunConfig(**folder, output=str(tmp_path / "out"))]))
    assert "0 of 1 run is in" in capsys.readouterr().out
    assert schedule.missing == 1
