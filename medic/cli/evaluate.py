"""`medic evaluate`."""

import json
from typing import Any

from jsonargparse import ArgumentParser, Namespace

BY_DOMAIN = ("acc", "hscore", "oscr", "auroc")
"""What is shown of each target, and of the unknown classes in the source domains."""


def add_options(parser: ArgumentParser) -> None:
    """Which run, and how to measure it."""
    parser.add_argument("run", type=str, help="directory of a finished run")
    parser.add_argument(
        "--score", type=str | None, default=None, help="cls, bcls, max-logit, energy, knn, … (all it can have)"
    )
    parser.add_argument(
        "--threshold", type=str | None, default=None, help="rule: source, fixed, hard or oracle-10 (the run's)"
    )
    parser.add_argument("--rerun", action="store_true", help="run the model over the images again")
    parser.add_argument("--device", type=str | None, default=None, help="for --rerun: auto, cpu or cuda (auto)")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """Print every metric of a run, a column per score."""
    from medic.errors import MedicError
    from medic.report.table import print_rows
    from medic.runs.directory import Run
    from medic.runs.review import infer_again, review
    from medic.tables.table import METRICS

    run = Run(arguments.run)
    if arguments.device is not None and not arguments.rerun:
        raise MedicError("--device is where --rerun runs the model: give both, or neither")
    outputs = infer_again(run, arguments.device or "auto") if arguments.rerun else None
    found = review(run, arguments.score, arguments.threshold or run.config.threshold or "source", outputs)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    targets = {score: values["target"] for score, values in found.items()}
    titles = {metric.key: title for title, metric in METRICS.items()}
    metrics = dict.fromkeys(name for values in targets.values() for name in values if not _is_elsewhere(name))
    rows = [
        {"in percent": titles.get(m, m), **{score: _shown(m, values.get(m)) for score, values in targets.items()}}
        for m in metrics
    ]
    print_rows(rows, numeric=list(found))
    for score, values in found.items():
        parts = {**values["targets"], **({"(sources)": values["source"]} if "source" in values else {})}
        if len(parts) > 1:
            print(f"\nby domain, {score}:")
            shown = [
                {"domain": d, **{titles.get(m, m): _shown(m, part.get(m)) for m in BY_DOMAIN}}
                for d, part in parts.items()
            ]
            print_rows(shown, numeric=list(shown[0])[1:])
    return 0


def _is_elsewhere(metric: str) -> bool:
    """Whether a metric is of another score or rule than its column's."""
    return "/" in metric or metric in ("oscr_c", "oscr_b")


def _shown(metric: str, value: Any) -> str:
    """A value for people, as tables have it: in percent, but for the threshold."""
    from medic.tables.table import metric_scale

    if isinstance(value, float):
        scale = metric_scale(metric)
        return f"{scale * value:.{2 if scale > 1 else 4}f}"
    return "–" if value is None else str(value)
