"""Run sweeps in this process, one run after another: for short sweeps and for debugging."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from medic.sweeps.executors import Executor, Outcome

if TYPE_CHECKING:
    from medic.sweeps.sweep import Job


@dataclass
class Here(Executor):
    """Executor that uses the current process."""

    in_process: ClassVar[bool] = True
    _job: "Job | None" = field(default=None, init=False)

    @property
    def slots(self) -> int:
        """One run at a time."""
        return 1

    def submit(self, job: "Job") -> None:
        """Store the run, which `wait` executes."""
        self._job = job

    def wait(self, seconds: float) -> list[Outcome]:
        """Execute the stored run, or sleep if there is none."""
        from medic.sweeps.worker import execute

        if self._job is None:
            time.sleep(seconds)
            return []
        job, self._job = self._job, None
        return [execute(job.name, job.portable())]

    def close(self, stop: bool) -> None:
        """Do nothing: no run is in progress between calls to `wait`."""
