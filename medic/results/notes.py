"""Notes below a table, about conditions and reasons why runs may not be comparable."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from medic.errors import counted
from medic.evaluation.learning import learning_failure
from medic.metrics import Metric
from medic.results.compare import drawn_split
from medic.results.wording import runs_are, short
from medic.runs.run import Run

if TYPE_CHECKING:
    from medic.results.cells import Pick
    from medic.results.table import Row

PROTOCOL = {
    "backbone": "backbones",
    "iterations": "numbers of iterations",
    "image_size": "image sizes",
    "label_noise": "label-noise levels",
}
"""Settings that should be the same for all compared methods, with their plural names."""


def selection(rule: str) -> Iterator[str]:
    """Yield the selection rule unless it is the default."""
    if rule != "validation":
        looks = " (uses target labels, so this is not a valid result)" if rule == "oracle" else ""
        yield f"model selection: {rule}{looks}"


def averaging(rows: Iterable["Row"]) -> Iterator[str]:
    """Yield a note about results that use averaged weights, if any."""
    picks = [pick for row in rows for pick in row.picks]
    names = [
        "soup" if pick.run.config.soup
        else pick.run.config.optim.averaging if pick.evaluation.get("averaged")
        else "none"
        for pick in picks
    ]  # fmt: skip
    for name in sorted(set(names) - {"none"}):
        few = "" if names.count(name) == len(names) else f" in {names.count(name)} of {counted(len(names), 'run')}"
        yield f"results use averaged weights ({name}){few}"


def learning(rows: Iterable["Row"]) -> Iterator[str]:
    """Yield the cells and runs whose selected model learned nothing, if any."""
    places = [
        f"{row.label}, {column} ({pick.run.path.name})"
        for row in rows
        for column, cell in row.cells.items()
        for pick in cell.picks
        if not (pick.run.learned if pick.record == pick.run.selected else _learned(pick))
    ]
    if places:
        some = f"{'; '.join(places[:3])}{'; …' if len(places) > 3 else ''}"
        yield f"{counted(len(places), 'run')} learned nothing, so these numbers are meaningless: {some}"


def _learned(pick: "Pick") -> bool:
    return not learning_failure(pick.run.records, pick.record)


def seeds(rows: Iterable["Row"]) -> Iterator[str]:
    """Yield the number of seeds if it is more than one, and the cells with fewer seeds."""
    counts = {
        (row.label, column): len({pick.run.trial for pick in cell.picks})
        for row in rows
        for column, cell in row.cells.items()
        if cell.picks
    }
    most = max(counts.values(), default=0)
    if most > 1:
        fewer = [f"{label}, {column} ({count})" for (label, column), count in counts.items() if count < most]
        some = f"; fewer seeds in {'; '.join(fewer[:3])}{'; …' if len(fewer) > 3 else ''}" if fewer else ""
        runs = [pick.run for row in rows for pick in row.picks]
        splits = " with different unknown classes" if any(map(drawn_split, runs)) else ""
        yield f"mean ± standard error over {most} seeds{splits} (population deviation / √seeds, as in DomainBed){some}"


def unmeasured(rows: Iterable["Row"], metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the metrics that some runs in a cell lack, so that the mean covers fewer runs."""
    for metric in metrics:
        lacking = [
            pick
            for row in rows
            for cell in row.cells.values()
            for pick in cell.picks
            if cell.values(row.reads(metric)) and pick.value(row.reads(metric)) is None
        ]
        if lacking:
            few = counted(len(lacking), "run")
            yield f"{metric.title} does not include {few} without this metric (for example {lacking[0].run.path})"


def scores(rows: Iterable["Row"], metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield a line with the score used by each row, if any metric in the table depends on a score."""
    by_score: dict[str, list[str]] = {}
    ranked: dict[str, None] = {}
    for row in rows:
        targets = [pick.evaluation["target"] for pick in row.picks]
        for metric, target in product(metrics, targets):
            key = row.reads(metric).key  # a key that contains a score always uses that score
            if _by_own_score(key) and key in target and "score" in target:
                ranked[metric.title] = None
                labels = by_score.setdefault(str(target["score"]), [])
                labels += [row.label] if row.label not in labels else []
    what = " and ".join(filter(None, [", ".join(list(ranked)[:-1]), *list(ranked)[-1:]]))
    if len(by_score) == 1:
        yield f"{what} computed with score {next(iter(by_score))}"
    elif by_score:
        formatted = (
            f"{score} ({'; '.join(labels[:3])}{'; …' if len(labels) > 3 else ''})" for score, labels in by_score.items()
        )
        yield f"{what} computed with each row's own score: {', '.join(formatted)}"


def _by_own_score(key: str) -> bool:
    """Return whether a metric depends on the run's own score."""
    return key.startswith(("hscore", "ccr@")) or key in (
        "oscr",
        "auroc",
        "aupr_in",
        "aupr_out",
        "fpr95",
        "acc_k",
        "acc_u",
    )


def target_labels(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the metrics whose threshold is chosen with target labels, if any."""
    for metric in metrics:
        if metric.key == "hscore/oracle-10":
            best = f"{metric.title} uses the best of ten thresholds, chosen with target labels"
            yield f"{best}: not a valid result"


def mixed_datasets(runs: Iterable[tuple[str, Run]]) -> Iterator[str]:
    """Yield the columns that mix results from several datasets that share a domain name."""
    by_column: dict[str, set[str]] = {}
    for column, run in runs:
        by_column.setdefault(column, set()).add(run.config.data.dataset)
    for column, datasets in by_column.items():
        if len(datasets) > 1:
            names = ", ".join(sorted(datasets))
            yield f"column {column!r} mixes {len(datasets)} datasets ({names}): pass their folders separately"


_SEEING = {
    "oracle-10": "target labels, so they are not valid results",
    "two-components": "unlabelled target images (transductive)",
}
"""Threshold rules that use the target, and what they use."""


def differences(runs: Iterable[Run]) -> Iterator[str]:
    """Yield differences between runs that affect the numbers, apart from the rows' own settings."""
    used = list(dict.fromkeys(runs))
    # An installed package has a version but no commit.
    yield from _environments(used, "image lists", ("images",), _image_source)
    yield from _environments(used, "commits", ("commit", "medic"), lambda run: None)
    yield from _environments(used, "weight files", ("weights",), lambda run: run.config.model.backbone)
    yield from _environments(used, "precisions", ("precision",), lambda run: None)
    for rule, sees in _SEEING.items():
        seeing = [run.path.name for run in used if run.config.evaluation.threshold == rule]
        if seeing:
            subject = f"{runs_are(len(seeing))} evaluated with threshold {rule}, such as {seeing[0]}"
            yield f"{subject}: H-score, acc_k and acc_u use {sees}"
    for name, plural in PROTOCOL.items():
        yield from _protocols(used, name, plural)


def _environments(runs: Sequence[Run], plural: str, keys: Sequence[str], per: Callable[[Run], Any]) -> Iterator[str]:
    """Yield the values of an `environment.json` entry if runs that should share it do not.

    Runs should share the entry if `per` returns the same value for them. The entry is the first of `keys` that is not
    None.
    """
    values = []
    for run in runs:
        entries = (run.environment[key] for key in keys)
        values.append((run, next((str(entry) for entry in entries if entry is not None), None)))
    if len({value for _, value in values}) < 2:
        return
    first_runs: dict[Any, Run] = {}
    for run, value in values:
        first_runs.setdefault((per(run), value), run)
    if len(first_runs) > len({shared for shared, _ in first_runs}):
        some = ", ".join(f"{short(value)} ({run.path.name})" for (_, value), run in list(first_runs.items())[:3])
        yield f"these runs have {len(first_runs)} different {plural}: {some}"


def _image_source(run: Run) -> Any:
    """Return what determines a run's image list: the dataset and, if images are drawn per seed, the seed."""
    from medic.data import BENCHMARKS  # imports torch, which most tables do not need

    bench = BENCHMARKS.get(run.config.data.dataset)
    return run.config.data.dataset, run.config.run.seed if bench is not None and bench.seeded else None


def _protocols(runs: Iterable[Run], name: str, plural: str) -> Iterator[str]:
    """Yield the values of a setting that differs between methods on the same dataset."""
    datasets: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        methods = datasets.setdefault(run.config.data.dataset, {})
        methods.setdefault(run.method, set()).add(str(run.identity.get(name) or "none"))
    for methods in datasets.values():
        if any(values != next(iter(methods.values())) for values in methods.values()):  # otherwise, labels differ
            by_value = {value: method for method, values in methods.items() for value in values}
            some = ", ".join(f"{value} ({method})" for value, method in list(by_value.items())[:3])
            yield f"these methods use different {plural}: {some}"
