"""Executors, which determine where the runs in a sweep execute.

The executor called `name` is the subclass of `Executor` in this package's `name` module. Adding a module adds an
executor and its command-line options. The modules import torch and ray only when an executor starts, so that `--help`
stays fast.
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
"""Seconds that runs may take to save a checkpoint after a stop request."""

Kind = Literal["done", "failed", "memory", "lost", "busy", "full", "queued"]
"""How an attempt ended: `memory` if it ran out of memory, `lost` if its process or machine died, `busy` if another
process holds the run's lock, `full` if the disk is full, `queued` if a cluster will execute the run later."""


class Outcome(NamedTuple):
    """Outcome of one attempt to execute a run."""

    name: str
    """Name of the run directory."""
    kind: Kind
    reason: str = ""
    """Reason in one line; for `queued`, the cluster job."""
    trace: str = ""
    """Traceback of an unexpected error."""
    seconds: float = 0.0


@dataclass
class Executor(ABC):
    """Base class for executors. If the context exits with an error, runs in progress save a checkpoint and stop."""

    output: Path = Path("runs")
    device: str = "auto"
    jobs: int | None = None
    """Number of runs at a time; None for as many as fit."""

    waits: ClassVar[bool] = True
    """Whether the executor waits for runs to end, which is required to retry failed runs."""
    in_process: ClassVar[bool] = False
    """Whether runs are executed in this process, which has the code that was defined in a script or notebook."""
    losses: ClassVar[int] = 5
    """How many times to restart a run whose process died, since the run itself is rarely the cause."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise MedicError(f"--{name.replace('_', '-')} must be a whole number of at least 1, got {value}")

    @property
    @abstractmethod
    def slots(self) -> int:
        """Number of runs at a time, as far as it is known before the start."""

    @abstractmethod
    def submit(self, job: "Job") -> None:
        """Start a run. At most `slots` runs are in progress."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Outcome]:
        """Wait at most `seconds` for a run to end, and return the outcomes of all runs that have ended."""

    @abstractmethod
    def close(self, stop: bool) -> None:
        """Shut down all workers. With `stop`, runs in progress save a checkpoint first."""

    def preview(self, jobs: Sequence["Job"]) -> str | None:
        """Return the text that `--dry-run` prints instead of the list of runs, or None for the list."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(stop=error[0] is not None)


def option(help: str, default: Any = None, **arguments: Any) -> Any:
    """Declare an executor field as a command-line option; `arguments` are passed to `add_argument`."""
    on_line = list(default) if isinstance(default, tuple) else default  # argparse extends lists only
    return dataclasses.field(default=default, metadata={"help": help, "default": on_line, **arguments})


def executor_names() -> list[str]:
    """Return the names of all executors."""
    return [module.name for module in iter_modules(__path__)]


def executor_class(name: str) -> type[Executor]:
    """Return an executor class by name."""
    check_choice("executor", name, executor_names())
    module = import_module(f"{__name__}.{name}")
    own = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return next(value for value in own if isinstance(value, type) and issubclass(value, Executor))


def executor_options(name: str) -> dict[str, dict[str, Any]]:
    """Return an executor's options: the arguments for `add_argument`, keyed by option name."""
    return {field.name: dict(field.metadata) for field in dataclasses.fields(executor_class(name)) if field.metadata}


def make_executor(name: str, jobs: int | None = None, **options: Any) -> Executor:
    """Create an executor. Options that belong to other executors must be empty."""
    own = executor_options(name)
    for option, value in options.items():
        if value and option not in own:
            owners = {option: other for other in executor_names() for option in executor_options(other)}
            owner = owners[check_choice("executor option", option, owners)]
            raise MedicError(f"--{option.replace('_', '-')} requires --executor {owner}, not {name}")
    return executor_class(name)(jobs=jobs, **{option: options[option] for option in own.keys() & options.keys()})
