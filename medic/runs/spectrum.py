"""Full-spectrum evaluation of a finished run: its known images against unknown images from anywhere."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from medic.data.decode import BadImage
from medic.deploy.paths import image_paths
from medic.errors import counted
from medic.evaluation.evaluator import Outputs, choose_threshold
from medic.openset import rank_groups
from medic.runs.reevaluate import ready_score
from medic.runs.run import Run
from medic.training import pick_device

logger = logging.getLogger(__name__)


class UnknownImages(NamedTuple):
    """How well a score separates a group of unknown images from known images, and how many of them it rejects."""

    place: str
    """`sources`, `target`, or the folder as passed by the user."""
    images: int
    sources: float
    """AUROC of known source images against these images."""
    target: float | None
    """AUROC of known target images against these images, or None without a target."""
    full: float | None
    """AUROC of all known images against these images, or None without a target."""
    rejected: float
    """Share of these images that the threshold rejects."""


def measure_spectrum(
    run: Run, score: str, rule: str | float, outputs: Outputs, folders: Sequence[str] = (), device: str = "auto"
) -> list[UnknownImages]:
    """Return one row each for unknown source images, unknown target images, and the images in each folder.

    Every readable image in a folder is treated as unknown. Empty groups are omitted.
    """
    chosen = ready_score(run, score, outputs)
    confidence = {split: chosen(seen.output) for split, seen in outputs.items()}
    sources, target = confidence["validation"], None
    unknown: list[tuple[str, Tensor]] = []
    if "source-unknown" in outputs:
        unknown.append(("sources", confidence["source-unknown"]))
    if run.config.data.target:  # otherwise, the split named `target` contains the held-out source images
        unknown_target = outputs["target"].label < 0
        target = confidence["target"][~unknown_target]
        if bool(unknown_target.any()):
            unknown.append(("target", confidence["target"][unknown_target]))
    if folders:
        predictor = run.predictor.to(pick_device(device))
        for folder in folders:
            unreadable: list[BadImage] = []
            unknown.append((folder, chosen(predictor.infer(image_paths([folder]), unreadable))))
            if unreadable:
                left_out = counted(len(unreadable), "unreadable image")
                logger.warning("skipped %s in %s; first error: %s", left_out, folder, unreadable[0])
    threshold = choose_threshold(outputs, chosen, rule).value if unknown else 0.0
    rows = []
    for place, others in unknown:
        of_target = of_all = None
        if target is not None:
            of_target, of_all = (rank_groups(group, others).auroc() for group in (target, torch.cat([sources, target])))
        of_sources = rank_groups(sources, others).auroc()
        rejected = float((others < threshold).double().mean())
        rows.append(UnknownImages(place, len(others), of_sources, of_target, of_all, rejected))
    return rows
