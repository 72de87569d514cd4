"""Measure what `medic watch` says of batches of images: how often it raises an alarm, and how wrong its estimates are.

    medic sweep benchmarks/sweeps/watch.yaml --root PACS --weights lite0.safetensors --output runs/watch
    python -m benchmarks.watch runs/watch --pack benchmarks/records/watch.jsonl.gz
    python -m benchmarks.watch benchmarks/records/watch.jsonl.gz

docs/studies.md has the options for heads on frozen features, with which the records were made.

The reference is one half of a run's validation images. Batches are drawn from the other half, which should raise
no alarm, and from the target: from its known images alone, and from all of its images.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from benchmarks.packed import by_study, describe_run, finished_runs, parse_records, percent
from medic.evaluation.evaluator import LabelledOutputs
from medic.openset.shift import Reference
from medic.reports.terminal import print_rows
from medic.runs.run import Run

BATCH = 50
BATCHES = 16
"""Batches of each kind, from each run."""
LEVELS = (0.05, 0.01)
"""The p-values at which an alarm is raised."""


def measure(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a record for every batch of a run."""
    generator = torch.Generator().manual_seed(run.config.run.seed)
    validation, target = run.outputs("validation"), run.outputs("target")
    fitted, held_out = torch.randperm(len(validation.label), generator=generator).chunk(2)
    reference = _reference(run, _take(validation, fitted))
    groups = {
        "source": _take(validation, held_out),
        "target, known": target.where(target.label >= 0),
        "target": target,
    }
    for kind, outputs in groups.items():
        for number in range(BATCHES + 1):  # the first has every image
            count = BATCH if number else len(outputs.label)
            drawn = _take(outputs, torch.randperm(len(outputs.label), generator=generator)[:count])
            known = drawn.where(drawn.label >= 0)
            if not len(known.label):
                continue
            assert drawn.output.features is not None
            confidence = run.score(drawn.output)
            shift = reference.assess(confidence, drawn.output.features, run.predictor.threshold.value)
            yield {
                **describe_run(run), "kind": kind, "whole": not number, **shift._asdict(),
                "p": shift.p_value, "two components": _lower_share(confidence), "true accuracy": known.accuracy,
                "true unknown": 1 - len(known.label) / len(drawn.label),
            }  # fmt: skip


def measure_all(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of every finished run in a folder."""
    for run in finished_runs(folder):
        yield from measure(run)


def _reference(run: Run, outputs: LabelledOutputs) -> Reference:
    assert outputs.output.features is not None, f"train {run.path} with --save-features"
    return Reference.fit(run.score(outputs.output), outputs.correct, outputs.output.features, outputs.domain)


def _lower_share(confidence: Tensor) -> float:
    """Return the share of the lower of two normal components, another estimate of the share of unknown images."""
    fitted = GaussianMixture(2, random_state=0, n_init=3).fit(confidence.numpy()[:, None])
    return float(fitted.weights_[int(fitted.means_.argmin())])


def _take(outputs: LabelledOutputs, rows: Tensor) -> LabelledOutputs:
    mask = torch.zeros(len(outputs.label), dtype=torch.bool)
    mask[rows] = True
    return outputs.where(mask)


def main() -> None:
    """Print the alarms and the errors, and pack the records."""
    records = parse_records(__doc__, measure_all)
    for title, own in by_study(records):
        print(f"{title}\nalarms in percent of the batches of {BATCH} images")
        print_rows(alarm_rows(own), numeric=[name for name in alarm_rows(own)[0] if name != "batches from"])
        print("\nmean absolute error of the estimates, in points")
        print_rows(
            error_rows(own),
            numeric=[name for name in error_rows(own)[0] if name not in ("images", "method", "from")],
        )
        print()


def alarm_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the share of batches with an alarm, by kind."""
    batches = [record for record in records if not record["whole"]]
    rows = []
    for kind in dict.fromkeys(record["kind"] for record in batches):
        own = [record for record in batches if record["kind"] == kind]
        rates = {f"p < {level}": f"{100 * fmean(record['p'] < level for record in own):.1f}" for level in LEVELS}
        parts = {
            f"{part} p < {LEVELS[1]}": f"{100 * fmean(record[part + '_p'] < LEVELS[1] for record in own):.1f}"
            for part in ("score", "feature")
        }
        rows.append({"batches from": kind, "batches": str(len(own)), **rates, **parts})
    return rows


def error_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Return true and estimated accuracy and share of unknown images, by method and kind."""
    rows = []
    for whole in (True, False):
        own = [record for record in records if record["whole"] is whole]
        for key in dict.fromkeys((record["method"], record["kind"]) for record in own):
            group = [record for record in own if (record["method"], record["kind"]) == key]
            rows.append(
                {
                    "images": "all" if whole else str(BATCH),
                    **dict(zip(("method", "from"), key, strict=True)),
                    "accuracy": percent(record["true accuracy"] for record in group),
                    "estimated accuracy": percent(record["accuracy"] for record in group),
                    "accuracy error": percent(abs(record["accuracy"] - record["true accuracy"]) for record in group),
                    "unknown": percent(record["true unknown"] for record in group),
                    "estimated unknown": percent(record["unknown"] for record in group),
                    "unknown error": percent(abs(record["unknown"] - record["true unknown"]) for record in group),
                    "mixture error": percent(
                        abs(record["two components"] - record["true unknown"]) for record in group
                    ),
                }
            )
    return rows


if __name__ == "__main__":
    main()
