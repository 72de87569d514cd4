"""The public functions: what the commands of `medic` do, from Python. Importing this module does not import torch.

A model may be given as a `Run`, as a `Predictor`, or as the path of either.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from medic.analysis import ANALYSES
from medic.config.settings import Settings
from medic.deploy.layout import EXPORTS, model_folder
from medic.errors import MedicError, check_choice, counted
from medic.results.runs import Runs, find_runs, open_runs, sort_runs
from medic.runs.layout import check_run
from medic.runs.opening import check_model, open_model
from medic.runs.run import Run
from medic.utils.files import check_writable

if TYPE_CHECKING:
    from torch import nn

    from medic.analysis.result import Result
    from medic.deploy.calibration import Calibration
    from medic.deploy.predictor import Predictor
    from medic.deploy.service.limits import Limits

logger = logging.getLogger(__name__)

CHECKED = 256
"""The number of target images that an export is checked on."""


def train(
    *, model: "nn.Module | Callable[[], nn.Module] | None" = None, quiet: bool = False, **settings: Unpack[Settings]
) -> Run:
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
    from medic.runs.train import train as train_run

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
    model: "nn.Module | Callable[[], nn.Module] | None" = None,
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
    pages = open_runs(runs) if isinstance(runs, Path | str) else runs
    if isinstance(pages, Run):
        if paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {pages.path} is a run: leave it out")
        file = Path(path or pages.path / "report.html")
        check_writable("report", file)
        from medic.reports.run_page import write_report

        return write_report(pages, file, None if root is None else Path(root))
    if root is not None:
        raise MedicError("--root requires a single run: leave it out")
    several = pages if isinstance(pages, Runs) else Runs(tuple(pages))
    if path is None and several.folder is None:
        raise MedicError("give the path of the page: these runs have no folder of their own")
    file = Path(path or f"{several.folder}/report.html")
    check_writable("report", file)
    from medic.reports.table_page import write_table_report

    return write_table_report(several, str(several.folder or "runs"), file, paper)


def analyze(name: str, runs: Run | Sequence[Run | Path | str] | Path | str | None = None, **options: Any) -> "Result":
    """Measure something about finished runs; the result has `rows()`, `as_dict()` and `draw()`.

    Args:
        name: The analysis: `gradients`, `separation`, `errors`, … (`medic analyze` lists them).
        runs: The run or the runs to analyze, or their directories. For `openness` and `cost`, also folders of runs.
        **options: Options of the analysis, as in `medic analyze --help`.
    """
    analysis = ANALYSES[check_choice("analysis", name, ANALYSES)]
    for option in options:
        if option not in analysis.options:
            raise MedicError(f"--{option} has no effect on {name!r}: leave it out")
    several = [] if runs is None else [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if analysis.takes == "nothing":
        if several:
            raise MedicError(f"{name!r} needs no runs, but got {several[0]}: leave it out")
        return analysis.measure(**options)
    if not several:
        expected = {"run": "the directory of a run", "runs": "directories of runs", "folders": "folders of runs"}
        raise MedicError(f"analysis {name!r} needs finished runs: give {expected[analysis.takes]}")
    if analysis.takes == "run" and len(several) > 1:
        raise MedicError(f"{name!r} takes one run, but got {len(several)}: analyze them one by one")
    opened = [run for place in several for run in _runs_of(place, analysis.takes == "folders")]
    return analysis.measure(opened[0] if analysis.takes == "run" else opened, **options)


def _runs_of(place: Run | Path | str, folders: bool) -> Sequence[Run]:
    """Return the run at a place, or with `folders` the finished runs in a folder."""
    if isinstance(place, Run):
        return [place]
    if folders:
        runs = find_runs([Path(place)])
        for note in runs.notes():
            logger.warning("%s", note)
        return runs.finished
    check_run(Path(place))
    return [Run(place)]


def calibrate(
    model: "Predictor | Run | Path | str",
    *,
    accept: float | None = None,
    threshold: float | None = None,
    cost: float | None = None,
    labels: Sequence[tuple[str, str]] | None = None,
    images: Sequence[str] | None = None,
    force: bool = False,
) -> "Predictor":
    """Return a model with another threshold, chosen on held-out images of the run, on labelled or on new images.

    Args:
        model: The model or its run.
        accept: The probability with which a known image is accepted, such as 0.9.
        threshold: The threshold itself: images with a lower score are unknown.
        cost: How much an accepted unknown image costs, relative to a rejected known one.
        labels: Paths of images and their classes, to choose on; a class that the model does not know is unknown.
        images: Paths of images without labels from the place of use.
        force: Whether to accept a model that learned nothing.
    """
    if sum(value is not None for value in (accept, threshold, cost)) > 1:
        raise MedicError("accept, threshold and cost each choose the threshold: give one of them")
    calibration = make_calibration(model, labels, images, force=force)
    chosen = calibration.choose(accept, threshold, cost, labels is not None)
    if chosen is None:
        raise MedicError("nothing chooses the threshold: give accept, threshold, cost, labels or images")
    return calibration.apply(chosen)


def make_calibration(
    model: "Predictor | Run | Path | str",
    labels: Sequence[tuple[str, str]] | None = None,
    images: Iterable[str] | None = None,
    device: str | None = None,
    force: bool = False,
) -> "Calibration":
    """Return a model with the outputs to choose its threshold by; images that cannot be read are left out.

    The labelled images are those of the user, or else the ones that the run held out.
    """
    predictor, run = open_model(model, device, force)
    from medic.data.decode import BadImage
    from medic.deploy.calibration import Calibration, label_images
    from medic.runs.reevaluate import held_out

    labelled = None if run is None else held_out(run)
    if labels is not None:
        labelled = label_images(predictor, labels, "labelled images")
    unreadable: list[BadImage] = []
    unlabelled = None if images is None else predictor.infer(images, unreadable)
    if unreadable:
        logger.warning("%s left out, the first: %s", counted(len(unreadable), "unreadable image"), unreadable[0])
    return Calibration(predictor, labelled, unlabelled)


class Export(NamedTuple):
    """An exported model: its file, and how far its scores differ from the model's on some images."""

    path: Path
    images: int
    difference: float


def export(
    model: "Predictor | Run | Path | str",
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
    check_choice("format", format, EXPORTS)
    if images is not None and not images:
        raise MedicError("images is empty: give some to check the export on, or leave it out")
    folder = model.path if isinstance(model, Run) else model_folder(model) if isinstance(model, Path | str) else None
    if path is None and folder is None:
        raise MedicError("give the path of the file to write: this model has no folder")
    file = Path(path or f"{folder}/model{EXPORTS[format]}")
    predictor, run = open_model(model)
    check_writable("export", file)
    import numpy as np
    import torch

    from medic.data.inputs import to_pixels
    from medic.deploy.export import export as write
    from medic.runs.reevaluate import target_pixels

    if images is not None:
        pixels = torch.from_numpy(np.stack([to_pixels(image, predictor.decoded) for image in images]))
    elif run is not None:
        pixels = target_pixels(run, CHECKED, None if root is None else str(root))
    else:
        place = "the model" if folder is None else folder
        raise MedicError(f"{place} is not a run, so it has no target images: check it on others with --images")
    return Export(file, len(pixels), write(predictor, file, format, pixels))


def serve(
    model: "Predictor | Run | Path | str",
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
    from medic.deploy.service.server import address_of, check_access, listen, run

    check_access(host, token)
    if isinstance(model, Path | str):
        check_model(model)
    place = model if isinstance(model, Path | str) else model.path if isinstance(model, Run) else "a model"
    names = [allowed_hosts] if isinstance(allowed_hosts, str) else allowed_hosts
    with listen(host, port) as listening:  # first, since a port may be taken
        predictor, _ = open_model(model, device, force)
        from medic.deploy.service.app import make_app

        predictor.warm_up()
        app = make_app(predictor, limits, token, [host.lower(), *map(str.lower, names)])
        run(app, listening, lambda: print(f"serving {place} at {address_of(listening)}", flush=True))
