"""The report of a run: what came out, where the threshold lies, what was confused, and how to repeat it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from medic import openset
from medic.data import benchmark
from medic.metrics import METRICS, Metric
from medic.openset.thresholds import RULES
from medic.report.pages import packed, write_page
from medic.report.thumbnails import thumbnails
from medic.runs.directory import Run

SHOWN = ("acc", "hscore", "acc_k", "acc_u", "oscr", "auroc")
"""The numbers at the top of a report."""
EXAMPLES = 36
"""Images of each kind in the gallery."""
POINTS = 300
"""The most points of a curve."""
COLOURS = ("var(--medic)", "var(--known)", "var(--third)", "var(--unknown)", "var(--wrong)", "var(--erm)")


class Part(NamedTuple):
    """Images that are looked at together: a target domain, or the held-out images of the sources."""

    name: str
    rows: NDArray[np.bool_]
    source: bool


def write_report(run: Run, path: Path, root: Path | None = None) -> Path:
    """Write the report of a finished run; images are shown from below `root`."""
    settings, names = run.settings, _class_names(run)
    known = list(settings["known"])
    classes = [*known, *sorted(set(names[run.predictions["label"] < 0].tolist()), key=str.casefold)]
    parts = _parts(run)
    open_set = bool((run.predictions["label"] < 0).any())
    labels = np.array([classes.index(name) for name in names.tolist()], dtype=int)
    predicted = run.predictions["logits"].argmax(1)
    gallery = _gallery(run, parts, labels, predicted, len(known)) if open_set else []
    bench = benchmark(settings["dataset"])
    if gallery and (root is not None or bench.built_in):
        images = thumbnails(bench, root, settings["seed"], [item["path"] for item in gallery])
        gallery = [{**item, "image": image} for item, image in zip(gallery, images, strict=True)]
    threshold = float(run.metrics.get("threshold", 0.0))
    data = {
        "classes": classes,
        "known": len(known),
        "open": open_set,
        "threshold": threshold,
        "probability": bool(run.score.probability),
        "parts": [
            {"name": part.name, "source": part.source, **_groups(run, part, labels, predicted)} for part in parts
        ],
        "gallery": gallery,
        "curves": [*_learning(run), *(_oscr(run, part) for part in parts if open_set and not part.source)],
    }
    rule = str(settings["threshold"])
    return write_page(
        path,
        "run",
        f"{settings['method']} on {', '.join(settings['target'])}",
        data,
        sentences=_sentences(run, open_set),
        numbers=_numbers(run.metrics),
        result=_result(run),
        open=open_set,
        threshold=_threshold_text(run, threshold),
        rule=rule,
        meaning_of_rule=RULES[rule].description,
        oracle=RULES[rule].oracle,
        images=any(item.get("image") for item in gallery),
        directory=run.path,
        provenance=_provenance(run),
        command=_command(run),
    )


def _class_names(run: Run) -> NDArray[np.str_]:
    """Return the true class of every image; runs of earlier versions have the folder of an unknown one."""
    if "class" in run.predictions:
        return run.predictions["class"]
    known, label = run.settings["known"], run.predictions["label"]
    folders = [Path(path).parent.name or "unknown" for path in run.predictions["path"].tolist()]
    return np.array([known[k] if k >= 0 else folder for k, folder in zip(label.tolist(), folders, strict=True)])


def _parts(run: Run) -> list[Part]:
    """Return the target domains, and the held-out images of the sources with those of unknown classes there."""
    split, domain = run.predictions["split"], run.predictions["domain"]
    targets = [Part(name, (split == "target") & (domain == name), False) for name in run.settings["target"]]
    return [*targets, Part("sources", np.isin(split, ["validation", "source-unknown"]), True)]


def _groups(run: Run, part: Part, labels: NDArray[Any], predicted: NDArray[Any]) -> dict[str, Any]:
    """Return the confidences of a part, sorted within groups of true and predicted class: all that a threshold needs.

    A group is (true class, predicted class, start, count).
    """
    label, prediction = labels[part.rows], predicted[part.rows]
    confidence = run.predictions["confidence"][part.rows].astype(np.float64)
    order = np.lexsort((confidence, prediction, label))
    pairs, starts, counts = np.unique(
        np.stack([label[order], prediction[order]], axis=1), axis=0, return_index=True, return_counts=True
    )
    groups = np.column_stack([pairs, starts, counts]).tolist() if len(order) else []
    return {"groups": groups, "confidence": packed(confidence[order])}


def _gallery(
    run: Run, parts: Sequence[Part], labels: NDArray[Any], predicted: NDArray[Any], known: int
) -> list[dict[str, Any]]:
    """Return images of the targets that a reader may want to see, the most confident first.

    Those are mistakes, unknown images, and right ones with a low score, of which every threshold rejects some.
    """
    confidence = run.predictions["confidence"].astype(np.float64)
    found: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        if part.source:
            continue
        is_known, right = labels < known, labels == predicted
        low = np.flatnonzero(part.rows & right)
        low = low[np.argsort(confidence[low])][: max(1, len(low) // 3)]
        spread = low[np.unique(np.linspace(0, len(low) - 1, min(EXAMPLES, len(low))).astype(int))] if len(low) else low
        for rows in (part.rows & is_known & ~right, part.rows & ~is_known):
            several = np.flatnonzero(rows)
            spread = np.concatenate([spread, several[np.argsort(-confidence[several])][:EXAMPLES]])
        found += [
            {
                "part": number,
                "label": int(labels[row]),
                "prediction": int(predicted[row]),
                "confidence": float(confidence[row]),
                "path": str(run.predictions["path"][row]),
            }
            for row in spread[np.argsort(-confidence[spread])].tolist()
        ]
    return found


def _learning(run: Run) -> list[dict[str, Any]]:
    """Return the curves of the evaluations: loss, and accuracies."""
    records = [record for record in run.records if not record.get("averaged")]
    if len(records) < 2:
        return []
    iterations = [record["iteration"] for record in records]

    def series(name: str, colour: str, values: Sequence[float], dash: str | None = None) -> dict[str, Any]:
        return {"name": name, "colour": colour, "x": iterations, "y": list(values), "dash": dash}

    losses = [
        series("training", "var(--erm)", [record["loss"] for record in records]),
        series("validation", "var(--third)", [record["validation"]["loss"] for record in records]),
    ]
    shares = [series("Acc, validation", "var(--third)", [100 * record["validation"]["acc"] for record in records])]
    for key, title, colour, dash in (
        ("acc", "Acc, target", "var(--known)", None),
        ("oscr", "OSCR, target", "var(--medic)", None),
        ("hscore", "H-score, target", "var(--unknown)", "5 3"),
    ):
        if all(key in record["target"] for record in records):
            shares.append(series(title, colour, [100 * record["target"][key] for record in records], dash))
    return [
        {"series": losses, "x": "iteration", "y": "loss", "label": "loss against iterations"},
        {
            "series": shares,
            "x": "iteration",
            "y": "percent",
            "range": [0, 100],
            "label": "accuracies against iterations",
        },
    ]


def _oscr(run: Run, part: Part) -> dict[str, Any]:
    """Return the OSCR curve of every score on a target: a line each, its area in the name."""
    split = run.predictions["split"] == "target"
    output, label, _ = run.outputs("target").where(_mask(part.rows[split]))
    prediction = openset.predicted_class(output)
    scores = {entry.name: entry for entry in openset.SCORES.values() if entry.fitter is None and entry.reads(output)}
    series = []
    for (name, entry), colour in zip({run.score.name: run.score, **scores}.items(), COLOURS, strict=False):
        confidence = entry(output)
        x, y = (np.asarray(values) for values in openset.oscr_curve(confidence, prediction, label))
        kept = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int))
        area = 100 * openset.oscr(confidence, prediction, label)
        series.append(
            {"name": f"{name} {area:.1f}", "colour": colour, "x": x[kept].tolist(), "y": y[kept].tolist(),
             "dash": None if name == run.score.name else "5 3"}
        )  # fmt: skip
    return {
        "series": series,
        "x": "unknown images accepted",
        "y": f"known images named correctly, {part.name}; the areas are OSCR",
        "range": [0, 1],
        "label": f"OSCR curves on {part.name}: {', '.join(one['name'] for one in series)}",
    }


def _mask(rows: NDArray[np.bool_]) -> Any:
    import torch

    return torch.from_numpy(rows)


def _sentences(run: Run, open_set: bool) -> list[str]:
    """Return what was asked and what came out."""
    settings, metrics, split = run.settings, run.metrics, run.predictions["split"]
    target = split == "target"
    unknown = int((run.predictions["label"][target] < 0).sum())
    sources, targets = _listed(settings["sources"]), _listed(settings["target"])
    asked = (
        f"{settings['method']} learned {len(settings['known'])} classes from {sources} in {settings['iterations']:,} "
        f"iterations, and was tested on {int(target.sum()):,} images of {targets}, a domain it has never seen"
    )
    share = {key: f"{100 * value:.1f}" for key, value in metrics.items() if isinstance(value, float)}
    if not open_set or "hscore" not in metrics:
        return [f"{asked}.", f"It names {share['acc']} % of them correctly. No image is of an unknown class."]
    return [
        f"{asked}; {unknown:,} of them are of classes it has never seen.",
        f"It names {share['acc']} % of the known images correctly if it rejects none. At its threshold it names "
        f"{share['acc_k']} % correctly and rejects {share['acc_u']} % of the unknown ones: an H-score of "
        f"{share['hscore']}.",
        f"Over all thresholds, its score ranks images with an OSCR of {share['oscr']}; the most it could reach with "
        f"these names is {share['acc']}.",
    ]


def _listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _numbers(metrics: dict[str, Any]) -> list[tuple[Metric, str]]:
    return [(METRICS[key], f"{100 * metrics[key]:.1f}") for key in SHOWN if key in metrics]


def _threshold_text(run: Run, threshold: float) -> str:
    if not run.score.probability:
        return f"{threshold:.4g}"
    return f"{1 / (1 + np.exp(-threshold)):.4g} as a probability"


def _result(run: Run) -> str:
    """Return which weights the result is of."""
    averaging = run.settings.get("averaging")
    return f"averaged weights ({averaging})" if run.record.get("averaged") else f"iteration {run.record['iteration']}"


def _provenance(run: Run) -> list[tuple[str, str]]:
    settings, provenance = run.settings, run.description["provenance"]
    facts = {
        "run": run.path.name,
        "result": _result(run),
        "method": settings["method"],
        "dataset": settings["dataset"],
        "sources": ", ".join(settings["sources"]),
        "target": ", ".join(settings["target"]),
        "known classes": ", ".join(settings["known"]),
        "unknown classes": ", ".join(settings["unknown"]) or "none",
        "backbone": settings["backbone"],
        "iterations": f"{settings['iterations']:,}",
        "learning rate": f"{settings['lr']:g}",
        "score": settings["score"],
        "seed": str(settings["seed"]),
        "images (hash)": provenance["images"][:12],
    }
    return [(name, str(value)) for name, value in facts.items()]


def _command(run: Run) -> str:
    return f"medic train --config {shlex.quote(str(run.path / 'config.yaml'))} --output again"
