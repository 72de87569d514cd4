"""Runs that leave out one source domain each: how the scores of known images change in a domain without training."""

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
"""The folder of these runs beside the run, where tables do not look for runs."""
_OWN = ("name", "output", "split", "target", "threshold", "extend", "imports")
"""Settings of a run that those without a source domain do not share."""
_KEPT = (
    "batch_norm", "optimizer", "lr", "inner_lr", "momentum", "weight_decay", "layer_decay", "clip_norm", "schedule",
    "warmup", "head_first", "averaging", "iterations",
)  # fmt: skip
"""Settings that keep the values of the run, also if the defaults have changed since."""


def left_out_settings(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every source domain of a run with the settings of a run that is trained on the others alone.

    It has the same known classes and no unknown ones; the run's target has no part in it.
    """
    data = run.config.data
    if run.config.soup:
        raise MedicError(f"{run.path} is a soup of several runs: calibrate one of them")
    if len(data.sources) < 2:
        raise MedicError(f"run {run.path} has one source domain, {data.sources[0]!r}: none can be left out")
    if data.partial:
        raise MedicError(f"run {run.path} has classes that some domains lack: no domain can be left out")
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
    """Raise an error if the run used code that has not been executed: it is executed only if the user names it."""
    hashes = set(executed().values())
    if missing := [plugin.name for plugin in run.plugins if plugin.sha256 not in hashes]:
        options = " ".join(f"--import {name}" for name in missing)
        raise MedicError(f"run {run.path} was trained with code that is executed only if you name it: add {options}")


def score_left_out(run: Run, quiet: bool = False) -> dict[str, Tensor]:
    """Return the confidences (N,) of known images by source domain, each by a run that was not trained on it.

    Runs that are not finished are trained, which takes about as long as the run for each source domain.
    """
    settings = dict(left_out_settings(run))
    if not quiet:
        logger.info("train %s without a source domain each, unless they are finished", counted(len(settings), "run"))
    confidences = {}
    for source, own in settings.items():
        trained = train(own, quiet=quiet)  # it warns if the run learned nothing
        confidences[source] = trained.score(trained.outputs("target").output)
    return confidences
