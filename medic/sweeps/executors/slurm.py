"""Run sweeps on a Slurm cluster as array jobs. The sweep submits them and does not wait."""

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
"""Maximum number of runs in an array, the limit in Slurm's default configuration."""
OURS = ("array", "chdir", "output", "parsable", "wrap")
"""sbatch options that the sweep sets itself."""
SCRIPT = """#!/bin/bash
{options}
runs=({runs})
# The run replaces the shell, to receive the signal before the time limit and save a checkpoint.
exec {command}"${{runs[SLURM_ARRAY_TASK_ID]}}".yaml
"""


@dataclass
class Slurm(Executor):
    """Executor for Slurm array jobs. Settings and script are in `OUTPUT/slurm`, and logs in `OUTPUT/logs`."""

    slurm: Sequence[str] = option(
        "sbatch options, such as time=2:00:00 gpus=1", default=(), nargs="*", action="extend", metavar="KEY=VALUE"
    )

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._options = dict(parse_option(option) for option in self.slurm)
        self._folder, self._logs = (self.output.absolute() / name for name in ("slurm", "logs"))
        self._jobs: list[Job] = []

    @property
    def slots(self) -> int:
        """Maximum number of runs in an array."""
        return LARGEST

    def __enter__(self) -> Self:
        if shutil.which("sbatch") is None:
            raise MedicError(
                "--executor slurm requires sbatch, which is not installed; use --dry-run to print the script"
            )
        return self

    def submit(self, job: "Job") -> None:
        """Add the run to the array that `wait` submits."""
        self._jobs.append(job)

    def wait(self, seconds: float) -> list[Outcome]:
        """Submit the array, without runs that are already queued."""
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
        """Write the array script and the settings of its runs, and return the script."""
        queued = self._queued()
        missing = [job for job in jobs if job.name not in queued][:LARGEST]
        return self._write(missing) if missing else None

    def close(self, stop: bool) -> None:
        """Do nothing: submitted jobs continue without the sweep."""

    def _queued(self) -> dict[str, str]:
        """Return the Slurm job number of each run that is queued or running."""
        submitted = self._submitted()
        if not submitted or shutil.which("squeue") is None:
            return {}
        listed = _call("squeue", "--me", "--noheader", "--array", "--format=%F %K")
        tasks = [line.split() for line in listed.splitlines() if line]
        return {submitted[task[0]][int(task[1])]: task[0] for task in tasks if task[0] in submitted}

    def _submitted(self) -> dict[str, list[str]]:
        """Return the runs in each submitted job, in task order."""
        path = self._folder / "submitted.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _write(self, jobs: Sequence["Job"]) -> str:
        """Write the runs' settings and the script whose i-th task trains the i-th run, and return the script."""
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
        if odd := [each for each in options if not each.isprintable()]:  # text after a line break would be executed
            raise MedicError(
                f"{odd[0]!r}: a Slurm script cannot contain control characters; remove them from the path or option"
            )
        return SCRIPT.format(
            options="\n".join(f"#SBATCH {shlex.quote(each)}" for each in options),
            runs=" ".join(names),
            command=shlex.join([sys.executable, "-P", "-m", "medic", "train", "--config", f"{self._folder}/"]),
        )


def parse_option(option: str) -> tuple[str, str | None]:
    """Return the name and value of an sbatch option; raise an error if the script must not contain it."""
    name, equals, value = option.partition("=")
    if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or (equals and not value):
        raise MedicError(f"--slurm {option!r}: expected sbatch options, such as time=2:00:00 partition=gpu gpus=1")
    if name in OURS:
        raise MedicError(f"--slurm {option!r}: the sweep sets {name} itself; remove this option")
    if name == "export" and "=" in value:
        names = ",".join(part.partition("=")[0] for part in value.split(","))
        raise MedicError(
            f"--slurm export: the script must not contain values; set them in this shell and use export={names}"
        )
    return name, value if equals else None


def _call(*command: str) -> str:
    """Return the output of a Slurm command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, reason = ["no reason given", *done.stderr.strip().splitlines()]
        raise MedicError(f"{command[0]} failed with exit code {done.returncode}: {reason}")
    return done.stdout
