"""Executors: where the runs of a sweep execute.

The executor `name` is the class `Name` in the module `name` of this package; adding a module adds an executor, with its
command-line options. Importing these modules must stay fast: they import torch and ray only when they start.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_type_hints

from medic.errors import MedicError, check_choice

if TYPE_CHECKING:
    from medic.sweeps.sweep import Job

PATIENCE = 120.0
"""Seconds that runs have to save a checkpoint after they were asked to stop."""

Kind = Literal["done", "failed", "lost", "busy", "full", "queued"]
"""How an attempt ended: `lost` if its process or machine died, `busy` if another process has the run's lock, `full` if
the disk is full, `queued` if a cluster took the run over and executes it later."""


class Outcome(NamedTuple):
    """How one attempt to execute a run ended."""

    name: str
    """Name of the run's directory."""
    kind: Kind
    reason: str = ""
    """One line; for `queued`, the cluster's job."""
    trace: str = ""
    """Traceback of an error that is not a `MedicError`."""
    seconds: float = 0.0


def option(default: Any, help: str, **arguments: Any) -> Any:
    """Declare a field of an executor that is also a command-line option; `arguments` are those of `add_argument`."""
    default = {"default_factory": list} if default == [] else {"default": default}
    return dataclasses.field(**default, metadata={"help": help, **arguments})


@dataclass
class Executor(ABC):
    """Executes runs. Enter it to start its workers; when an error leaves the block, runs save a checkpoint and stop."""

    output: Path = Path("runs")
    device: str = "auto"
    jobs: int | None = None
    """Runs at a time; None means as many as fit."""

    waits: ClassVar[bool] = True
    """Whether the executor waits until runs end, so that failed runs can be retried."""
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
        """Start a run; at most `slots` are in progress."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(stop=error is not None)


def executor_names() -> list[str]:
    """Return the names of all executors."""
    return [module.name for module in iter_modules(__path__)]


def executor_class(name: str) -> type[Executor]:
    """Return the class of an executor."""
    check_choice("executor", name, executor_names())
    found: type[Executor] = getattr(import_module(f"{__name__}.{name}"), name.capitalize())
    return found


def executor_options(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of an executor's own options, and the arguments of `add_argument` for each."""
    cls = executor_class(name)
    types = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.metadata:
            default = {"default": [], "type": str} if "nargs" in field.metadata else {"default": None}
            yield field.name, {"type": types[field.name], **default, **field.metadata}


def make_executor(name: str, jobs: int | None = None, **options: Any) -> Executor:
    """Make an executor; `options` may include empty options of other executors."""
    own = {option for option, _ in executor_options(name)}
    for given in [option for option, value in options.items() if value and option not in own]:
        owner = next(other for other in executor_names() if given in dict(executor_options(other)))
        raise MedicError(f"--{given.replace('_', '-')} requires --executor {owner}, but the executor is {name!r}")
    return executor_class(name)(jobs=jobs, **{option: options[option] for option in own & options.keys()})
