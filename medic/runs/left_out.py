"""Runs that each leave out one source domain, to see how known images score in a domain the model has not seen."""

import logging
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from medic.config.imports import executed
from medic.config.sources import allow_sources
from medic.errors import MedicError, counted
from medic.runs.run import Run
from medic.runs.train import train

logger = logging.getLogger(__name__)

FOLDER = "left-out"
"""Folder for these runs, next to the run. Tables do not search it for runs."""
_OWN = ("name", "output", "split", "target", "threshold", "extend", "imports")
"""Settings that are not copied from the run."""
_KEPT = (
    "batch_norm", "optimizer", "lr", "inner_lr", "momentum", "weight_decay", "layer_decay", "clip_norm", "schedule",
    "warmup", "head_first", "averaging", "iterations", "hparams",
)  # fmt: skip
"""Settings that keep the run's values, even if the defaults have changed since."""


def left_out_settings(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each source domain, with the settings of a run trained on the other source domains.

    The run has the same known classes and no unknown classes. The original target is not used.
    """
    data = run.config.data
    if run.config.soup:
        raise MedicError(f"{run.path} is a soup of several runs: calibrate one of those runs instead")
    if len(data.sources) < 2:
        raise MedicError(
            f"leaving out source domains requires at least two, but run {run.path} has only {data.sources[0]!r}"
        )
    if data.partial:
        raise MedicError(
            f"cannot leave out source domains of run {run.path}: some of them do not contain every known class"
        )
    written = {name: value for name, value in run.user_settings.items() if name not in _OWN}
    allow_sources(written, f"run {run.path}")
    _check_imports(run)
    kept = {name: run.settings[name] for name in _KEPT if run.settings.get(name) is not None}
    for source in data.sources:
        own = {
            "target": [source],
            "sources": [other for other in data.sources if other != source],
            "known": data.known,
            "unknown": [],
            "output": str(run.path.parent / FOLDER),
        }
        yield source, {**written, **kept, **own}


def _check_imports(run: Run) -> None:
    """Raise an error if the run used custom code that the user has not passed again."""
    names, hashes = run.settings.get("imports") or [], set(executed().values())
    if missing := [plugin.name for plugin in run.plugins if plugin.name in names and plugin.sha256 not in hashes]:
        options = " ".join(f"--import {name}" for name in missing)
        raise MedicError(
            f"run {run.path} was trained with custom code, which medic executes only on request: add {options}"
        )


def score_left_out(run: Run, quiet: bool = False) -> dict[str, Tensor]:
    """Return confidences, of shape (N,), for each source domain's known images from a model not trained on that domain.

    Trains one run per source domain, except for runs that are already finished. Each run takes about as long as the
    original run.
    """
    settings = dict(left_out_settings(run))
    if not quiet:
        logger.info(
            "training %s, each without one source domain; finished runs are reused", counted(len(settings), "run")
        )
    confidences = {}
    for source, own in settings.items():
        trained = train(own, quiet=quiet)  # warns if the run learned nothing
        confidences[source] = trained.score(trained.outputs("target").output)
    return confidences
