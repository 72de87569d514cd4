"""The public functions: what the commands of `medic` do, from Python.

A model may be given as a `Run`, as a `Predictor`, or as the path of either.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from torch import nn

from medic.analysis import ANALYSES
from medic.config.settings import Settings
from medic.deploy.layout import EXPORTS, model_folder
from medic.deploy.predictor import Predictor, load
from medic.errors import MedicError, check_choice
from medic.results.runs import Runs, find_runs, sort_runs
from medic.runs.layout import is_run
from medic.runs.run import Run
from medic.runs.train import train as train_run
from medic.utils.files import check_writable

if TYPE_CHECKING:
    from medic.analysis.result import Result
    from medic.deploy.service.limits import Limits

ModelSource = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes it."""
CHECKED = 256
"""The number of target images that an export is checked on."""


def train(*, model: ModelSource | None = None, quiet: bool = False, **settings: Unpack[Settings]) -> Run:
    """Train a run and return it: its metrics, predictions and model.

    A run that was stopped resumes, and a finished one is returned at once. The settings are those of
    `medic train --help`.

    Args:
        model: Your own network in place of a backbone: a function that makes it, or the network itself. It maps inputs
            (N, 3, H, W) to features (N, F), and medic adds the head of the method. A run made of objects, instead of
            functions that can be imported, cannot resume.
        quiet: Whether to log warnings only.
        **settings: Any of the settings. `dataset` may also be your own: a sequence of (image, class, domain), three
            sequences of images, classes and domains, or a function that returns either.
    """
    return train_run(_name_sources(settings, model), quiet=quiet)


def _name_sources(settings: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Return settings in which objects and functions of the user have names."""
    from medic.config.sources import name_source

    named = dict(settings)
    if model is not None:
        if isinstance(model, str):
            raise MedicError(f"model is {model!r}: give a network or a function that makes one, or backbone={model!r}")
        if "backbone" in settings:
            raise MedicError(f"model and backbone {settings['backbone']!r} are both the network: give one of them")
        named["backbone"] = name_source("backbone", model)
    elif not isinstance(settings.get("backbone"), str | None):
        kind = type(settings["backbone"]).__name__
        raise MedicError(f"backbone is of type {kind}: give its name, or your own network as model=")
    if not isinstance(settings.get("dataset"), str | None):
        named["dataset"] = name_source("dataset", settings["dataset"])
    return named


def sweep(
    span: Mapping[str, Any],
    variants: Sequence[Mapping[str, Any]] = (),
    *,
    model: ModelSource | None = None,
    executor: str = "local",
    jobs: int | None = None,
    retries: int | None = None,
    quiet: bool = False,
    executor_options: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Runs:
    """Train all combinations of the values of some settings, and return the runs.

    Runs that are finished are not trained again, so the same call continues a sweep that was stopped. Failed runs are
    in the attribute `failed` of the result.

    Args:
        span: The values to combine, by setting: `{"method": ["erm", "medic++"], "target": "each", "seed": range(3)}`.
            The value `each` of `target` or `sources` stands for every domain.
        variants: Further settings, of which every combination gets each.
        model: A function that makes your own network, as for `train`; an object cannot be sent to other processes.
        executor: Where runs execute: `local`, `here`, `slurm` or `ray`.
        jobs: The number of runs at a time; by default one per GPU or core.
        retries: How often a failed run is tried again; by default once.
        quiet: Whether to log warnings only.
        executor_options: Options of the executor, as in `medic sweep --help`.
        **settings: The settings that all runs share.
    """
    from medic.config.imports import is_local
    from medic.config.sources import is_live
    from medic.sweeps.executors import make_executor
    from medic.sweeps.files import make_sweep
    from medic.sweeps.launch import launch
    from medic.sweeps.sweep import Planner
    from medic.utils.logs import log_output

    values = {name: list(value) if isinstance(value, range | tuple) else value for name, value in span.items()}
    named = _name_sources(settings, model)
    for live in filter(is_live, (named.get("backbone"), named.get("dataset"))):
        raise MedicError(
            f"{live} is an object of this process, which a sweep cannot share: give a function of a module"
        )
    for name in ("dataset", "backbone"):
        if any(not isinstance(value, str) for value in values.get(name, ())):
            raise MedicError(f"{name} in the span is an object: give names, or functions as MODULE:FUNCTION")
    planned = make_sweep(named, values, variants)
    methods = [named.get("method"), *values.get("method", ()), *(variant.get("method") for variant in variants)]
    for method in methods if executor != "here" else ():
        if is_local("method", str(method)):
            raise MedicError(
                f"method {method!r} exists in this process only: put it into a file and give imports=, or use "
                "executor='here'"
            )
    with log_output(quiet):
        place = make_executor(executor, jobs, **(executor_options or {}))
        schedule = launch(planned.jobs(Planner()), place, retries, quiet=quiet)
    return sort_runs(job.directory.path for job in schedule.jobs)


def report(
    runs: Run | Sequence[Run] | Path | str,
    path: Path | str | None = None,
    *,
    root: Path | str | None = None,
    paper: str | None = None,
) -> Path:
    """Write a page about a run or about several runs, and return its path.

    Args:
        runs: A run, several runs, or the folder of either; `load_runs(a, b)` has the runs of several folders.
        path: The page to write; by default `report.html` in the folder of the runs.
        root: The folder of the images, to show some of them on the page of a run.
        paper: A table of the paper to compare several runs with, such as `pacs-resnet50`.
    """
    from medic.reports.run_page import write_report
    from medic.reports.table_page import write_table_report

    folder, opened = None, runs
    if isinstance(opened, Path | str):
        folder = Path(opened)
        opened = Run(folder) if is_run(folder) else find_runs([folder])
    if isinstance(opened, Run):
        if paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {opened.path} is a run: leave it out")
        return write_report(opened, Path(path or opened.path / "report.html"), None if root is None else Path(root))
    if root is not None:
        raise MedicError("--root requires a single run: leave it out")
    if path is None and folder is None:
        raise MedicError("give the path of the page: several runs have no folder of their own")
    title = "runs" if folder is None else str(folder)
    opened = opened if isinstance(opened, Runs) else Runs(tuple(opened))
    return write_table_report(opened, title, Path(path or Path(title) / "report.html"), paper)


def analyze(name: str, runs: Run | Sequence[Run] | Path | str | None = None, **options: Any) -> "Result":
    """Measure something about finished runs; the result has `rows()`, `as_dict()` and `draw()`.

    Args:
        name: The analysis: `gradients`, `separation`, `errors`, … (`medic analyze` lists them).
        runs: The run or the runs to analyze, or their folder.
        **options: Options of the analysis, as in `medic analyze --help`.
    """
    analysis = ANALYSES[check_choice("analysis", name, ANALYSES)]
    for option in options:
        check_choice("option", option, analysis.options, f"of analysis {name!r}")
    if isinstance(runs, Path | str):
        runs = Run(runs) if is_run(Path(runs)) else find_runs([Path(runs)])
    several = [] if runs is None else [runs] if isinstance(runs, Run) else list(runs)
    if analysis.takes == "run":
        if len(several) != 1:
            raise MedicError(f"analysis {name!r} takes one run, but got {len(several)}")
        return analysis.measure(several[0], **options)
    if analysis.takes != "nothing" and not several:
        raise MedicError(f"analysis {name!r} needs finished runs: give some")
    return analysis.measure(several, **options)


def calibrate(
    model: Predictor | Run | Path | str,
    *,
    accept: float | None = None,
    threshold: float | None = None,
    cost: float | None = None,
    labels: Sequence[tuple[str, str]] | None = None,
    images: Sequence[str] | None = None,
) -> Predictor:
    """Return a model with another threshold, chosen on held-out images of the run, on labelled or on new images.

    Args:
        model: The model or its run.
        accept: The probability with which a known image is accepted, such as 0.9.
        threshold: The threshold itself: images with a lower score are unknown.
        cost: How much an accepted unknown image costs, relative to a rejected known one.
        labels: Paths of images and their classes, to choose on; a class that the model does not know is unknown.
        images: Paths of images without labels from the place of use.
    """
    from medic.deploy.calibration import Calibration, label_images
    from medic.runs.reevaluate import held_out

    if sum(value is not None for value in (accept, threshold, cost)) > 1:
        raise MedicError("accept, threshold and cost each choose the threshold: give one of them")
    predictor, run = open_model(model)
    labelled = None if run is None or threshold is not None else held_out(run)
    if labels is not None:
        labelled = label_images(predictor, labels, "labels")
    calibration = Calibration(predictor, labelled, None if images is None else predictor.infer(images))
    chosen = calibration.choose(accept, threshold, cost, labels is not None)
    if chosen is None:
        raise MedicError("nothing chooses the threshold: give accept, threshold, cost, labels or images")
    return predictor.at(chosen)


class Export(NamedTuple):
    """An exported model: its file, and how far its scores differ from the model's on some images."""

    path: Path
    images: int
    difference: float


def export(
    model: Predictor | Run | Path | str,
    path: Path | str | None = None,
    *,
    format: str = "onnx",
    images: Sequence[str] | None = None,
    root: Path | str | None = None,
) -> Export:
    """Export a model, and check that it decides on images as before.

    Args:
        model: The model or its run.
        path: The file to write; by default `model.onnx` or `model.pt2` beside the model.
        format: `onnx` or `torch-export`.
        images: Paths of images to check the export on; by default target images of the run.
        root: The folder of the run's images, if it moved.
    """
    import numpy as np
    import torch

    from medic.data.inputs import to_pixels
    from medic.deploy.export import export as write
    from medic.runs.reevaluate import target_pixels

    check_choice("format", format, EXPORTS)
    if path is None and isinstance(model, Predictor):
        raise MedicError("give the path of the file to write: this model has no folder")
    if images is not None and not images:
        raise MedicError("images is empty: give some to check the export on, or leave it out")
    predictor, run = open_model(model)
    folder = Path() if isinstance(model, Predictor) else run.path if run is not None else model_folder(str(model))
    file = Path(path or folder / f"model{EXPORTS[format]}")
    check_writable("export", file)
    if images is not None:
        pixels = torch.from_numpy(np.stack([to_pixels(image, predictor.decoded) for image in images]))
    elif run is not None:
        pixels = target_pixels(run, CHECKED, None if root is None else str(root))
    else:
        raise MedicError("the model is not a run, so it has no target images: give images to check the export on")
    return Export(file, len(pixels), write(predictor, file, format, pixels))


def serve(
    model: Predictor | Run | Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    limits: "Limits | None" = None,
    force: bool = False,
) -> None:
    """Serve a model over HTTP until the process receives SIGINT or SIGTERM.

    Args:
        model: The model or its run.
        host: The address to listen on; others than this machine need a token.
        port: The port to listen on, 0 for any free one.
        device: `auto`, `cpu` or `cuda`.
        token: The secret that clients send.
        allowed_hosts: Names by which clients address the service, `*` for any.
        limits: The largest requests, files and queues.
        force: Whether to serve a model that learned nothing.
    """
    import torch

    from medic.deploy.service.app import make_app
    from medic.deploy.service.server import address_of, check_token, is_loopback, listen, run
    from medic.training import pick_device

    check_token(token)
    if token is None and not is_loopback(host):
        raise MedicError(f"host {host} lets other machines connect: set a token")
    names = [allowed_hosts] if isinstance(allowed_hosts, str) else allowed_hosts
    with listen(host, port) as listening:  # first, since a port may be taken
        predictor, _ = open_model(model.path if isinstance(model, Run) else model)
        if not predictor.learned and not force:
            raise MedicError("the model learned nothing: train again with a lower learning rate, or use force=True")
        predictor = predictor.to(pick_device(device))
        app = make_app(predictor, limits, token, [host.lower(), *map(str.lower, names)])
        # The first pass is slow, and tells whether the model takes photographs at all.
        predictor.outputs(torch.zeros(1, 3, predictor.decoded, predictor.decoded, dtype=torch.uint8))
        run(app, listening, lambda: print(f"serving at {address_of(listening)}", flush=True))


def open_model(model: Predictor | Run | Path | str) -> tuple[Predictor, Run | None]:
    """Return a model, and its run if it has one."""
    if isinstance(model, Predictor):
        return model, None
    if isinstance(model, Run):
        return model.predictor, model
    folder = model_folder(str(model))
    if is_run(folder):
        run = Run(folder)
        return run.predictor, run
    return load(folder), None
