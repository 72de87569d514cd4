"""Public Python functions that correspond to the commands. Importing this module does not import torch.

Functions that take a model accept a `Run`, a `Predictor`, or the path of either.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from medic.analysis import ANALYSES
from medic.config.settings import Settings
from medic.config.signatures import lists_settings
from medic.deploy.layout import EXPORTS
from medic.deploy.paths import image_paths
from medic.errors import MedicError, check_choice
from medic.results.runs import Runs, find_runs, open_runs, sort_runs
from medic.runs.layout import check_run
from medic.runs.opening import execute_imports, find_folder, is_model, open_model
from medic.runs.run import Run
from medic.utils.files import check_writable
from medic.utils.parts import ANY, FRACTION, POSITIVE

if TYPE_CHECKING:
    from torch import nn

    from medic.analysis.result import Result
    from medic.data.inputs import AnyImage
    from medic.deploy.predictor import Predictor
    from medic.deploy.service.limits import Limits
    from medic.openset import Shift
    from medic.sweeps.sweep import Job

    NetworkSource = nn.Module | Callable[[], nn.Module]
    """A network, or a function that creates it."""
else:  # lets tools evaluate annotations without importing torch
    AnyImage = Job = Limits = NetworkSource = Predictor = Result = Shift = Any

AnyModel = Predictor | Run | Path | str
"""A model, its run, or the path of either."""

logger = logging.getLogger(__name__)

CHECKED = 256
"""Default number of target images used to verify an export."""


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
        retries: How often to retry a failed run (default: once).
        quiet: Whether to log only warnings.
        executor_options: Options for the executor, as in `medic sweep --help`.
        **settings: Settings shared by all runs.
    """
    from medic.sweeps.files import check_shareable, make_sweep
    from medic.sweeps.sweep import Planner
    from medic.utils.logs import log_output

    planned = make_sweep(
        _name_sources(settings, model), {name: _values(value) for name, value in span.items()}, variants
    )
    check_shareable(planned)
    with log_output(quiet):
        return _launch(planned.jobs(Planner()), executor, jobs, retries, quiet, executor_options)


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
        retries: How often to retry a failed run (default: once).
        quiet: Whether to log only warnings.
        executor_options: Options for the executor, as in `medic sweep --help`.
        **settings: Settings shared by all runs.
    """
    from medic.sweeps.probe import plan_probe
    from medic.utils.logs import log_output

    chosen = [methods] if isinstance(methods, str) else methods
    with log_output(quiet):
        planned, _ = plan_probe(settings, chosen, list(seeds))
        return _launch(planned, executor, jobs, retries, quiet, executor_options)


def _launch(
    planned: Sequence[Job],
    executor: str,
    jobs: int | None,
    retries: int | None,
    quiet: bool,
    options: Mapping[str, Any] | None,
) -> Runs:
    """Execute the missing runs, log a warning for each failed run, and return the finished runs."""
    from medic.sweeps.executors import make_executor
    from medic.sweeps.launch import describe_failures, launch
    from medic.sweeps.sweep import check_local

    chosen = make_executor(executor, jobs, **(options or {}))
    if executor != "here":
        check_local(planned)
    schedule = launch(planned, chosen, retries, quiet=quiet)
    for line in describe_failures(schedule):
        logger.warning(line)
    return sort_runs((job.directory.path for job in schedule.jobs), schedule.output)


def _values(value: Any) -> Any:
    """Convert the values in a span to a list. Strings and mappings stay as they are."""
    if callable(to_list := getattr(value, "tolist", None)):
        return to_list()
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else value


def report(
    runs: Run | Sequence[Run | Path | str] | Path | str,
    path: Path | str | None = None,
    *,
    root: Path | str | None = None,
    paper: str | None = None,
) -> Path:
    """Write an HTML report on one or several runs, and return its path.

    Args:
        runs: A run, several runs, or the folder of either. Use `load_runs(a, b)` to combine several folders.
        path: HTML file to write (default: `report.html` in the folder of the runs).
        root: For a single run, the folder with its images, to show some of them.
        paper: For several runs, a table from the paper to compare with, such as `pacs-resnet50`.
    """
    opened = open_runs(runs) if isinstance(runs, Path | str) else runs
    if isinstance(opened, Run):
        if paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {opened.path} is a single run: omit --paper")
        file = Path(path or opened.path / "report.html")
        check_writable("report", file)
        from medic.reports.run_page import write_report

        return write_report(opened, file, None if root is None else Path(root))
    collection = opened if isinstance(opened, Runs) else Runs(tuple(map(_open_run, opened)))
    folder = collection.folder
    if root is not None:
        raise MedicError(f"--root requires a single run, but {folder or 'this'} is a folder of runs: omit --root")
    if path is None and folder is None:
        raise MedicError("path is required, because these runs do not share a folder")
    file = Path(path or f"{folder}/report.html")
    check_writable("report", file)
    from medic.reports.table_page import write_table_report

    return write_table_report(collection, str(folder or "runs"), file, paper)


def _open_run(run: Run | Path | str) -> Run:
    """Return a finished run, given the run or its directory."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, Path | str):
        raise MedicError(f"expected a Run or a run directory, got {type(run).__name__}")
    check_run(Path(run))
    return Run(run)


def analyze(
    name: str,
    runs: Run | Sequence[Run | Path | str] | Path | str | None = None,
    *,
    imports: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Analyse finished runs. The result has `rows()`, `as_dict()` and `draw()` methods.

    Args:
        name: Name of the analysis: `gradients`, `separation`, `errors`, … (`medic analyze` lists all).
        runs: One or several runs, or their directories. For `openness` and `cost`, also folders of runs.
        imports: Python files or modules that the runs require, executed first.
        **options: Options for the analysis, as in `medic analyze --help`.
    """
    analysis = ANALYSES[check_choice("analysis", name, ANALYSES)]
    known = {option for other in ANALYSES.values() for option in other.options}
    for option in options:
        check_choice("option", option, known)
        if option not in analysis.options:
            raise MedicError(f"--{option} has no effect on analysis {name!r}: omit it")
    chosen = [] if runs is None else [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if analysis.takes == "nothing" and chosen:
        raise MedicError(f"analysis {name!r} does not use runs, got {chosen[0]}: omit it")
    if analysis.takes != "nothing" and not chosen:
        expected = {"run": "a run directory", "runs": "run directories", "folders": "folders of runs"}
        raise MedicError(f"analysis {name!r} requires finished runs: pass {expected[analysis.takes]}")
    if analysis.takes == "run" and len(chosen) > 1:
        raise MedicError(f"analysis {name!r} expects a single run, got {len(chosen)}: analyse them one by one")
    opened = _runs_in(chosen) if analysis.takes == "folders" else [_open_run(run) for run in chosen]
    execute_imports(imports)
    if analysis.takes == "nothing":
        return analysis.measure(**options)
    return analysis.measure(opened[0] if analysis.takes == "run" else opened, **options)


def _runs_in(places: Sequence[Run | Path | str]) -> list[Run]:
    """Return the given runs and all finished runs in the given folders. Log which runs are skipped."""
    collection = find_runs([Path(place) for place in places if not isinstance(place, Run)])
    for note in collection.notes():
        logger.warning("%s", note)
    return [*(place for place in places if isinstance(place, Run)), *collection.finished]


def calibrate(
    model: AnyModel,
    *,
    accept: float | None = None,
    threshold: float | None = None,
    cost: float | None = None,
    left_out: bool = False,
    labels: Sequence[tuple[str, str]] | Path | str | None = None,
    images: Iterable[AnyImage] | Path | str | None = None,
    imports: Sequence[str] = (),
    force: bool = False,
) -> Predictor:
    """Return a copy of a model with a new threshold.

    The threshold is chosen on held-out images of the run, on your labelled images, or on unlabelled images.

    Args:
        model: The model, its run, or the path of either.
        accept: Probability of accepting a known image, such as 0.9.
        threshold: The threshold itself. Images with a lower score are labelled unknown.
        cost: Cost of accepting an unknown image, relative to rejecting a known one.
        left_out: Whether `accept` (default: 0.9) must hold in every source domain, measured with a run that was not
            trained on that domain. Missing runs are trained first, next to the model's run.
        labels: Labelled images to calibrate on: (path, class) pairs, or a file with `path` and `class` columns. Classes
            that are not in the model are treated as unknown.
        images: Unlabelled images from the deployment domain, or their folder.
        imports: Python files or modules that the model requires, executed first.
        force: Whether to accept a model that learned nothing.
    """
    if sum(value is not None for value in (accept, threshold, cost)) > 1:
        raise MedicError("accept, threshold and cost cannot be combined: pass only one of them")
    if left_out and any(value is not None for value in (threshold, cost, labels)):
        raise MedicError("left_out cannot be combined with threshold, cost or labels: pass only one of them")
    if not left_out and all(value is None for value in (accept, threshold, cost, labels, images)):
        raise MedicError("expected one of accept, left_out, threshold, cost, labels or images to choose the threshold")
    numbers = {"accept": (accept, FRACTION), "threshold": (threshold, ANY), "cost": (cost, POSITIVE)}
    for name, (value, limits) in numbers.items():
        if value is not None and not (isinstance(value, int | float) and limits.allow(value)):
            raise MedicError(f"{name} must be {limits.wanted(whole=False)}, got {value!r}")
    predictor, run = open_model(model, imports=imports, force=force)
    if threshold is not None:
        return predictor.at(threshold)
    from medic.runs.reevaluate import make_calibration

    calibration = make_calibration(predictor, run, labels, _list_images(images), left_out)
    chosen = calibration.choose(accept, None, cost, labels is not None)
    return predictor if chosen is None else calibration.apply(chosen)


def _list_images(images: Iterable[AnyImage] | Path | str | None) -> list[AnyImage] | None:
    """Return a list of images. A folder, a pattern or a file of paths is expanded to image paths."""
    if isinstance(images, Path | str):
        return list(image_paths([str(images)]))
    return None if images is None else list(images)


def watch(
    model: AnyModel, images: Iterable[AnyImage] | Path | str, *, imports: Sequence[str] = (), device: str | None = None
) -> Shift:
    """Compare unlabelled images with held-out images of the source domains.

    The result contains an estimate of the accuracy, an estimate of the fraction of unknown images, and a `p_value`.
    A `p_value` below 0.01 means that the images differ from the source domains. Unreadable images raise an error.

    Args:
        model: The model, its run, or the path of either.
        images: At least 20 images from the deployment domain, or their folder.
        imports: Python files or modules that the model requires, executed first.
        device: `auto`, `cpu` or `cuda` (default: the model's current device).
    """
    predictor, _ = open_model(model, device, imports)
    return predictor.watch(_list_images(images) or [])


class Export(NamedTuple):
    """An exported model: its file, and how closely its scores match those of the original."""

    path: Path
    images: int
    """Number of images that were compared."""
    difference: float
    """Largest difference between the scores of the two models."""


def export(
    model: AnyModel,
    path: Path | str | None = None,
    *,
    format: str = "onnx",
    images: Iterable[AnyImage] | Path | str | None = None,
    root: Path | str | None = None,
    imports: Sequence[str] = (),
) -> Export:
    """Export a model, and verify that it makes the same decisions as the original.

    Args:
        model: The model, its run, or the path of either.
        path: File to write (default: `model.onnx` or `model.pt2` next to the model).
        format: `onnx` or `torch-export`.
        images: Images to verify the export with, or their folder (default: target images of the run).
        root: Folder with the run's images, if it has moved.
        imports: Python files or modules that the model requires, executed first.
    """
    check_choice("format", format, EXPORTS)
    folder = find_folder(model)
    if path is None and folder is None:
        raise MedicError("path is required, because this model has no folder")
    if images is None and not isinstance(model, Run) and (folder is None or is_model(folder)):
        name = "the model" if folder is None else folder
        raise MedicError(f"{name} is not a run and has no target images: pass --images to verify the export")
    file = Path(path or f"{folder}/model{EXPORTS[format]}")
    check_writable("export", file)
    checked = _list_images(images)
    if checked is not None and not checked:
        raise MedicError("images is empty: pass at least one image, or omit it")
    predictor, run = open_model(model, imports=imports)
    import numpy as np
    import torch

    from medic.data.inputs import to_pixels
    from medic.deploy.export import export as write
    from medic.runs.reevaluate import target_pixels

    if run is not None and checked is None:
        pixels = target_pixels(run, CHECKED, None if root is None else str(root))
    else:
        pixels = torch.from_numpy(np.stack([to_pixels(image, predictor.decoded) for image in checked or ()]))
    return Export(file, len(pixels), write(predictor, file, format, pixels))


def push(
    model: AnyModel,
    name: str,
    *,
    private: bool = False,
    license: str | None = None,
    imports: Sequence[str] = (),
    force: bool = False,
) -> str:
    """Upload a model to the Hugging Face Hub, and return its URL.

    Args:
        model: The model, its run, or the path of either. The model card includes the metrics of a run.
        name: Name on the Hub, `OWNER/NAME`.
        private: Whether to make the model visible to its owner only.
        license: License for the model card, such as `mit`.
        imports: Python files or modules that the model requires, executed first.
        force: Whether to upload a model that learned nothing.
    """
    predictor, run = open_model(model, imports=imports, force=force)
    from medic.deploy.hub import push_model

    return push_model(predictor, name, None if run is None else run.metrics, private, license)


def serve(
    model: AnyModel,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    limits: Limits | None = None,
    imports: Sequence[str] = (),
    force: bool = False,
    ray: bool = False,
    replicas: int | None = None,
    address: str | None = None,
) -> None:
    """Serve a model over HTTP until the process receives SIGINT or SIGTERM.

    Args:
        model: The model, its run, or the path of either.
        host: Address to listen on. Anything but localhost requires a token.
        port: Port to listen on. 0 picks a free port.
        device: `auto`, `cpu` or `cuda`.
        token: Secret that clients must send (default: the `MEDIC_TOKEN` environment variable).
        allowed_hosts: Host names that clients may use; `*` allows any.
        limits: Maximum request, image and queue sizes, and the request timeout.
        imports: Python files or modules that the model requires, executed first.
        force: Whether to serve a model that learned nothing.
        ray: Whether to serve the model as a Ray Serve deployment. The model must be on disk.
        replicas: With `ray`, the number of model replicas (default: 1).
        address: With `ray`, the Ray cluster to join (default: start Ray on this machine).
    """
    from medic.deploy.service.server import address_of, check_access, listen, run

    token = os.environ.get("MEDIC_TOKEN") if token is None else token
    check_access(host, token)
    for name, value in (("replicas", replicas), ("address", address)):
        if value is not None and not ray:
            raise MedicError(f"--{name} requires --ray: add --ray, or omit --{name}")
    folder = find_folder(model)
    if ray and (folder is None or imports):
        raise MedicError(
            "--ray requires a model on disk without --import: save the model, or install its code as a package"
        )
    hosts = [host.lower(), *map(str.lower, [allowed_hosts] if isinstance(allowed_hosts, str) else allowed_hosts)]
    with nullcontext() if ray else listen(host, port) as listening:  # first, because the port may be in use
        predictor, _ = open_model(model, device, imports, force)
        from medic.deploy.service.app import make_app

        predictor.warm_up()
        app = make_app(predictor, limits, token, hosts)
        if listening is None:
            from medic.sweeps.serving import serve_on_ray

            serve_on_ray(Path(str(folder)), host, port, predictor.device, limits, token, hosts, replicas or 1, address)
        else:
            place = folder or "a model"
            run(app, listening, lambda: print(f"serving {place} at {address_of(listening)}", flush=True))
