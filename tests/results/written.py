"""Directories of finished runs for tests of tables, written without training."""

import json

from medic.data import BENCHMARKS
from medic.runs.seal import make_seal

DOMAINS = ("a", "b", "c")


def write_run(
    folder, name, method, domain, seed, values, commit="c0", images="i0", weights="w", counts=None, draw=0, accs=None,
    formats=(), user_settings=None, computed_in="fp32", **settings,
):  # fmt: skip
    """Write a finished run with an evaluation per value; the last but one is best on validation.

    `user_settings` are the settings that the person gave beside `method`, by default all of `settings`. `accs` has
    accuracies by domain; without it they are the values. The numbers of images are by default the published ones.
    """
    path = folder / name
    path.mkdir(parents=True)
    complete = {
        "method": method, "dataset": "pacs", "backbone": "resnet50", "target": [domain], "known": ["k"] * 6,
        "sources": [d for d in DOMAINS if d != domain], "seed": seed, "trial_seed": seed, "validation": "cell",
        "hparams_seed": draw, **settings,
    }  # fmt: skip
    targets = [target for target in complete["target"] if target in DOMAINS] or [domain]
    args = {"test_envs": [DOMAINS.index(target) for target in targets], "hparams_seed": draw, "seed": seed}
    records = [
        {
            "iteration": step, "step": step, "step_time": 0.1, "lr": 0.01,
            "validation": {"acc": 0.5 - abs(step - (len(values) - 2)) / 10},
            "target": {"acc": value, "oscr": value / 2, "hscore": value / 4, "hscore/oracle-10": value / 3},
            "targets": {domain: {"acc": value}},
            **{f"env{i}_{part}_acc": (accs or {}).get(name, value) for i, name in enumerate(DOMAINS)
               for part in ("in", "out")},
            "args": args, "hparams": {},
        }
        for step, value in enumerate(values)
    ]  # fmt: skip
    recorded = settings if user_settings is None else user_settings
    (path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    if counts is None and (bench := BENCHMARKS.get(complete["dataset"])):
        counts = {name: sum(numbers) for name, numbers in bench.counts.items()} or {"all": bench.images}
    environment = {"commit": commit, "images": images, "weights": weights, "counts": counts, "formats": formats}
    environment["precision"] = computed_in
    (path / "environment.json").write_text(json.dumps(environment))
    (path / "config.json").write_text(json.dumps(complete))
    (path / "settings.json").write_text(json.dumps({"method": method, "target": domain, "output": "runs", **recorded}))
    seal(path)
    return path


def seal(path):
    """Write the checksums of a run's files, also after a change."""
    (path / "done").write_text(make_seal(path, 1.0))
