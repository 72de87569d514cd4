"""The public functions: what the commands of `medic` do, from Python. Importing this module does not import torch.

A model may be given as a `Run`, as a `Predictor`, or as the path of either.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from medic.analysis import ANALYSES
from medic.config.settings import Settings
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

    NetworkSource = nn.Module | Callable[[], nn.Module]
    """A network, or a function that makes it."""
else:  # tools that evaluate annotations then need no torch
    AnyImage = Limits = NetworkSource = Predictor = Result = Shift = Any

AnyModel = Predictor | Run | Path | str
"""A model, its run, or the path of either."""

logger = logging.getLogger(__name__)

CHECKED = 256
"""The number of target images that an export is checked on."""


def train(*, model: NetworkSource | None = None, quiet: bool = False, **settings: Unpack[Settings]) -> Run:
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
    model: NetworkSource | None = None,
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
    from medic.sweeps.executors import make_executor
    from medic.sweeps.files import check_shareable, make_sweep
    from medic.sweeps.launch import launch
    from medic.sweeps.sweep import Planner
    from medic.utils.logs import log_output

    planned = make_sweep(
        _name_sources(settings, model), {name: _values(value) for name, value in span.items()}, variants
    )
    check_shareable(planned, same_process=executor == "here")
    with log_output(quiet):
        place = make_executor(executor, jobs, **(executor_options or {}))
        schedule = launch(planned.jobs(Planner()), place, retries, quiet=quiet)
    return sort_runs((job.directory.path for job in schedule.jobs), planned.output)


def probe(
    methods: Sequence[str] | str = (),
    seeds: Iterable[int] = range(3),
    *,
    executor: str = "local",
    jobs: int | None = None,
    quiet: bool = False,
    **settings: Unpack[Settings],
) -> Runs:
    """Train the heads of several methods on the features of a frozen backbone, and return the runs.

    Every domain is the target in turn. The features are computed once for all runs. The metrics of the runs have the
    OSCR of every score, as in `oscr/knn`.

    Args:
        methods: The methods to compare; by default all that can train a head alone on these data.
        seeds: The seeds of every method.
        executor: Where runs execute: `local`, `here`, `slurm` or `ray`.
        jobs: The number of runs at a time; by default one per GPU or core.
        quiet: Whether to log warnings only.
        **settings: The settings that all runs share.
    """
    from medic.sweeps.executors import make_executor
    from medic.sweeps.launch import launch
    from medic.sweeps.probe import plan_probe
    from medic.utils.logs import log_output

    with log_output(quiet):
        chosen = [methods] if isinstance(methods, str) else methods
        planned, _ = plan_probe(settings, chosen, list(seeds))
        schedule = launch(planned, make_executor(executor, jobs), quiet=quiet)
    return sort_runs((job.directory.path for job in schedule.jobs), schedule.output)


def _values(value: Any) -> Any:
    """Return the values of a setting in a span as a list: those of any collection, or of an array; text stays."""
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
    """Write a page about a run or about several runs, and return its path.

    Args:
        runs: A run, several runs, or the folder of either; `load_runs(a, b)` has the runs of several folders.
        path: The page to write; by default `report.html` in the folder of the runs.
        root: The folder of the images, to show some of them on the page of a run.
        paper: A table of the paper to compare several runs with, such as `pacs-resnet50`.
    """
    opened = open_runs(runs) if isinstance(runs, Path | str) else runs
    if isinstance(opened, Run):
        if paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {opened.path} is a run: leave it out")
        file = Path(path or opened.path / "report.html")
        check_writable("report", file)
        from medic.reports.run_page import write_report

        return write_report(opened, file, None if root is None else Path(root))
    collection = opened if isinstance(opened, Runs) else Runs(tuple(map(_open_run, opened)))
    folder = collection.folder
    if root is not None:
        raise MedicError(f"--root requires a single run, but {folder or 'this'} is a folder of runs: leave it out")
    if path is None and folder is None:
        raise MedicError("give the path of the page: these runs have no folder of their own")
    file = Path(path or f"{folder}/report.html")
    check_writable("report", file)
    from medic.reports.table_page import write_table_report

    return write_table_report(collection, str(folder or "runs"), file, paper)


def _open_run(run: Run | Path | str) -> Run:
    """Return a finished run, which may be given by its directory."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, Path | str):
        raise MedicError(f"a run is of type {type(run).__name__}: give a Run, or its directory")
    check_run(Path(run))
    return Run(run)


def analyze(
    name: str,
    runs: Run | Sequence[Run | Path | str] | Path | str | None = None,
    *,
    imports: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Measure something about finished runs; the result has `rows()`, `as_dict()` and `draw()`.

    Args:
        name: The analysis: `gradients`, `separation`, `errors`, … (`medic analyze` lists them).
        runs: The run or the runs to analyze, or their directories. For `openness` and `cost`, also folders of runs.
        imports: Files or modules of yours that the runs were trained with, to be executed first.
        **options: Options of the analysis, as in `medic analyze --help`.
    """
    analysis = ANALYSES[check_choice("analysis", name, ANALYSES)]
    known = {option for other in ANALYSES.values() for option in other.options}
    for option in options:
        check_choice("option", option, known)
        if option not in analysis.options:
            raise MedicError(f"--{option} has no effect on {name!r}: leave it out")
    chosen = [] if runs is None else [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if analysis.takes == "nothing" and chosen:
        raise MedicError(f"{name!r} needs no runs, but got {chosen[0]}: leave it out")
    if analysis.takes != "nothing" and not chosen:
        expected = {"run": "the directory of a run", "runs": "directories of runs", "folders": "folders of runs"}
        raise MedicError(f"analysis {name!r} needs finished runs: give {expected[analysis.takes]}")
    if analysis.takes == "run" and len(chosen) > 1:
        raise MedicError(f"{name!r} takes one run, but got {len(chosen)}: analyze them one by one")
    opened = _runs_in(chosen) if analysis.takes == "folders" else [_open_run(run) for run in chosen]
    execute_imports(imports)
    if analysis.takes == "nothing":
        return analysis.measure(**options)
    return analysis.measure(opened[0] if analysis.takes == "run" else opened, **options)


def _runs_in(places: Sequence[Run | Path | str]) -> list[Run]:
    """Return some runs and the finished runs of some folders, and log what is left out."""
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
    """Return a model with another threshold, chosen on held-out images of the run, on labelled or on new images.

    Args:
        model: The model or its run.
        accept: The probability with which a known image is accepted, such as 0.9.
        threshold: The threshold itself: images with a lower score are unknown.
        cost: How much an accepted unknown image costs, relative to a rejected known one.
        left_out: Whether `accept` (default: 0.9) is to hold in every source domain, scored by a run that was not
            trained on it. These runs are trained beside the model's, unless they are finished.
        labels: Paths of images and their classes, or a file with the columns path and class, to choose on; a class that
            the model does not know is unknown.
        images: Images without labels from the place of use, or their folder.
        imports: Files or modules of yours that the model needs, to be executed first.
        force: Whether to accept a model that learned nothing.
    """
    if sum(value is not None for value in (accept, threshold, cost)) > 1:
        raise MedicError("accept, threshold and cost each choose the threshold: give one of them")
    if left_out and any(value is not None for value in (threshold, cost, labels)):
        raise MedicError("left_out chooses the threshold: leave out threshold, cost and labels")
    if not left_out and all(value is None for value in (accept, threshold, cost, labels, images)):
        raise MedicError("nothing chooses the threshold: give accept, left_out, threshold, cost, labels or images")
    numbers = {"accept": (accept, FRACTION), "threshold": (threshold, ANY), "cost": (cost, POSITIVE)}
    for name, (value, limits) in numbers.items():
        if value is not None and not (isinstance(value, int | float) and limits.allow(value)):
            raise MedicError(f"{name} is {value!r}: give {limits.wanted(whole=False)}")
    predictor, run = open_model(model, imports=imports, force=force)
    if threshold is not None:
        return predictor.at(threshold)
    from medic.runs.reevaluate import make_calibration

    calibration = make_calibration(predictor, run, labels, _list_images(images), left_out)
    chosen = calibration.choose(accept, None, cost, labels is not None)
    return predictor if chosen is None else calibration.apply(chosen)


def _list_images(images: Iterable[AnyImage] | Path | str | None) -> list[AnyImage] | None:
    """Return images; those of a folder, a pattern or a list of paths by their paths."""
    if isinstance(images, Path | str):
        return list(image_paths([str(images)]))
    return None if images is None else list(images)


def watch(
    model: AnyModel, images: Iterable[AnyImage] | Path | str, *, imports: Sequence[str] = (), device: str | None = None
) -> Shift:
    """Compare images without labels with held-out images of the sources.

    Returns estimates of the accuracy and of the share of unknown images, and `p_value`: below 0.01, the images differ
    from those of the sources. Images that cannot be read are an error.

    Args:
        model: The model, its run, or the path of either.
        images: Images from the place of use, or their folder; at least 20.
        imports: Files or modules of yours that the model needs, to be executed first.
        device: `auto`, `cpu` or `cuda`; by default the model stays where it is.
    """
    predictor, _ = open_model(model, device, imports)
    return predictor.watch(_list_images(images) or [])


class Export(NamedTuple):
    """An exported model: its file, and how far its scores differ from the model's on some images."""

    path: Path
    images: int
    """The number of images that were compared."""
    difference: float


def export(
    model: AnyModel,
    path: Path | str | None = None,
    *,
    format: str = "onnx",
    images: Iterable[AnyImage] | Path | str | None = None,
    root: Path | str | None = None,
    imports: Sequence[str] = (),
) -> Export:
    """Export a model, and check that it decides on images as before.

    Args:
        model: The model or its run.
        path: The file to write; by default `model.onnx` or `model.pt2` beside the model.
        format: `onnx` or `torch-export`.
        images: Images to check the export on, or their folder; by default target images of the run.
        root: The folder of the run's images, if it moved.
        imports: Files or modules of yours that the model needs, to be executed first.
    """
    check_choice("format", format, EXPORTS)
    folder = find_folder(model)
    if path is None and folder is None:
        raise MedicError("give the path of the file to write: this model has no folder")
    if images is None and not isinstance(model, Run) and (folder is None or is_model(folder)):
        name = "the model" if folder is None else folder
        raise MedicError(f"{name} is not a run, so it has no target images: check it on others with --images")
    file = Path(path or f"{folder}/model{EXPORTS[format]}")
    check_writable("export", file)
    checked = _list_images(images)
    if checked is not None and not checked:
        raise MedicError("images is empty: give some to check the export on, or leave it out")
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
    """Send a model to the Hugging Face Hub, and return its address.

    Args:
        model: The model or its run, whose metrics then are part of the model card.
        name: The name on the hub, `OWNER/NAME`.
        private: Whether only the owner can see it.
        license: The license of the model card, such as `mit`.
        imports: Files or modules of yours that the model needs, to be executed first.
        force: Whether to send a model that learned nothing.
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
        model: The model or its run.
        host: The address to listen on; anything but localhost requires a token.
        port: The port to listen on, 0 for any free one.
        device: `auto`, `cpu` or `cuda`.
        token: The secret that clients send; by default the environment variable `MEDIC_TOKEN`.
        allowed_hosts: Names by which clients address the service, `*` for any.
        limits: The largest requests, files and queues.
        imports: Files or modules of yours that the model needs, to be executed first.
        force: Whether to serve a model that learned nothing.
        ray: Whether to serve a model on disk as a Ray Serve deployment.
        replicas: With `ray`, the number of processes that hold the model; by default one.
        address: With `ray`, the cluster to join; by default a Ray of this machine.
    """
    from medic.deploy.service.server import address_of, check_access, listen, run

    token = os.environ.get("MEDIC_TOKEN") if token is None else token
    check_access(host, token)
    for name, value in (("replicas", replicas), ("address", address)):
        if value is not None and not ray:
            raise MedicError(f"--{name} is only used with --ray: add --ray, or leave out --{name}")
    folder = find_folder(model)
    if ray and (folder is None or imports):
        raise MedicError("--ray needs a model on disk without code of yours: save it, or install the code as a package")
    hosts = [host.lower(), *map(str.lower, [allowed_hosts] if isinstance(allowed_hosts, str) else allowed_hosts)]
    with nullcontext() if ray else listen(host, port) as listening:  # first, since a port may be taken
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
