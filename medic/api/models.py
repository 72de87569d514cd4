"""Use a trained model: `medic.calibrate`, `watch`, `export`, `push` and `serve`.

All functions accept a `Run`, a `Predictor`, or the path of either.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from medic.deploy.layout import EXPORTS
from medic.deploy.paths import image_paths
from medic.errors import MedicError, check_choice
from medic.runs.opening import find_folder, is_model, open_model
from medic.runs.run import Run
from medic.utils.files import check_writable
from medic.utils.parts import ANY, FRACTION, POSITIVE

if TYPE_CHECKING:
    from medic.data.inputs import AnyImage
    from medic.deploy.predictor import Predictor
    from medic.deploy.service.limits import Limits
    from medic.openset import Shift
else:  # lets tools evaluate annotations without importing torch
    AnyImage = Limits = Predictor = Shift = Any

AnyModel = Predictor | Run | Path | str
"""A model, its run, or the path of either."""

CHECKED = 256
"""Default number of target images used to verify an export."""


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
