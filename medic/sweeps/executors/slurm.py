"""Runs on a Slurm cluster: an array of jobs is submitted, and the sweep does not wait for it."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import yaml

from medic.errors import MedicError
from medic.sweeps.executors import PATIENCE, Executor, Outcome, option
from medic.utils.files import make_folder, write_text, writing

if TYPE_CHECKING:
    from medic.sweeps.sweep import Job

LARGEST = 1000
"""Number of runs in an array: with Slurm's default configuration, indices end there."""
OURS = ("array", "chdir", "output", "parsable", "wrap")
"""Options of sbatch that the sweep sets itself."""
SCRIPT = """#!/bin/bash
{options}
runs=({runs})
# The run replaces the shell, to receive the signal before the time limit and save a checkpoint.
exec {command}"${{runs[SLURM_ARRAY_TASK_ID]}}".yaml
"""


@dataclass
class Slurm(Executor):
    """Array jobs. Settings and script are in `slurm` in the output directory, the output of runs in `logs`."""

    slurm: Sequence[str] = option(
        "options of sbatch: time=2:00:00 gpus=1", default=(), nargs="*", action="extend", metavar="KEY=VALUE"
    )

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._options = dict(parse_option(option) for option in self.slurm)
        self._folder, self._logs = (self.output.absolute() / name for name in ("slurm", "logs"))
        self._jobs: list[Job] = []

    @property
    def slots(self) -> int:
        """Number of runs in an array."""
        return LARGEST

    def __enter__(self) -> Self:
        if shutil.which("sbatch") is None:
            raise MedicError("--executor slurm requires sbatch, which is not installed; --dry-run prints the script")
        return self

    def submit(self, job: "Job") -> None:
        """Add the run to the array that `wait` submits."""
        self._jobs.append(job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Submit the array, without the runs that are queued already."""
        jobs, self._jobs = self._jobs, []
        queued = self._queued()
        if missing := [job for job in jobs if job.name not in queued]:
            self._write(missing)
            number = _call("sbatch", "--parsable", str(self._folder / "sweep.sh")).strip().partition(";")[0]
            names = [job.name for job in missing]
            write_text(self._folder / "submitted.json", json.dumps({**self._submitted(), number: names}, indent=2))
            queued |= dict.fromkeys(names, number)
        return [Outcome(job.name, "queued", f"Slurm job {queued[job.name]}") for job in jobs]

    def preview(self, jobs: Sequence["Job"]) -> str | None:
        """Write the script of an array and the settings of its runs; return the script."""
        queued = self._queued()
        missing = [job for job in jobs if job.name not in queued][:LARGEST]
        return self._write(missing) if missing else None

    def close(self, stop: bool) -> None:
        """Do nothing: submitted jobs continue without the sweep."""

    def _queued(self) -> dict[str, str]:
        """Return the job number of each run that Slurm has queued or is executing."""
        submitted = self._submitted()
        if not submitted or shutil.which("squeue") is None:
            return {}
        listed = _call("squeue", "--me", "--noheader", "--array", "--format=%F %K")
        tasks = [line.split() for line in listed.splitlines() if line]
        return {submitted[task[0]][int(task[1])]: task[0] for task in tasks if task[0] in submitted}

    def _submitted(self) -> dict[str, list[str]]:
        """Return the runs of every submitted job, in the order of its tasks."""
        path = self._folder / "submitted.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _write(self, jobs: Sequence["Job"]) -> str:
        """Write the settings of runs, and the script whose i-th task trains the i-th run; return the script."""
        script = self._script([job.name for job in jobs])
        for folder in (self._folder, self._logs):
            make_folder("output", folder)
        with writing("output", self.output):
            for job in jobs:
                write_text(self._folder / f"{job.name}.yaml", yaml.safe_dump(job.portable(), allow_unicode=True))
            write_text(self._folder / "sweep.sh", script)
        return script

    def _script(self, names: Sequence[str]) -> str:
        header = {
            "job-name": "medic",
            "open-mode": "append",
            "signal": f"B:TERM@{PATIENCE:.0f}",
            **self._options,
            "array": f"0-{len(names) - 1}" + ("" if self.jobs is None else f"%{self.jobs}"),
            "chdir": str(Path.cwd()),
            "output": f"{str(self._logs).replace('%', '%%')}/slurm-%A-%a.log",
        }
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in header.items()]
        if odd := [each for each in options if not each.isprintable()]:  # after a line break, it would be executed
            raise MedicError(f"{odd[0]!r}: a Slurm script cannot contain control characters: rename it")
        return SCRIPT.format(
            options="\n".join(f"#SBATCH {shlex.quote(each)}" for each in options),
            runs=" ".join(names),
            command=shlex.join([sys.executable, "-P", "-m", "medic", "train", "--config", f"{self._folder}/"]),
        )


def parse_option(option: str) -> tuple[str, str | None]:
    """Return the name and the value of an option of sbatch, unless the script must not contain it."""
    name, equals, value = option.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or (equals and not value):
        raise MedicError(f"--slurm {option!r}: give options of sbatch, as in time=2:00:00 partition=gpu gpus=1")
    if name in OURS:
        raise MedicError(f"--slurm {option!r}: the sweep sets {name} itself")
    if name == "export" and "=" in value:
        names = ",".join(part.partition("=")[0] for part in value.split(","))
        raise MedicError(f"--slurm export: the script must not hold values: set them here and give export={names}")
    return name, value if equals else None


def _call(*command: str) -> str:
    """Return the output of a Slurm command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, reason = ["no reason given", *done.stderr.strip().splitlines()]
        raise MedicError(f"{command[0]} failed with exit code {done.returncode}: {reason}")
    return done.stdout
