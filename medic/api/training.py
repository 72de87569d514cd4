"""Train one or many runs: `medic.train`, `medic.sweep` and `medic.probe`."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from medic.config.settings import Settings
from medic.config.signatures import lists_settings
from medic.errors import MedicError
from medic.results.runs import Runs, sort_runs
from medic.runs.run import Run
from medic.sweeps.executors import Executor, make_executor
from medic.sweeps.files import check_shareable, make_sweep
from medic.sweeps.launch import describe_failures, launch
from medic.sweeps.probe import plan_probe
from medic.sweeps.sweep import Job, Planner, check_local
from medic.utils.logs import log_output

if TYPE_CHECKING:
    from torch import nn

    NetworkSource = nn.Module | Callable[[], nn.Module]
    """A network, or a function that creates it."""
else:  # lets tools evaluate annotations without importing torch
    NetworkSource = Any

logger = logging.getLogger(__name__)


@lists_settings
def train(*, model: NetworkSource | None = None, quiet: bool = False, **settings: Unpack[Settings]) -> Run:
    """Train a run, and return it with its metrics, predictions and model.

    A stopped run resumes where it left off. A finished run is returned immediately.

    Args:
        model: Your own network, used as the backbone: a function that creates it, or the network itself. It maps inputs
            of shape (N, 3, H, W) to features of shape (N, F), and medic adds the method's head. To be able to resume
            the run, pass a function that can be imported.
        quiet: Whether to log only warnings.
        **settings: Any setting; `help(medic.train)` lists them. `dataset` also accepts your own data: a sequence of
            (image, class, domain) tuples, three sequences of images, classes and domains, or a function that returns
            either.
    """
    from medic.runs.train import train as train_run

    return train_run(_name_sources(settings, model), quiet=quiet)


def _name_sources(settings: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Register the user's objects and functions, and return the settings with their names."""
    from medic.config.sources import name_source

    named = dict(settings)
    if model is not None:
        if isinstance(model, str):
            raise MedicError(
                f"model must be a network or a function that returns one, got {model!r}: use backbone={model!r}"
            )
        if "backbone" in settings:
            raise MedicError(
                f"model and backbone {settings['backbone']!r} both define the network: pass only one of them"
            )
        named["backbone"] = name_source("backbone", model)
    elif not isinstance(settings.get("backbone"), str | None):
        kind = type(settings["backbone"]).__name__
        raise MedicError(f"backbone must be a name, got {kind}: pass your own network as model=")
    if not isinstance(settings.get("dataset"), str | None):
        named["dataset"] = name_source("dataset", settings["dataset"])
    return named


@lists_settings
def sweep(
    span: Mapping[str, Any],
    variants: Sequence[Mapping[str, Any]] = (),
    *,
    model: NetworkSource | None = None,
    executor: str = "local",
    jobs: int | None = None,
    retries: int | None = None,
    quiet: bool = False,
    executor_options: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Runs:
    """Train all combinations of several settings, and return the runs.

    Finished runs are not trained again, so repeating the call resumes a stopped sweep. A failed run logs a warning, and
    the `failed` attribute of the result lists it.

    Args:
        span: Values to combine, by setting: `{"method": ["erm", "medic++"], "target": "each", "seed": range(3)}`.
            For `target` and `sources`, `each` stands for every domain.
        variants: Alternative groups of settings. Each of them is combined with the whole span.
        model: A function that creates your own network, as in `train`. Other processes cannot receive an object.
        executor: Where to execute runs: `local`, `here`, `slurm` or `ray`.
        jobs: Number of parallel runs (default: one per GPU or core).
        retries: How many times to retry a failed run (default: once).
        quiet: Whether to log only warnings.
        executor_options: Options for the executor, as in `medic sweep --help`.
        **settings: Settings shared by all runs.
    """
    planned = make_sweep(
        _name_sources(settings, model), {name: _values(value) for name, value in span.items()}, variants
    )
    check_shareable(planned)
    chosen = make_executor(executor, jobs, **(executor_options or {}))
    with log_output(quiet):
        return _launch(planned.jobs(Planner()), chosen, retries, quiet)


@lists_settings
def probe(
    methods: Sequence[str] | str = (),
    seeds: Iterable[int] = range(3),
    *,
    executor: str = "local",
    jobs: int | None = None,
    retries: int | None = None,
    quiet: bool = False,
    executor_options: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Runs:
    """Train the heads of several methods on the features of a frozen backbone, and return the runs.

    Each domain is the target in turn. All runs share the features, which are computed once. The metrics of each run
    include the OSCR with every score, for example `oscr/knn`.

    Args:
        methods: Methods to compare (default: all methods that can train the head alone on this dataset).
        seeds: Seeds to train each method with.
        executor: Where to execute runs: `local`, `here`, `slurm` or `ray`.
        jobs: Number of parallel runs (default: one per GPU or core).
        retries: How many times to retry a failed run (default: once).
        quiet: Whether to log only warnings.
        executor_options: Options for the executor, as in `medic sweep --help`.
        **settings: Settings shared by all runs.
    """
    names = [methods] if isinstance(methods, str) else methods
    chosen = make_executor(executor, jobs, **(executor_options or {}))
    with log_output(quiet):
        planned, _ = plan_probe(settings, names, list(seeds))
        return _launch(planned, chosen, retries, quiet)


def _launch(planned: Sequence[Job], executor: Executor, retries: int | None, quiet: bool) -> Runs:
    """Execute the missing runs, log a warning for each failed run, and return the finished runs."""
    if not executor.in_process:
        check_local(planned)
    schedule = launch(planned, executor, retries, quiet=quiet)
    for line in describe_failures(schedule):
        logger.warning(line)
    return sort_runs((job.directory.path for job in schedule.jobs), schedule.output)


def _values(value: Any) -> Any:
    """Convert the values in a span to a list. Strings and mappings stay as they are."""
    if callable(to_list := getattr(value, "tolist", None)):
        return to_list()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else value
