"""Runs by Slurm: they are handed over as one array of jobs, and nothing is waited for."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medic.errors import MedicError, unwritten
from medic.files import make_folder, write_text
from medic.runs.config import RunConfig
from medic.sweeps.executors.base import PATIENCE, plain
from medic.sweeps.sweep import Job

LARGEST = 1000
"""Runs in an array at most: where Slurm is configured as it comes, indices end there."""
OURS = ("array", "chdir", "output", "parsable", "wrap")
"""Options that the sweep sets itself."""


@dataclass(frozen=True)
class Slurm:
    """Hands runs over: settings and script go to `DIR/slurm`, what the runs say to `DIR/logs`."""

    output: Path
    options: Sequence[str] = ()
    """Of `sbatch`, checked: `time=2:00:00`, or `exclusive` where there is no value."""
    slots: int | None = None
    """How many runs at a time, if that is limited."""

    @property
    def folder(self) -> Path:
        """Where the script, the settings of every run and a note of what was submitted are."""
        return self.output.absolute() / "slurm"

    def queued(self) -> set[str]:
        """The names of runs that were submitted and have not ended, by what Slurm says."""
        submitted = self._submitted()
        if not submitted or shutil.which("squeue") is None:
            return set()
        said = _call("squeue", "--me", "--noheader", "--array", "--format=%F %K")
        tasks = (line.split() for line in said.splitlines())
        return {submitted[task[0]][int(task[1])] for task in tasks if len(task) == 2 and task[0] in submitted}

    def write(self, jobs: Sequence[Job]) -> str:
        """Write the settings of runs and the script that does the i-th of them as the i-th task; returns the script."""
        for folder in (self.folder, self._logs):
            make_folder("output", folder)
        try:
            for job in jobs:
                write_text(self.folder / f"{job.name}.yaml", RunConfig(**plain(job)).to_yaml())
            script = self._script([job.name for job in jobs])
            write_text(self._path, script)
        except OSError as error:
            raise unwritten("output", self.output, error) from error
        return script

    def submit(self, jobs: Sequence[Job]) -> str:
        """Hand runs over; returns the number of the job."""
        if shutil.which("sbatch") is None:
            raise MedicError("executor 'slurm' needs sbatch, which is not on this machine; --dry-run prints the script")
        self.write(jobs)
        number = _call("sbatch", "--parsable", str(self._path)).strip().partition(";")[0]
        submitted = {**self._submitted(), number: [job.name for job in jobs]}
        write_text(self._note, json.dumps(submitted, indent=2) + "\n")
        return number

    @property
    def _path(self) -> Path:
        return self.folder / "sweep.sh"

    @property
    def _note(self) -> Path:
        return self.folder / "submitted.json"

    @property
    def _logs(self) -> Path:
        return self.output.absolute() / "logs"

    def _submitted(self) -> dict[str, list[str]]:
        """The names of the runs of every job that was submitted, in the order of its tasks."""
        try:
            found: dict[str, list[str]] = json.loads(self._note.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise MedicError(f"{self._note} cannot be read: delete it when no job of the sweep is queued") from error
        return found

    def _script(self, names: Sequence[str]) -> str:
        limit = "" if self.slots is None else f"%{self.slots}"
        logs = str(self._logs).replace("%", "%%")
        header = {
            "job-name": "medic",
            "open-mode": "append",
            "signal": f"B:TERM@{PATIENCE:.0f}",
            **dict(_parts(option) for option in self.options),
            "array": f"0-{len(names) - 1}{limit}",
            "chdir": str(Path.cwd()),
            "output": f"{logs}/slurm-%A-%a.log",
        }
        options = (f"--{name}" if value is None else f"--{name}={value}" for name, value in header.items())
        command = shlex.join([sys.executable, "-m", "medic", "train", "--config"])
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {shlex.quote(option)}" for option in options),
                "runs=(",
                *(f"  {name}" for name in names),
                ")",
                "# In place of the shell, so that the signal before the end reaches the run, which saves a checkpoint.",
                f'exec {command} {shlex.quote(str(self.folder))}/"${{runs[SLURM_ARRAY_TASK_ID]}}".yaml',
                "",
            ]
        )


def _parts(option: str) -> tuple[str, str | None]:
    name, equals, value = option.partition("=")
    return name, value if equals else None


def check_option(option: str) -> None:
    """Raise on what the script must not hold."""
    name, value = _parts(option)
    if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or value == "" or "\n" in option:
        raise MedicError(f"slurm {option!r}: give options of sbatch, as in time=2:00:00 partition=gpu gpus=1")
    if name in OURS:
        raise MedicError(f"slurm {option!r}: the sweep sets {name} itself")
    if name == "export" and "=" in (value or ""):
        names = ",".join(part.partition("=")[0] for part in (value or "").split(","))
        raise MedicError(f"slurm export: the script is no place for values; give names, export={names}, set here")


def _call(*command: str) -> str:
    """What a command of Slurm prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, reason = ["no reason given", *done.stderr.strip().splitlines()]
        raise MedicError(f"{command[0]} ended with exit code {done.returncode}: {reason}")
    return done.stdout
