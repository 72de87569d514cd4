"""Train methods on all targets of a benchmark, and compare rules that choose the result of a run, or the methods.

    python -m benchmarks.study run digits --output records/digits --seeds 0 1 2 3 4 --iterations 1500
    python -m benchmarks.study run pacs --output records/pacs --option root=DIR --option weights=FILE …
    python -m benchmarks.study pack records/digits benchmarks/records/digits.jsonl.gz
    python -m benchmarks.study rules benchmarks/records/pacs.jsonl.gz --rate 5.4e-3
    python -m benchmarks.study rates benchmarks/records/pacs.jsonl.gz
    python -m benchmarks.study methods benchmarks/records/pacs.jsonl.gz --rule swad
    python -m benchmarks.study versions benchmarks/records/defaults_0.3.jsonl.gz records/defaults

`run` writes one file per run: its evaluations, then one evaluation of each weight average, all of them from the same
training. Runs that are there are not trained again, so a study can be continued. `rules`, `rates` and `methods` only
read; `methods` compares each method at its best learning rate by source validation.
"""

import argparse
import gzip
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.recipes import trials
from medic.evaluation.selection import select, without_target

METHODS: dict[str, dict[str, Any]] = {
    "erm": {"method": "erm"},
    "medic": {"method": "medic"},
    "medic++": {"method": "medic++"},
    "erm frozen": {"method": "erm", "batch_norm": "frozen"},
    "medic++ frozen": {"method": "medic++", "batch_norm": "frozen"},
    "erm per domain": {"method": "coral", "hparams": {"gamma": 0}},
    "erm adam": {"method": "erm", "batch_norm": "frozen", "optimizer": "adam", "lr": 5e-5, "schedule": "constant"},
    "fish": {"method": "fish"},
    "fish frozen": {"method": "fish", "batch_norm": "frozen"},
    "fish interpolate": {"method": "fish", "bn_buffers": "interpolate"},
    **{
        f"medic++ {sampling}{' step' if separate == 'step' else ''}": {
            "method": "medic++", "sampling": sampling.removesuffix("-short"), "separate": separate,
            **({"hparams": {"decay": 0.5, "lag": 1}} if sampling.endswith("-short") else {}),
        }
        for sampling, separate in itertools.product(("adaptive", "adaptive-short", "probe", "random"), ("task", "step"))
        if (sampling, separate) not in {("adaptive", "task"), ("random", "step")}
    },
    **trials(),
}  # fmt: skip
"""What is trained, by name; `medic++` itself samples adaptively, with confusable classes in different tasks.

`erm per domain` normalises every domain by itself, as Fish does: the penalty of its method has weight 0.
"""

REFRESHED = 30
"""Iterations from which batch-norm statistics of averaged weights are estimated."""


class Run(NamedTuple):
    """One run of a study."""

    method: str
    target: str
    seed: int
    lr: float | None

    @property
    def name(self) -> str:
        """The name of its file."""
        rate = "" if self.lr is None else f"-{self.lr:g}"
        method = self.method.replace(" @ ", "@").replace(" ", "-").replace("++", "pp")
        return f"{method}-{self.target}-{self.seed}{rate}.jsonl"


def make_run(method: str, target: str, seed: int, lr: float | None) -> Run:
    """Return a run at a learning rate, or at the one that `METHODS` gives to its method."""
    return Run(method, target, seed, METHODS.get(method, {}).get("lr", lr))


def make_averages(names: Sequence[str]) -> dict[str, Any]:
    """Return the weight averages that are computed in every run, by name: all, or some."""
    from medic.training.averaging import Ema, Swad, Tail

    averages: dict[str, Any] = {f"tail-{share:g}": Tail(share) for share in (0.2, 0.5)}
    averages |= {**{f"ema-{decay:g}": Ema(decay) for decay in (0.99, 0.998)}, "swad": Swad()}
    return {name: average for name, average in averages.items() if not names or name in names}


class Images:
    """The images of one process, which opens and loads every dataset once."""

    def __init__(self) -> None:
        from medic.config.resolve import open_once

        self.open = open_once()
        self._loaded: dict[tuple[int, int | None], Any] = {}

    def load(self, plan: Any) -> Any:
        """Load the images of a run."""
        from medic.runs.data import load_images

        key = (id(plan.dataset), plan.config.data.store_size)
        if key not in self._loaded:
            self._loaded[key] = load_images(plan, plan.device)
        return self._loaded[key]


def rehearsed(settings: dict[str, Any], images: Images) -> dict[str, Any]:
    """Return the settings of a run; of one with two targets, which rehearses, with pseudo-unknown classes.

    Some known classes are unknown in turn, and the benchmark's unknown classes are not used at all. The runs of four
    domains that are trained on two of them form three perfect matchings, one for each third of the known classes: so
    the three runs that rehearse one target leave out every known class once.
    """
    from medic.config.resolve import resolve

    if "," not in settings["target"]:
        return settings
    plan = resolve(settings, images.open)
    first, second = (plan.dataset.domains.index(name) for name in plan.config.data.sources)
    known = plan.config.data.known
    pseudo = known[(first ^ second) - 1 :: 3]
    return {**settings, "known": [name for name in known if name not in pseudo], "unknown": pseudo}


def train(
    run: Run,
    settings: dict[str, Any],
    images: Images,
    evaluations: int,
    averaged: Sequence[str] = (),
    interpolated: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """Train a run; return its evaluations, and one of each weight average.

    `interpolated` are shares α of the last average beside the weights of the backbone before training (WiSE-FT).
    """
    import torch

    from medic import openset
    from medic.config.resolve import resolve
    from medic.evaluation.evaluator import Evaluator
    from medic.runs.build import build_trainer, compiles
    from medic.runs.data import divide_images

    began, rate = time.perf_counter(), {} if run.lr is None else {"lr": run.lr}
    asked = {**settings, **METHODS[run.method], **rate, "target": run.target, "seed": run.seed}
    plan = resolve(rehearsed(asked, images), images.open)
    dataset = images.load(plan)
    problem = divide_images(plan, dataset)
    trainer = build_trainer(plan, dataset, problem)
    score = openset.get_score(plan.config.evaluation.score)
    evaluator = Evaluator(
        dataset.domains,
        problem,
        trainer.inference(compiles(plan, plan.device)),
        score,
        plan.config.evaluation.threshold,
    )
    averages, records, losses = make_averages(averaged), [], []
    weights = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    backbone = [parameter for parameter in trainer.model.backbone.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in backbone]
    loaded = time.perf_counter() - began
    began, iterations = time.perf_counter(), plan.config.optim.iterations
    trainer.model.train()  # which freezes batch norm, if it is to be
    for iteration in range(1, iterations + 1):
        losses += trainer.step()
        for average in averages.values():
            average.update(weights, iteration / iterations)
            if average.asks(iteration, iterations):
                losses += trainer.wait()
                average.close(evaluator.validation()["domain_loss"], iteration)
                trainer.model.train()
        if iteration * evaluations % iterations < evaluations:
            losses += trainer.wait()
            trained = time.perf_counter() - began
            record = {
                "iteration": iteration,
                "loss": sum(losses) / len(losses),
                **shortened(evaluator.record(), problem.targets),
            }
            records.append({**record, "trained": trained, "seconds": time.perf_counter() - began})
            losses.clear()
            trainer.model.train()
    for name, average in averages.items():
        with torch.no_grad():
            torch._foreach_copy_(weights, average.result())
        trainer.refresh_statistics(min(REFRESHED, iterations))
        measured = {"iteration": iterations, "average": name, "converged": average.converged}
        records.append(
            {**measured, **shortened(evaluator.record(), problem.targets), "seconds": time.perf_counter() - began}
        )
    after = [parameter.detach().clone() for parameter in backbone]
    for share in interpolated:
        with torch.no_grad():
            torch._foreach_copy_(backbone, torch._foreach_lerp(before, after, share))
        trainer.refresh_statistics(min(REFRESHED, iterations))
        measured = {"iteration": iterations, "average": f"wise-{share:g}"}
        records.append(
            {**measured, **shortened(evaluator.record(), problem.targets), "seconds": time.perf_counter() - began}
        )
    return [{"run": run._asdict(), "settings": plan.config.identity, "loaded": loaded}, *records]


def shortened(record: dict[str, Any], targets: Sequence[int]) -> dict[str, Any]:
    """Return the measurements that a rule or a table may need."""
    keys = ("acc", "hscore", "oscr", "auroc", "hscore/oracle-10")
    target = {key: record["target"][key] for key in keys}
    by_target = {name: {key: metrics[key] for key in keys} for name, metrics in record["targets"].items()}
    several = {"targets": by_target} if len(by_target) > 1 else {}
    by_domain = {key: value for key, value in without_target(record, targets).items() if "_out_" in key}
    return {"validation": record["validation"], "target": target, **several, **by_domain}


def work(
    queue: Any,
    settings: dict[str, Any],
    evaluations: int,
    averages: Sequence[str],
    interpolated: Sequence[float],
    output: Path,
    until: float,
) -> None:
    """Train the runs of a queue until a time."""
    longest, images = 0.0, Images()
    while time.time() + longest < until and (run := queue.get()) is not None:
        began = time.time()
        lines = train(run, settings, images, evaluations, averages, interpolated)
        part = output / f"{run.name}.{os.getpid()}"
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        part.rename(output / run.name)
        longest = max(longest, time.time() - began)
        times = [round(line.get("trained", line.get("seconds", line.get("loaded"))), 1) for line in lines]
        print(
            f"{run.name}: {time.time() - began:.0f} s {times}, OSCR {100 * lines[-1]['target']['oscr']:.1f}", flush=True
        )


def run_study(arguments: argparse.Namespace) -> None:
    """Train what is missing, several runs at a time."""
    from medic.data import benchmark

    targets = arguments.targets or benchmark(arguments.dataset).domains
    arguments.output.mkdir(parents=True, exist_ok=True)
    given = dict(option.split("=", 1) for option in arguments.option)
    from medic.config.files import load_yaml

    settings = {
        **{name: load_yaml(value) for name, value in given.items()},
        "dataset": arguments.dataset,
        "iterations": arguments.iterations,
    }
    products = itertools.product(arguments.seeds, arguments.rates or [None], arguments.methods, targets)
    runs = list(dict.fromkeys(make_run(method, target, seed, lr) for seed, lr, method, target in products))
    done = {run for place in (arguments.output, arguments.done) if place is not None for run in read_runs(place)}
    missing = [run for run in runs if run not in done]
    print(f"{len(runs)} runs, {len(missing)} to train", flush=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for item in (*missing, *[None] * arguments.jobs):
        queue.put(item)
    until = time.time() + arguments.seconds
    how = (arguments.evaluations, arguments.averages, arguments.interpolate)
    common = (queue, settings, *how, arguments.output, until)
    workers = [context.Process(target=work, args=common) for _ in range(arguments.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


Records = list[dict[str, Any]]


def neighbours(records: Records) -> list[float]:
    """Return the mean validation accuracy of each evaluation and the ones beside it."""
    found = [record["validation"]["acc"] for record in records]
    return [fmean(found[max(0, k - 1) : k + 2]) for k in range(len(found))]


def best(values: Sequence[float], last: bool) -> int:
    """Return the position of the largest value, the first or last of equal ones."""
    return max(range(len(values)), key=lambda k: (values[k], k if last else -k))


RULES: dict[str, Callable[[Records], int]] = {
    "validation accuracy, first on ties": lambda records: best([r["validation"]["acc"] for r in records], last=False),
    "validation accuracy, last on ties": lambda records: best([r["validation"]["acc"] for r in records], last=True),
    "validation accuracy, mean of three": lambda records: best(neighbours(records), last=True),
    "validation loss": lambda records: best([-r["validation"]["domain_loss"] for r in records], last=True),
    "last": lambda records: len(records) - 1,
}
"""Rules that choose one of the evaluations of a run by source data."""
BEST = "(best on the target, which nobody may use)"


def results(lines: Records, every: int) -> dict[str, dict[str, float]]:
    """Return the metrics on the target, and the accuracy on validation, by every rule, with every nth evaluation."""
    plain = [record for record in lines if "average" not in record and "iteration" in record]
    kept = plain[::-1][::every][::-1]  # always with the last
    found = {name: kept[rule(kept)] for name, rule in RULES.items()}
    for record in (record for record in lines if "average" in record):
        chosen = [*kept, {**record, "averaged": True}]
        found[record["average"]] = record
        found[f"{record['average']}, unless significantly worse"] = chosen[select(chosen)]
    found[BEST] = max(kept, key=lambda record: record["target"]["acc"])
    return {name: {**record["target"], "validation": record["validation"]["acc"]} for name, record in found.items()}


def read_runs(place: Path) -> dict[Run, Records]:
    """Return the lines of every run in a folder or a packed file."""
    if place.is_dir():
        text = "".join(path.read_text() for path in sorted(place.glob("*.jsonl")))
    else:
        text = gzip.decompress(place.read_bytes()).decode()
    runs: dict[Run, Records] = {}
    for line in map(json.loads, text.splitlines()):
        if "run" in line:
            lines = runs[make_run(**line["run"])] = []
        lines.append(line)
    return runs


def pack(places: Sequence[Path], file: Path) -> None:
    """Write the runs of several folders or packed files into one file."""
    runs = {run: lines for place in places for run, lines in read_runs(place).items()}
    text = "".join(json.dumps(line) + "\n" for run in sorted(runs) for line in runs[run])
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(runs)} runs, {file.stat().st_size >> 10} KiB")


class Study(NamedTuple):
    """The results of one study: metrics by run and rule."""

    found: dict[Run, dict[str, dict[str, float]]]

    @classmethod
    def read(cls, place: Path, every: int, rate: float | None = None) -> "Study":
        """Read the records of a folder, or of a file that `pack` wrote: of all runs, or those of a learning rate."""
        runs = read_runs(place)
        return cls({run: results(lines, every) for run, lines in runs.items() if rate in (None, run.lr)})

    def rates(self, method: str, rule: str) -> dict[float | None, float]:
        """Return the mean validation accuracy of a method by its rates, over the targets and seeds that all have."""
        found: dict[float | None, dict[tuple[str, int], float]] = {}
        for run, by_rule in self.found.items():
            if run.method == method:
                found.setdefault(run.lr, {})[run.target, run.seed] = 100 * by_rule[rule]["validation"]
        shared = set.intersection(*(set(values) for values in found.values()))
        return {lr: mean({key: values[key] for key in shared}) for lr, values in sorted(found.items(), key=str)}

    def at_best_rates(self, rule: str) -> "Study":
        """Return the runs of each method at its best rate by source validation."""
        best_rate = {m: max(rates, key=rates.__getitem__) for m in self.methods if (rates := self.rates(m, rule))}
        return Study({run: found for run, found in self.found.items() if run.lr == best_rate[run.method]})

    def values(self, method: str, rule: str, metric: str) -> dict[tuple[str, int], float]:
        """Return a metric in percent by target and seed."""
        return {
            (run.target, run.seed): 100 * found[rule][metric]
            for run, found in self.found.items()
            if run.method == method
        }

    @property
    def methods(self) -> list[str]:
        """The methods that were trained, in the order of `METHODS`."""
        return [method for method in METHODS if any(run.method == method for run in self.found)]

    @property
    def rules(self) -> list[str]:
        """The rules that every run allows."""
        first, *others = self.found.values()
        return [rule for rule in first if all(rule in other for other in others)]


def mean(values: dict[tuple[str, int], float]) -> float:
    """Return the mean over targets of the means over seeds."""
    from medic.results.comparison import column_means

    return fmean(column_means(values))


def interval(differences: dict[tuple[str, int], float]) -> tuple[float, float]:
    """Return a mean difference and the half width of its 95 % interval, by the t distribution over targets.

    Seeds of one target share its images, so a target counts once, with its mean over seeds.
    """
    from medic.results.comparison import column_means, t_interval

    means = column_means(differences)
    if len(means) < 2:
        return fmean(means), float("nan")
    shift, low, high, _ = t_interval(means)
    return shift, (high - low) / 2


def seed_interval(differences: dict[tuple[str, int], float]) -> tuple[float, float, int]:
    """Return a mean difference, the half width of its 95% interval, and the number of seeds.

    The targets are fixed. A seed counts once, with its mean over targets, if it has all of them.
    """
    from medic.results.comparison import t_interval

    targets = {target for target, _ in differences}
    seeds = sorted({seed for _, seed in differences})
    whole = [seed for seed in seeds if all((target, seed) in differences for target in targets)]
    means = [fmean(differences[target, seed] for target in targets) for seed in whole]
    if len(means) < 2:
        return fmean(means), float("nan"), len(means)
    shift, low, high, _ = t_interval(means)
    return shift, (high - low) / 2, len(means)


def print_versions(before: Path, after: Path, rule: str) -> None:
    """Print the methods of two studies with the same runs, their differences, and those of MEDIC++ to ERM."""
    old, new = (Study.read(place, 1) for place in (before, after))
    targets = sorted({run.target for run in new.found})
    print(f"\n{before.name} → {after.name}, rule: {rule}; 95% intervals over seeds, for the mean of these targets\n")
    print(f"| difference | metric | before | after | difference | seeds | {' | '.join(targets)} |")
    print("|---" * (6 + len(targets)) + "|")

    def print_difference(title: str, first: Any, second: Any) -> None:
        for metric in ("acc", "hscore", "oscr", "auroc"):
            values, others = first(metric), second(metric)
            shared = {key: others[key] - values[key] for key in values.keys() & others.keys()}
            shift, half, seeds = seed_interval(shared)
            by_target = [fmean(value for key, value in shared.items() if key[0] == target) for target in targets]
            means = [mean({key: one[key] for key in shared}) for one in (values, others)]
            cells = [f"{means[0]:.1f}", f"{means[1]:.1f}", f"{shift:+.2f} ± {half:.2f}", str(seeds)]
            print(f"| {title} | {metric} | {' | '.join([*cells, *(f'{value:+.1f}' for value in by_target)])} |")

    for method in new.methods:
        print_difference(method, *(partial(study.values, method, rule) for study in (old, new)))
    print_difference("medic++ over erm, after", *(partial(new.values, method, rule) for method in ("erm", "medic++")))


def print_rules(folders: Sequence[Path], every: int, rate: float | None) -> None:
    """Print Acc / OSCR of every method by every rule, and the mean difference of OSCR to the first rule."""
    for folder in folders:
        study = Study.read(folder, every, rate)
        print(f"\n{folder.name}, {len(study.found)} runs; Acc / OSCR\n")
        print("| rule | " + " | ".join(study.methods) + " | mean OSCR | difference |")
        print("|---" * (len(study.methods) + 3) + "|")
        first = study.rules[0]
        for rule in study.rules:
            cells = [
                f"{mean(study.values(method, rule, 'acc')):.1f} / {mean(study.values(method, rule, 'oscr')):.1f}"
                for method in study.methods
            ]
            pooled: dict[tuple[str, int], list[float]] = {}
            for method in study.methods:
                before = study.values(method, first, "oscr")
                for key, value in study.values(method, rule, "oscr").items():
                    pooled.setdefault(key, []).append(value - before[key])
            shift, half = interval({key: fmean(values) for key, values in pooled.items()})
            overall = fmean(mean(study.values(method, rule, "oscr")) for method in study.methods)
            print(f"| {rule} | {' | '.join(cells)} | {overall:.2f} | {shift:+.2f} ± {half:.2f} |")


def print_rates(folders: Sequence[Path], every: int, rule: str) -> None:
    """Print every method at every learning rate by one rule."""
    for folder in folders:
        study = Study.read(folder, every)
        print(f"\n{folder.name}, rule: {rule}; validation over the targets and seeds that all rates have\n")
        print("| method | rate | runs | validation | Acc | OSCR |")
        print("|---" * 6 + "|")
        for method in study.methods:
            for lr, validation in study.rates(method, rule).items():
                one = Study({run: found for run, found in study.found.items() if run.lr == lr})
                values = [one.values(method, rule, metric) for metric in ("acc", "oscr")]
                cells = " | ".join(f"{mean(by_run):.1f}" for by_run in values)
                print(f"| {method} | {lr} | {len(values[0])} | {validation:.2f} | {cells} |")


def print_methods(folders: Sequence[Path], every: int, rule: str, against: str) -> None:
    """Print every method by one rule, and its paired differences to another method."""
    for folder in folders:
        study = Study.read(folder, every).at_best_rates(rule)
        print(f"\n{folder.name}, rule: {rule}; differences to {against} with 95 % intervals over targets\n")
        print("| method | runs | Acc | OSCR | H-score | Acc difference | OSCR difference |")
        print("|---" * 7 + "|")
        for method in study.methods:
            cells, shifts = [], []
            for metric in ("acc", "oscr", "hscore"):
                values, others = study.values(method, rule, metric), study.values(against, rule, metric)
                cells.append(f"{mean(values):.1f}")
                shared = {key: values[key] - others[key] for key in values.keys() & others.keys()}
                shift, half = interval(shared)
                shifts.append(f"{shift:+.1f} ± {half:.1f}")
            print(f"| {method} | {len(values)} | {' | '.join(cells)} | {' | '.join(shifts[:2])} |")


def main() -> None:
    """Train, or read what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("dataset")
    run.add_argument("--output", type=Path, required=True)
    run.add_argument("--methods", nargs="+", choices=METHODS, default=["erm", "medic", "medic++"])
    run.add_argument("--targets", nargs="+")
    run.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    run.add_argument("--rates", nargs="+", type=float, help="learning rates [the method's]")
    run.add_argument("--iterations", type=int, required=True)
    run.add_argument("--evaluations", type=int, default=20)
    run.add_argument("--averages", nargs="*", default=[], help="averages of weights to evaluate [all]")
    run.add_argument(
        "--interpolate", nargs="*", type=float, default=[], help="shares of the average beside the weights before"
    )
    run.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a setting of all runs")
    run.add_argument("--jobs", type=int, default=2, help="runs at a time")
    run.add_argument("--seconds", type=float, default=1e9, help="start no run that would end later")
    run.add_argument("--done", type=Path, help="a packed file of runs that need not be trained")
    packing = commands.add_parser("pack")
    packing.add_argument("folders", nargs="+", type=Path)
    packing.add_argument("file", type=Path)
    for name in ("rules", "rates", "methods"):
        reading = commands.add_parser(name)
        reading.add_argument("folders", nargs="+", type=Path)
        reading.add_argument("--every", type=int, default=1, help="use every nth evaluation")
        if name == "rules":
            reading.add_argument("--rate", type=float, help="only runs with this learning rate")
        else:
            reading.add_argument("--rule", default="swad, unless significantly worse")
        if name == "methods":
            reading.add_argument("--against", default="erm")
    versions = commands.add_parser("versions")
    versions.add_argument("before", type=Path)
    versions.add_argument("after", type=Path)
    versions.add_argument("--rule", default="swad, unless significantly worse")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run_study(arguments)
    elif arguments.command == "versions":
        print_versions(arguments.before, arguments.after, arguments.rule)
    elif arguments.command == "pack":
        pack(arguments.folders, arguments.file)
    elif arguments.command == "rules":
        print_rules(arguments.folders, arguments.every, arguments.rate)
    elif arguments.command == "rates":
        print_rates(arguments.folders, arguments.every, arguments.rule)
    else:
        print_methods(arguments.folders, arguments.every, arguments.rule, arguments.against)


if __name__ == "__main__":
    main()
