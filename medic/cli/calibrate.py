"""The `medic calibrate` command."""

import math
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from medic.cli.options import (
    add_device_option,
    add_force_option,
    add_import_option,
    input_file,
    number,
    output_folder,
)
from medic.deploy.paths import image_paths
from medic.errors import MedicError, counted
from medic.reports.terminal import print_rows
from medic.runs.opening import check_model, is_model, open_model
from medic.utils.files import atomic_folder, writing
from medic.utils.parts import FRACTION, POSITIVE

if TYPE_CHECKING:
    from medic.deploy.calibration import Calibration, Effect
    from medic.openset import Threshold

FEW = 100
"""Number of images below which the output says how uncertain percentages are."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic calibrate`."""
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--accept",
        type=number(float, FRACTION),
        metavar="P",
        help="accept known images with at least this probability, such as 0.9",
    )
    choice.add_argument("--threshold", type=float, metavar="X", help="label images with a lower score unknown")
    choice.add_argument(
        "--cost",
        type=number(float, POSITIVE),
        metavar="C",
        help="minimise the cost if accepting an unknown image costs C times as much as losing a known one, both "
        "equally frequent",
    )
    parser.add_argument(
        "--left-out",
        action="store_true",
        help="apply --accept P (default: 0.9) to every source domain, using runs trained without that domain; usually "
        "accepts more images, including unknown ones",
    )
    parser.add_argument(
        "--labels",
        type=input_file,
        metavar="FILE",
        help="file with columns path and class, listing labelled images to calibrate on (default: held-out images)",
    )
    parser.add_argument(
        "--images",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="unlabelled images from the deployment domain: files, folders, …",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_folder,
        metavar="DIR",
        help="folder in which to save the model with the chosen threshold",
    )
    add_force_option(parser)
    add_device_option(parser, default="auto")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Print how many images each threshold accepts and rejects, and write the model with the chosen threshold."""
    check_model(arguments.run)
    if arguments.left_out:
        for name in ("threshold", "cost", "labels"):
            if getattr(arguments, name) is not None:
                raise MedicError(f"--left-out and --{name} cannot be combined: use only one of them")
    output = None if arguments.output is None else _output_folder(arguments)
    images = None if arguments.images is None else image_paths(arguments.images)
    predictor, run = open_model(arguments.run, arguments.device, arguments.imports, arguments.force)
    from medic.runs.reevaluate import make_calibration

    calibration = make_calibration(predictor, run, arguments.labels, images, arguments.left_out)
    if calibration.labelled is None and images is None and arguments.threshold is None:
        raise MedicError(
            f"{arguments.run} is a model without its run: pass --labels or --images from the deployment domain"
        )
    chosen = calibration.choose(arguments.accept, arguments.threshold, arguments.cost, arguments.labels is not None)
    effects = [calibration.effect(threshold) for threshold in calibration.comparisons()]
    if chosen is not None:
        effects = [effect for effect in effects if effect.threshold.value != chosen.value] + [
            calibration.effect(chosen)
        ]
    effects.sort(key=lambda effect: effect.threshold.value)
    _print(effects, chosen, calibration)
    if chosen is not None and output is None:
        print("\nadd --output DIR to save the model with this threshold")
    elif chosen is not None and output is not None:
        done = "replaced" if is_model(output) else "saved"
        with writing("model", output), atomic_folder(output) as folder:
            calibration.apply(chosen).to("cpu").save(folder)
        print(f"\n{done} {output}; use it with `medic predict`, `medic serve` or `medic export`")
    return 0


def _output_folder(arguments: Namespace) -> Path:
    """Return the output folder. Raise an error if it has files but no model, or if no option chooses a threshold."""
    output: Path = arguments.output
    chosen = any(getattr(arguments, name) is not None for name in ("accept", "threshold", "cost", "labels", "images"))
    if not chosen and not arguments.left_out:
        raise MedicError(
            "--output requires a threshold: add --accept, --left-out, --threshold, --cost, --labels or --images"
        )
    if output.is_dir() and any(output.iterdir()) and not is_model(output):  # a run is not a saved model either
        raise MedicError(f"--output {output} contains other files: choose a new folder, or one with a saved model")
    return output


def _print(effects: "list[Effect]", chosen: "Threshold | None", calibration: "Calibration") -> None:
    """Print one row per threshold, from lenient to strict, and explain the columns."""
    titles = {
        "accepted": "known accepted",
        "named": "and classified correctly",
        "rejected": "unknown rejected",
        "unlabelled": "images accepted",
    }
    present = {
        name: title for name, title in titles.items() if any(getattr(effect, name) is not None for effect in effects)
    }
    rows = []
    for effect in effects:
        threshold = effect.threshold
        mark = "→" if threshold == chosen else "•" if threshold == calibration.predictor.threshold else ""
        rates = {title: f"{100 * getattr(effect, name):.1f}" for name, title in present.items()}
        rows.append({"": mark, "rule": threshold.rule, "threshold": f"{threshold.display_value:.6g}", **rates})
    print_rows(rows, numeric=["threshold", *present.values()])
    notes = ["• current threshold", *(["→ chosen threshold"] if chosen is not None else [])]
    if (labelled := calibration.labelled) is not None:
        known = int((labelled.label >= 0).sum())
        others = len(labelled.label) - known
        notes.append(f"percentages refer to {known:,} known and {others:,} unknown images: {labelled.about}")
        if (fewest := min(known, others or known)) < FEW:
            error = 98 / math.sqrt(fewest)  # half a 95% interval, in points, for a share of 50%
            notes.append(f"with only {fewest} images, a percentage can be wrong by {error:.0f} points")
        if not others and calibration.unlabelled is None:
            notes.append(
                "without unknown images, the table shows only what each threshold costs: to see what it rejects, pass "
                "--labels with unknown images, or --images"
            )
    if calibration.unlabelled is not None:
        notes.append(
            f"images accepted: percentage of {counted(len(calibration.unlabelled.logits), 'unlabelled image')}"
        )
    print()
    for note in notes:
        print(note)
    if labelled is not None and labelled.others:
        some = ", ".join(labelled.others[:5])
        print(f"classes not in the model, treated as unknown: {some}{', …' if len(labelled.others) > 5 else ''}")
    if labelled is not None:
        print(
            "`accept P%` holds for new known images from the domains of these images; in other domains, the model may "
            "accept fewer"
        )
    if calibration.left_out is not None:
        print(
            "`accept P% of left-out domains` refers to runs trained without these domains; the percentages refer to "
            "held-out images from domains that the model was trained on, so they are usually higher than P%"
        )
        print("`--left-out` usually accepts more images than `--accept`, including unknown images")
