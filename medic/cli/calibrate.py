"""`medic calibrate`."""

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
from medic.runs.opening import check_model, open_model
from medic.utils.files import atomic_folder, writing
from medic.utils.parts import FRACTION, POSITIVE

if TYPE_CHECKING:
    from medic.deploy.calibration import Calibration, Effect
    from medic.openset import Threshold


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic calibrate`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of its model files")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--accept",
        type=number(float, FRACTION),
        metavar="P",
        help="accept a known image with at least this probability, as in 0.9",
    )
    choice.add_argument("--threshold", type=float, metavar="X", help="call images with a lower score unknown")
    choice.add_argument(
        "--cost",
        type=number(float, POSITIVE),
        metavar="C",
        help="an unknown image that is accepted costs C times a known one that is lost, both equally frequent",
    )
    parser.add_argument(
        "--left-out",
        action="store_true",
        help="accept at least --accept P (default: 0.9) in every source domain, using runs trained without that domain",
    )
    parser.add_argument(
        "--labels",
        type=input_file,
        metavar="FILE",
        help="file with the columns path and class of images to calibrate on (default: held-out images)",
    )
    parser.add_argument(
        "--images",
        nargs="+",
        action="extend",
        metavar="PATH",
        help="images without labels, from the place of use: files, folders, …",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_folder,
        metavar="DIR",
        help="write the model with the chosen threshold to a folder",
    )
    add_force_option(parser)
    add_device_option(parser, default="auto")
    add_import_option(parser)


def run(arguments: Namespace) -> int:
    """Print what thresholds accept and reject, and write the model with the chosen one."""
    check_model(arguments.run)
    if arguments.left_out:
        for name in ("threshold", "cost", "labels"):
            if getattr(arguments, name) is not None:
                raise MedicError(f"--left-out and --{name} each choose the threshold: give one of them")
    output = None if arguments.output is None else _output_folder(arguments)
    images = None if arguments.images is None else image_paths(arguments.images)
    predictor, run = open_model(arguments.run, arguments.device, arguments.imports, arguments.force)
    from medic.runs.reevaluate import make_calibration

    calibration = make_calibration(predictor, run, arguments.labels, images, arguments.left_out)
    if calibration.labelled is None and images is None and arguments.threshold is None:
        raise MedicError(
            f"{arguments.run} is a model without its run: give images of the place of use with --labels or --images"
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
        print("\nwrite the model with this threshold by adding --output DIR")
    elif chosen is not None and output is not None:
        with writing("model", output), atomic_folder(output) as folder:
            calibration.apply(chosen).to("cpu").save(folder)
        print(f"\nwritten: {output}, for `medic predict`, `medic serve` and `medic export`")
    return 0


def _output_folder(arguments: Namespace) -> Path:
    """Return the folder to write to; refuse one that holds something, and a call that chooses no threshold."""
    output: Path = arguments.output
    chosen = any(getattr(arguments, name) is not None for name in ("accept", "threshold", "cost", "labels", "images"))
    if not chosen and not arguments.left_out:
        raise MedicError(
            "--output: choose a threshold with --accept, --left-out, --threshold, --cost, --labels or --images"
        )
    # A new folder takes the place of an empty one, which would pull the current one from under the shell.
    if output.exists() and not (output.is_dir() and not any(output.iterdir()) and not output.samefile(".")):
        raise MedicError(f"--output {output} exists: give a new folder")
    return output


def _print(effects: "list[Effect]", chosen: "Threshold | None", calibration: "Calibration") -> None:
    """Print a row per threshold, from lenient to strict, and which images the columns are about."""
    titles = {
        "accepted": "known accepted",
        "named": "and named correctly",
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
    notes = ["• the model's threshold", *(["→ the chosen one"] if chosen is not None else [])]
    if (labelled := calibration.labelled) is not None:
        known = int((labelled.label >= 0).sum())
        others = len(labelled.label) - known
        notes.append(f"in percent of {known:,} known and {others:,} unknown images: {labelled.about}")
    if calibration.unlabelled is not None:
        notes.append(f"images accepted: of {counted(len(calibration.unlabelled.logits), 'image')} without labels")
    print()
    for note in notes:
        print(note)
    if labelled is not None and labelled.others:
        some = ", ".join(labelled.others[:5])
        print(f"taken for unknown, as no class of the model: {some}{', …' if len(labelled.others) > 5 else ''}")
    if labelled is not None:
        print("`accept P %` holds for new images from where these are from; in another domain fewer may be accepted")
