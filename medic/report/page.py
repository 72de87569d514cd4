"""One page about some runs: what came out, how it looks, and how to get it again."""

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
from medic.report.table import columns, run_rows
from medic.runs.directory import Run
from medic.runs.resolve import resolve

COLOURS = ("#7a7a85", "#c2410c", "#0f766e", "#6d28d9")


def write_page(path: Path, runs: Sequence[Run], title: str, note: str = "") -> Path:
    """Write a page that stands alone: no script, nothing loaded from elsewhere. A `note` stands below its numbers."""
    data = resolve(runs[0].config).data
    dataset = data.load(lambda line: None)
    targets = dict.fromkeys(run.config.target_names for run in runs)
    sections = [_section(dataset, [run for run in runs if run.config.target_names == target]) for target in targets]
    environment = Environment(loader=PackageLoader("medic.report", "."), autoescape=True, undefined=StrictUndefined)
    html = environment.get_template("page.html").render(
        title=title,
        note=note,
        known=data.classes.known,
        unknown=len(data.classes.unknown),
        rows=run_rows(runs),
        numeric=list(columns(runs)),
        domains=_domain_strips(dataset),
        sections=sections,
        runs=[_provenance(run, path.parent) for run in runs],
        threshold=runs[0].config.threshold,
    )
    write_text(path, html)
    return path


def _section(dataset: Dataset, runs: Sequence[Run]) -> dict[str, Any]:
    """Curves and examples for one target."""
    target = runs[0].config.target_names
    unknown = all((run.outputs("target").label < 0).any() for run in runs)
    return {
        "target": target,
        "curves": _curves(runs, target) if unknown else None,
        "examples": [{"method": run.config.method, "groups": _examples(dataset, run)} for run in runs],
    }


def _curves(runs: Sequence[Run], target: str) -> str:
    """Correct classification against false acceptance, as SVG: a line per run and score, whose areas it is read as."""
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
            areas.append(f"{run.config.method}, {name}: {area:.1f}")
            axes.plot(*curve, style, color=colour, label=areas[-1])
    axes.set_xlabel("share of unknown images accepted")
    axes.set_ylabel("share of known images named correctly")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="OSCR")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    read = Markup('<svg role="img" aria-label="{}"').format(f"OSCR curves on {target}; areas {'; '.join(areas)}")
    return read + Markup(svg[svg.index("<svg") + len("<svg") :])


def _examples(dataset: Dataset, run: Run) -> list[dict[str, Any]]:
    """Some target images of every outcome, spread over what there is."""
    rows = run.predictions["split"] == "target"
    label, prediction = run.predictions["label"][rows], run.predictions["prediction"][rows]
    position = {path: index for index, path in enumerate(dataset.paths)}
    index = np.array([position[path] for path in run.predictions["path"][rows]])
    known, rejected, right = label >= 0, prediction < 0, label == prediction
    outcomes = {
        "known, named correctly": known & right,
        "known, named wrongly": known & ~right & ~rejected,
        "known, called unknown": known & rejected,
        "unknown, called unknown": ~known & rejected,
        "unknown, taken for known": ~known & ~rejected,
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


def _domain_strips(dataset: Dataset) -> list[dict[str, str]]:
    return [
        {"name": name, "image": _strip(dataset, np.flatnonzero((dataset.domain == domain).numpy()), count=20)}
        for domain, name in enumerate(dataset.domains)
    ]


def _strip(dataset: Dataset, indices: NDArray[Any], count: int = 12) -> str:
    """Up to `count` images side by side, evenly spread over `indices`, as the data of a PNG; empty for none."""
    if not len(indices):
        return ""
    chosen = indices[np.linspace(0, len(indices) - 1, min(count, len(indices))).astype(int)]
    tiles = dataset.images.gather(torch.from_numpy(chosen), torch.device("cpu")).permute(
        2, 0, 3, 1
    )  # (height, image, width, channel)
    height, images, width, channels = tiles.shape
    buffer = io.BytesIO()
    Image.fromarray(tiles.reshape(height, images * width, channels).numpy()).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _provenance(run: Run, folder: Path) -> dict[str, str]:
    """What a run was, and a link to it from a page in a folder."""
    config, provenance = run.config, run.description["provenance"]
    return {
        "method": config.method,
        "target": config.target_names,
        "sources": ", ".join(config.sources or []),
        "iterations": f"{provenance['iteration']} of {config.iterations}",
        "learning rate": f"{config.lr:g}",
        "seed": str(config.seed),
        "images (hash)": provenance["images"][:12],
        "run": Markup('<a href="{}">{}</a>').format(quote(os.path.relpath(run.path, folder)), run.path.name),
    }
