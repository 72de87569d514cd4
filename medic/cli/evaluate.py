"""`medic evaluate`."""

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from medic.cli.options import add_device_option, add_import_option
from medic.errors import MedicError
from medic.metrics import DEFAULT, METRICS, find_metric
from medic.report.table import print_rows


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic evaluate`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run")
    parser.add_argument(
        "--score", metavar="NAME", help="cls, bcls, max-logit, energy, knn, … (default: all available ones)"
    )
    parser.add_argument(
        "--threshold", metavar="RULE", help="source, fixed, hard, two-components or oracle-10 (default: the run's)"
    )
    parser.add_argument("--rerun", action="store_true", help="run the model on the images again")
    add_device_option(parser, "for --rerun: ")
    add_import_option(parser, "Python file or module to execute first: a run's own, for --rerun, or one with a score")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """Print every metric of a run, with a column per score."""
    from medic.runs.directory import Run
    from medic.runs.imports import execute
    from medic.runs.review import infer_again, review

    execute(arguments.imports)
    run = Run(arguments.run)
    if arguments.device is not None and not arguments.rerun:
        raise MedicError("--device is only used with --rerun: add --rerun, or leave out --device")
    outputs = infer_again(run, arguments.device or "auto") if arguments.rerun else None
    found = review(run, arguments.score, arguments.threshold or run.settings.get("threshold") or "source", outputs)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    targets = {score: values["target"] for score, values in found.items()}
    known = dict.fromkeys(key for values in targets.values() for key in values)
    # Other scores have their own column, and the threshold is not a percentage.
    apart = ("score", "threshold", "threshold_rule", "oscr_c", "oscr_b")
    keys = [key for key in known if "/" not in key and key not in apart]
    rows = [
        {
            "in percent": find_metric(key).title,
            **{score: _text(key, values.get(key)) for score, values in targets.items()},
        }
        for key in keys
    ]
    print_rows(rows, numeric=list(found))
    if rules := {values["threshold_rule"] for values in targets.values() if "threshold_rule" in values}:
        thresholds = [
            f"{score} {values['threshold']:.4f}" for score, values in targets.items() if "threshold" in values
        ]
        print(f"\nthreshold by rule {', '.join(sorted(rules))}: {', '.join(thresholds)}")
    by_domain = (*DEFAULT, METRICS["auroc"])
    for score, values in found.items():
        parts = {**values["targets"], **({"(sources)": values["source"]} if "source" in values else {})}
        if len(parts) > 1:
            print(f"\nby domain, {score}:")
            shown = [
                {"domain": domain, **{metric.title: _text(metric.key, part.get(metric.key)) for metric in by_domain}}
                for domain, part in parts.items()
            ]
            print_rows(shown, numeric=list(shown[0])[1:])
    return 0


def _text(key: str, value: Any) -> str:
    """Return the value of a metric for people, most often in percent."""
    if value is None:
        return "–"
    scale = find_metric(key).scale
    return f"{scale * value:.{2 if scale > 1 else 4}f}"
