"""Compare the threshold that holds on the sources with one from source domains that a run was not trained on.

    medic sweep benchmarks/sweeps/pairs.yaml --root PACS --weights lite0.safetensors --output runs/pacs
    medic sweep benchmarks/sweeps/watch.yaml --root PACS --weights lite0.safetensors --output runs/pacs
    python -m benchmarks.left_out_domains runs/pacs --pack benchmarks/records/left_out_domains.jsonl.gz
    python -m benchmarks.left_out_domains benchmarks/records/left_out_domains.jsonl.gz

docs/studies.md has the options for heads on frozen features, with which the records of PACS were made.

A run with the targets T and S is not trained on S either. For the run with the target T, it scores the source domain S.
The rule *left-out domains* takes the smallest of the conformal quantiles of the source domains; *source* takes that of
the validation images. Neither sees the target. The oracle is the best threshold on the labelled target.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.packed import STUDY, by_study, describe_run, finished_runs, parse_records, percent
from medic import openset
from medic.openset.calibration import conformal
from medic.reports.terminal import print_rows
from medic.runs.run import Run

SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
"""The acceptance rates that the rules promise."""
PROMISED = 0.9


def measure(run: Run, left_out: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    """Yield a record for every rule and share; `left_out` has the confidences of known images, by source domain."""
    target, score = run.outputs("target"), run.score
    confidence, prediction = score(target.output), openset.predicted_class(target.output)
    validation = score(run.outputs("validation").output)
    thresholds = (
        {("source", share): conformal(validation, share) for share in SHARES}
        | {("left-out domains", share): min(conformal(domain, share) for domain in left_out) for share in SHARES}
        | {("oracle", 0.0): openset.best_threshold(confidence, prediction, target.label)}
    )
    for (rule, share), value in thresholds.items():
        accepted = float((confidence[target.label >= 0] >= value).double().mean())
        yield {
            **describe_run(run), "rule": rule, "share": share, "accepted": accepted,
            **openset.hscore(confidence, prediction, target.label, value)._asdict(),
        }  # fmt: skip


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of every run with one target, whose runs with two targets are all in the folder."""
    runs = finished_runs(folder)
    by_key = {(*_trial(run), frozenset(run.targets)): run for run in runs}
    for run in runs:
        if len(run.targets) > 1:
            continue
        pairs = [by_key.get((*_trial(run), frozenset([*run.targets, source]))) for source in run.config.data.sources]
        if None not in pairs:
            yield from measure(
                run, [_known(pair, source) for pair, source in zip(pairs, run.config.data.sources, strict=False)]
            )


def _trial(run: Run) -> tuple[Any, ...]:
    """Return what a run shares with the runs that are not trained on one more domain."""
    record = describe_run(run)
    return tuple(record[name] for name in (*STUDY, "method", "seed"))


def _known(run: Run | None, domain: str) -> Tensor:
    """Return the confidences of the known images of a domain that a run was not trained on."""
    assert run is not None
    outputs = run.outputs("target")
    here = outputs.where((outputs.domain == run.domains.index(domain)) & (outputs.label >= 0))
    return run.score(here.output)


def main() -> None:
    """Print the curves and the decision, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for title, own in by_study(records):
        print(f"{title}, in percent")
        print_rows(curve_rows(own), numeric=["promised", "accepted", "undercoverage", "acc_k", "acc_u", "H-score"])
        print()
        print_rows(
            target_rows(own), numeric=["source", "left-out domains", "H source", "H left-out domains", "H oracle"]
        )
        print()


def curve_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for every method, rule and share."""
    rows = []
    for key in dict.fromkeys((record["method"], record["rule"], record["share"]) for record in records):
        own = [record for record in records if (record["method"], record["rule"], record["share"]) == key]
        method, rule, share = key
        rows.append(
            {
                "method": method,
                "rule": rule,
                "promised": f"{100 * share:.0f}" if share else "–",
                "accepted": percent(record["accepted"] for record in own),
                "undercoverage": percent(max(0.0, share - record["accepted"]) for record in own) if share else "–",
                **{
                    title: percent(record[name] for record in own)
                    for name, title in (("acc_k", "acc_k"), ("acc_u", "acc_u"), ("hscore", "H-score"))
                },
            }
        )
    return rows


def target_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the realised acceptance and the H-score where 90% are promised, by method and target."""
    rows = []
    for method, target in dict.fromkeys((record["method"], record["target"]) for record in records):
        own = [record for record in records if (record["method"], record["target"]) == (method, target)]
        by_rule = {
            rule: [record for record in own if record["rule"] == rule and record["share"] in (PROMISED, 0.0)]
            for rule in ("source", "left-out domains", "oracle")
        }
        rows.append(
            {
                "method": method,
                "target": target,
                **{rule: percent(r["accepted"] for r in by_rule[rule]) for rule in ("source", "left-out domains")},
                **{f"H {rule}": percent(r["hscore"] for r in group) for rule, group in by_rule.items()},
            }
        )
    return rows


if __name__ == "__main__":
    main()
