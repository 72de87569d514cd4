"""An HTML page about some runs: results, example images, and the settings to repeat them."""

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from medic import openset
from medic.data import Dataset
from medic.files import write_text
from medic.report.table import columns, run_rows, weights_text
from medic.runs.directory import Run
from medic.runs.recipe import make_recipe
from medic.runs.settings import SETTINGS

COLOURS = ("#7a7a85", "#c2410c", "#0f766e", "#6d28d9")


def write_page(path: Path, runs: Sequence[Run], title: str, note: str = "", paper: bool = False) -> Path:
    """Write a self-contained page without scripts. A `note` follows the results, which `paper` shows by both rules."""
    settings = {name: value for name, value in runs[0].settings.items() if name in SETTINGS}
    recipe, opened = make_recipe({**settings, "weights": None})
    dataset, classes = recipe.data.load(opened, torch.device("cpu")), recipe.data.classes
    targets = dict.fromkeys(_target(run) for run in runs)
    sections = [_section(dataset, [run for run in runs if _target(run) == target]) for target in targets]
    environment = Environment(loader=PackageLoader("medic.report", "."), autoescape=True, undefined=StrictUndefined)
    html = environment.get_template("page.html").render(
        title=title,
        note=note,
        known=classes.known,
        unknown=len(classes.unknown),
        paper=paper,
        rows=run_rows(runs, paper),
        numeric=[metric.title for metric in columns(runs)],
        domains=[
            {"name": name, "image": _strip(dataset, np.flatnonzero((dataset.domain == domain).numpy()), count=20)}
            for domain, name in enumerate(dataset.domains)
        ],
        sections=sections,
        runs=[_provenance(run, path.parent) for run in runs],
        threshold=runs[0].settings["threshold"],
    )
    write_text(path, html)
    return path


def _target(run: Run) -> str:
    return ", ".join(run.settings["target"])


def _section(dataset: Dataset, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the curves and examples of one target."""
    target = _target(runs[0])
    unknown = all((run.outputs("target").label < 0).any() for run in runs)
    return {
        "target": target,
        "curves": _curves(runs, target) if unknown else None,
        "examples": [{"method": run.settings["method"], "groups": _examples(dataset, run)} for run in runs],
    }


def _curves(runs: Sequence[Run], target: str) -> str:
    """Return the OSCR curves as SVG: a line per run and score, with the area in the legend and for screen readers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    areas = []
    for run, colour in zip(runs, COLOURS, strict=False):
        output, label, _ = run.outputs("target")
        prediction = openset.predicted_class(output)
        for name, style in (("cls", ":"), ("bcls", "-")):
            if not openset.SCORES[name].reads(output):
                continue
            confidence = openset.score(name, output)
            curve = openset.oscr_curve(confidence, prediction, label)
            area = 100 * openset.oscr(confidence, prediction, label)
            areas.append(f"{run.settings['method']}, {name}: {area:.1f}")
            axes.plot(*curve, style, color=colour, label=areas[-1])
    axes.set_xlabel("fraction of unknown images accepted")
    axes.set_ylabel("fraction of known images classified correctly")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="OSCR")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    opening = Markup('<svg role="img" aria-label="{}"').format(f"OSCR curves on {target}; areas {'; '.join(areas)}")
    return opening + Markup(svg[svg.index("<svg") + len("<svg") :])


def _examples(dataset: Dataset, run: Run) -> list[dict[str, Any]]:
    """Return target images of every outcome with their percentage."""
    rows = run.predictions["split"] == "target"
    label, prediction = run.predictions["label"][rows], run.predictions["prediction"][rows]
    position = {path: index for index, path in enumerate(dataset.paths)}
    index = np.array([position[path] for path in run.predictions["path"][rows]])
    known, rejected, right = label >= 0, prediction < 0, label == prediction
    outcomes = {
        "known, classified correctly": known & right,
        "known, classified wrongly": known & ~right & ~rejected,
        "known, rejected": known & rejected,
        "unknown, rejected": ~known & rejected,
        "unknown, accepted": ~known & ~rejected,
    }
    total = {True: int(known.sum()), False: int((~known).sum())}
    return [
        {
            "title": title,
            "share": f"{100 * mask.sum() / total[title.startswith('known')]:.0f} %",
            "image": _strip(dataset, index[mask]),
        }
        for title, mask in outcomes.items()
        if total[title.startswith("known")]
    ]


def _strip(dataset: Dataset, indices: NDArray[Any], count: int = 12) -> str:
    """Return up to `count` images side by side, evenly spaced in `indices`, as a data URL; empty without images."""
    if not len(indices):
        return ""
    chosen = indices[np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(int)]
    images = dataset.images.gather(torch.from_numpy(chosen), torch.device("cpu"))  # (N, C, H, W)
    count, channels, height, width = images.shape
    buffer = io.BytesIO()
    tiles = images.permute(2, 0, 3, 1).reshape(height, count * width, channels)
    Image.fromarray(tiles.numpy()).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _provenance(run: Run, folder: Path) -> dict[str, str]:
    """Return the main settings of a run, and a link to its directory from a page in `folder`."""
    settings, provenance = run.settings, run.description["provenance"]
    return {
        "method": settings["method"],
        "target": _target(run),
        "sources": ", ".join(settings["sources"]),
        "iterations": str(settings["iterations"]),
        "weights": weights_text(run.record),
        "learning rate": f"{settings['lr']:g}",
        "seed": str(settings["seed"]),
        "images (hash)": provenance["images"][:12],
        "run": Markup('<a href="{}">{}</a>').format(quote(os.path.relpath(run.path, folder)), run.path.name),
    }
