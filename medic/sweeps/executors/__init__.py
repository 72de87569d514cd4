"""Executors: where the runs of a sweep execute.

The executor `name` is the subclass of `Executor` in the module `name` of this package; a new module adds an executor
and its command-line options. These modules import torch and ray only when they start, so that help is fast.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from medic.errors import MedicError, check_choice

if TYPE_CHECKING:
    from medic.sweeps.sweep import Job

PATIENCE = 120.0
"""Seconds that runs have to save a checkpoint after they were asked to stop."""

Kind = Literal["done", "failed", "memory", "lost", "busy", "full", "queued"]
"""The end of an attempt: `memory` if memory ran out, `lost` if its process or machine died, `busy` if another process
has the run's lock, `full` if the disk is full, `queued` if a cluster executes the run later."""


class Outcome(NamedTuple):
    """The end of one attempt to execute a run."""

    name: str
    """Name of the run's directory."""
    kind: Kind
    reason: str = ""
    """One line; for `queued`, the cluster's job."""
    trace: str = ""
    """Traceback of an unexpected error."""
    seconds: float = 0.0


@dataclass
class Executor(ABC):
    """Executes runs. Leaving its context on an error lets runs in progress save a checkpoint and stop."""

    output: Path = Path("runs")
    device: str = "auto"
    jobs: int | None = None
    """Number of runs at a time; None means as many as fit."""

    waits: ClassVar[bool] = True
    """Whether the executor waits until runs end; only then can failed runs be retried."""
    losses: ClassVar[int] = 5
    """How often a run is restarted whose process died: most often the run is not the cause."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise MedicError(f"--{name.replace('_', '-')} is {value}: give a whole number, 1 or more")

    @property
    @abstractmethod
    def slots(self) -> int:
        """Number of runs that execute at a time, as far as it is known before the start."""

    @abstractmethod
    def submit(self, job: "Job") -> None:
        """Start a run; at most `slots` runs are in progress."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of runs that have ended; wait at most `seconds` for one."""

    @abstractmethod
    def close(self, stop: bool) -> None:
        """End all workers. With `stop`, runs in progress save a checkpoint first."""

    def preview(self, jobs: Sequence["Job"]) -> str | None:
        """Return the text that `--dry-run` prints instead of the list of runs, or None."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(stop=error[0] is not None)


def option(help: str, default: Any = None, **arguments: Any) -> Any:
    """Declare a field of an executor as a command-line option; `arguments` are those of `add_argument`."""
    on_line = list(default) if isinstance(default, tuple) else default  # which argparse can extend
    return dataclasses.field(default=default, metadata={"help": help, "default": on_line, **arguments})


def executor_names() -> list[str]:
    """Return the names of all executors."""
    return [module.name for module in iter_modules(__path__)]


def executor_class(name: str) -> type[Executor]:
    """Return the class of an executor."""
    check_choice("executor", name, executor_names())
    module = import_module(f"{__name__}.{name}")
    own = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return next(value for value in own if isinstance(value, type) and issubclass(value, Executor))


def executor_options(name: str) -> dict[str, dict[str, Any]]:
    """Return the options of an executor: the arguments of `add_argument` by name."""
    return {field.name: dict(field.metadata) for field in dataclasses.fields(executor_class(name)) if field.metadata}


def make_executor(name: str, jobs: int | None = None, **options: Any) -> Executor:
    """Make an executor; options of other executors may be given if they are empty."""
    own = executor_options(name)
    for option, value in options.items():
        if value and option not in own:
            owners = {option: other for other in executor_names() for option in executor_options(other)}
            owner = owners[check_choice("executor option", option, owners)]
            raise MedicError(f"--{option.replace('_', '-')} requires --executor {owner}, not {name}")
    return executor_class(name)(jobs=jobs, **{option: options[option] for option in own.keys() & options.keys()})
