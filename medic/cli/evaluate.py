"""The `medic evaluate` command."""

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medic.cli.catalogue import check_names
from medic.cli.options import add_device_option, add_import_option, input_file
from medic.errors import MedicError
from medic.reports.evaluation import print_classes, print_domains, print_groups, print_metrics, print_spectrum
from medic.runs.layout import check_run
from medic.runs.opening import check_learned

if TYPE_CHECKING:
    from medic.evaluation.decisions import Decisions
    from medic.evaluation.evaluator import Outputs
    from medic.runs.run import Run
    from medic.runs.spectrum import UnknownImages


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic evaluate`."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="finished run directory")
    parser.add_argument(
        "--score",
        metavar="NAME",
        help="confidence score: cls, bcls, max-logit, energy, knn, … (default: all available)",
    )
    parser.add_argument(
        "--threshold",
        metavar="RULE|X",
        help="threshold rule (source, fixed, hard, two-components, oracle-10) or value (default: the run's rule)",
    )
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="run the model on the images again, instead of reading its saved predictions",
    )
    add_device_option(parser, "device for --rerun and --unknown-folder: ")
    add_import_option(parser, "Python file or module to execute first, if --rerun or --score requires one")
    parser.add_argument(
        "--unknown-folder",
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="folders with additional unknown images",
    )
    parser.add_argument(
        "--per-class", action="store_true", help="print results per class, and the most frequent confusions"
    )
    parser.add_argument("--by", metavar="COLUMN", help="print results per group, worst first: domain, class, …")
    parser.add_argument(
        "--groups",
        type=input_file,
        metavar="FILE",
        help="file with columns path and COLUMN, for --by: .csv, .parquet, …",
    )
    files = parser.add_argument_group("predictions of another program, instead of a run")
    files.add_argument(
        "--predictions",
        type=input_file,
        metavar="FILE",
        help="file with one row per image: .csv, .jsonl, .parquet or .npz",
    )
    files.add_argument(
        "--labels",
        type=input_file,
        metavar="FILE",
        help="file with columns path and class, if the predictions contain no true classes",
    )
    files.add_argument(
        "--known", nargs="*", action="extend", default=[], metavar="CLASS", help="known classes; all others are unknown"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(arguments: Namespace) -> int:
    """Print the metrics of a run or of a predictions file, or break them down by class or group."""
    if (arguments.run is None) == (arguments.predictions is None):
        raise MedicError("expected either a RUN directory or --predictions FILE")
    if arguments.groups is not None and arguments.by is None:
        raise MedicError("--groups requires --by: add --by COLUMN, or omit --groups")
    if arguments.device is not None and not arguments.rerun and not arguments.unknown_folder:
        raise MedicError("--device requires --rerun or --unknown-folder: omit --device")
    if arguments.predictions is not None:
        return _evaluate_file(arguments)
    for name in ("labels", "known"):
        if getattr(arguments, name):
            raise MedicError(f"--{name} requires --predictions: omit it for a run")
    user_rule = None if arguments.threshold is None else _rule(arguments.threshold)
    check_names({"score": arguments.score, "threshold": user_rule, "imports": arguments.imports})
    check_run(Path(arguments.run))
    from medic.config.imports import execute
    from medic.runs.run import Run

    execute(arguments.imports)
    run = Run(arguments.run)
    check_learned(arguments.run, run.learning_failure)
    rule = user_rule if user_rule is not None else run.config.evaluation.threshold
    if not arguments.per_class and not arguments.by:
        return _evaluate_run(run, arguments, rule)
    if arguments.rerun or arguments.unknown_folder:
        option = "--rerun" if arguments.rerun else "--unknown-folder"
        raise MedicError(f"--per-class and --by use the saved predictions of the run: omit {option}")
    return _break_down(run, arguments, rule)


def _rule(text: str) -> str | float:
    """Parse a threshold: a number, or the name of a rule."""
    try:
        return float(text)
    except ValueError:
        return text


def _format_threshold(score: str, threshold: float) -> str:
    """Format a threshold on the scale that `medic predict` uses."""
    from medic.openset import Threshold, get_score

    return f"{Threshold.of(threshold, '', get_score(score).probability).display_value:.6g}"


def _break_down(run: "Run", arguments: Namespace, rule: str | float) -> int:
    """Print the saved decisions of a run by class or group."""
    from medic.runs.reevaluate import make_decisions

    # By domain, show the sources next to the target.
    grouped, score = make_decisions(run, arguments.score, rule, sources=arguments.by in ("domain", "split"))
    decisions = grouped.where(grouped.columns["split"] == "target")
    tested_on = "held-out images" if not run.config.data.target else ", ".join(run.config.data.target)
    chosen = f"rule {rule}" if isinstance(rule, str) else "given"
    at = (
        ""
        if decisions.threshold is None
        else f" at threshold {_format_threshold(score, decisions.threshold)} ({chosen})"
    )
    about = f"{run.config.run.method} on {tested_on}: {len(decisions.label):,} images, score {score}{at}"
    if at and (note := _seen_by(str(rule))):
        about += f"\n{note}"
    _print_decisions(decisions, grouped, arguments, about)
    return 0


def _evaluate_run(run: "Run", arguments: Namespace, rule: str | float) -> int:
    from medic.runs.reevaluate import recompute_outputs, review

    if arguments.rerun:
        outputs = recompute_outputs(run, arguments.device or "auto")
    else:
        outputs = {split: run.outputs(split) for split in run.splits}
    by_score = review(run, arguments.score, rule, outputs)
    unknown = _measure_spectrum(run, arguments, rule, outputs, by_score)
    if arguments.json:
        spectrum = [row._asdict() for row in unknown]
        print(json.dumps({**by_score, **({"spectrum": spectrum} if arguments.unknown_folder else {})}, indent=2))
        return 0
    targets = {score: values["target"] for score, values in by_score.items()}
    print_metrics(targets)
    if rules := {values["threshold_rule"] for values in targets.values() if "threshold_rule" in values}:
        chosen = {score: values["threshold"] for score, values in targets.items() if "threshold" in values}
        thresholds = [f"{score} {_format_threshold(score, value)}" for score, value in chosen.items()]
        how = f"by rule {', '.join(sorted(rules))}" if isinstance(rule, str) else "as given"
        print(f"\nthreshold {how}: {', '.join(thresholds)}")
        for note in filter(None, map(_seen_by, sorted(rules))):
            print(note)
    own = run.config.evaluation.score
    for score in [own] if own in by_score else by_score:
        values = by_score[score]
        parts = {**values["targets"], **({"(sources)": values["source"]} if "source" in values else {})}
        if len(parts) > 1:
            print(f"\nby domain, {score}:")
            print_domains(parts)
    if unknown:
        print(f"\nunknown images by origin, {arguments.score or own}: AUROC against known images, in percent")
        print_spectrum(unknown)
    return 0


def _measure_spectrum(
    run: "Run", arguments: Namespace, rule: str | float, outputs: "Outputs", measured: Mapping[str, Any]
) -> "list[UnknownImages]":
    """Return the results for unknown images, by origin.

    Without `--unknown-folder`, the result is empty if the run has no target or its score is unavailable.
    """
    from medic.runs.spectrum import measure_spectrum

    folders, score = arguments.unknown_folder, arguments.score or run.config.evaluation.score
    if not folders and (arguments.json or not run.config.data.target or score not in measured):
        return []
    return measure_spectrum(run, score, rule, outputs, folders, arguments.device or "auto")


def _seen_by(name: str) -> str:
    """Return a note if a threshold rule uses target data, otherwise an empty string."""
    from medic.openset import RULES

    rule = RULES.get(name)
    if rule is None or not (rule.oracle or rule.transductive):
        return ""
    if rule.oracle:
        return f"{name} uses target labels to pick a threshold: H-score, acc_k and acc_u are not valid results"
    return f"{name} uses unlabelled target images (transductive), which affects H-score, acc_k and acc_u"


def _evaluate_file(arguments: Namespace) -> int:
    """Print the metrics of a predictions file, or break them down by class or group."""
    from medic.evaluation.prediction_files import read_decisions

    for name in ("score", "rerun", "unknown_folder"):
        if getattr(arguments, name):
            raise MedicError(f"--{name.replace('_', '-')} requires a run: omit it with --predictions")
    known = [name for names in arguments.known for name in names.split(",") if name]
    decisions = read_decisions(arguments.predictions, arguments.labels, known, _number(arguments.threshold))
    is_known = decisions.is_known
    about = (
        f"{arguments.predictions}: {int(is_known.sum()):,} images of {decisions.known} known classes, "
        f"{int((~is_known).sum()):,} unknown"
        + (f" ({', '.join(decisions.classes[decisions.known :][:5])})" if (~is_known).any() else "")
        + (f"; threshold {decisions.threshold:g}" if decisions.threshold is not None else "")
    )
    if arguments.per_class or arguments.by:
        _print_decisions(decisions, decisions, arguments, about)
        return 0
    metrics = decisions.metrics()
    several = "domain" in decisions.columns and len(set(decisions.columns["domain"].tolist())) > 1
    domains = {result.group: result.metrics for result in decisions.by("domain")} if several else {}
    if arguments.json:
        print(json.dumps({**metrics, **({"domains": domains} if domains else {})}, indent=2))
        return 0
    print(about)
    print_metrics({"value": metrics})
    if domains:
        print("\nby domain:")
        print_domains(domains)
    return 0


def _number(text: str | None) -> float | None:
    """Parse the threshold for a predictions file."""
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and math.isnan(value):
        raise MedicError(f"with --predictions, --threshold must be a number on the scale of the confidence, got {text}")
    return value


def _print_decisions(decisions: "Decisions", grouped: "Decisions", arguments: Namespace, about: str) -> None:
    """Print the requested results per class and per group."""
    if arguments.groups is not None:
        from medic.evaluation.prediction_files import with_column

        grouped = with_column(grouped, arguments.groups, arguments.by)
    classes = decisions.by_class() if arguments.per_class else []
    confusions = decisions.confusions() if arguments.per_class else []
    groups = grouped.by(arguments.by) if arguments.by else []
    if arguments.json:
        content: dict[str, Any] = {}
        if arguments.per_class:
            content["classes"] = [result._asdict() for result in classes]
            content["confusions"] = [{**confusion._asdict(), "share": confusion.share} for confusion in confusions]
        if arguments.by:
            content[arguments.by] = [
                {**group._asdict(), "correct": None if math.isnan(group.correct) else group.correct} for group in groups
            ]
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    print(about)
    if arguments.per_class:
        print_classes(classes, confusions, decisions.threshold is not None)
    if arguments.by:
        print_groups(groups, arguments.by, decisions.threshold is not None)
