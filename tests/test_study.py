"""Studies in `benchmarks`: the learning rate of a run, and records that earlier versions wrote."""

import importlib
import json
import math
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import (
    backbones,
    class_splits,
    judges,
    left_out_domains,
    packed,
    recipes,
    scores,
    soups,
    systems,
    threshold_curves,
    watch,
)
from benchmarks.study import intervals, training
from benchmarks.study.__main__ import main, make_parser
from benchmarks.study.methods import METHODS
from benchmarks.study.results import Study
from benchmarks.study.runs import Run, make_run, read_runs
from medic.config.starts import STARTS
from medic.data import make_augmentation
from tests.pages import command_lines


def write(folder, rate, acc):
    run = {"method": "erm adam", "target": "a", "seed": 0, "lr": rate}
    record = {"iteration": 1, "validation": {"acc": acc}, "target": {"acc": acc}}
    lines = [{"run": run, "settings": {"lr": 5e-5}}, record]
    (folder / f"{rate}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_rate_of_a_method_is_that_of_its_runs(tmp_path):
    """An arm with its own rate ignores --rates; older records named the given one."""
    assert make_run("erm adam", "a", 0, 0.0054).lr == 5e-5
    assert make_run("erm", "a", 0, 0.0054).lr == 0.0054
    for rate in (0.0054, 0.016):
        write(tmp_path, rate, 0.5)
    ((run, lines),) = read_runs(tmp_path).items()
    assert (run.lr, len(lines)) == (5e-5, 2)


def test_seeds_of_a_target_count_once():
    differences = {("a", 0): 2.0, ("a", 1): 4.0, ("b", 0): 1.0}
    assert intervals.target_interval(differences) == (pytest.approx(2), pytest.approx(12.7062, abs=1e-3))
    assert str(intervals.target_interval({("a", 0): 2.0, ("a", 1): 4.0})) == "(3.0, nan)"


def test_rules_that_every_run_allows():
    metrics = {Run("erm", "a", 0, None): {"last": {}, "swad": {}}, Run("erm", "b", 0, None): {"last": {}}}
    assert Study(metrics).rules == ["last"]


DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "studies.md").read_text()
ALL_PAGES = "\n".join(path.read_text() for path in sorted(DOCS.rglob("*.md")))
COMMANDS = re.findall(r"^ +python -m benchmarks\.study ((?:rules|rates|methods|versions) .*)$", PAGE, re.MULTILINE)


PRINTED = r"^ +python -m benchmarks\.(?!study |threshold_curves )(\w+ .*benchmarks/records/\S+)"
OTHERS = sorted(set(re.findall(PRINTED, ALL_PAGES, re.MULTILINE)))
"""Commands of other benchmarks that print tables from records, on any page."""


@pytest.mark.parametrize("command", OTHERS)
def test_tables_from_records(command, monkeypatch, capsys):
    name, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    importlib.import_module(f"benchmarks.{name}").main()
    assert capsys.readouterr().out.count("\n") > 3


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_the_page_shows(command, monkeypatch, capsys):
    """They print the tables of the page from the records in the repository."""
    monkeypatch.setattr(sys, "argv", ["study", *shlex.split(command)])
    main()
    assert capsys.readouterr().out.count("\n|") >= 3


def test_the_judges_that_the_page_compares(monkeypatch, capsys):
    """Every number of the two tables is printed from the records."""
    section = PAGE[PAGE.index("### The judge") : PAGE.index("### The choice")]
    command = re.search(r"python -m benchmarks\.judges (.*screening.*)", PAGE)[1]
    monkeypatch.setattr(sys, "argv", ["judges", *shlex.split(command)])
    judges.main()
    printed = capsys.readouterr().out.replace("*", "")
    numbers = {number for line in section.splitlines() if line.startswith("|") for number in line.split("|")[2:]}
    for number in (text.strip(" *") for text in numbers):
        assert not re.fullmatch(r"\d+\.\d+", number) or re.search(rf"\| {number} \|", printed), number


def test_the_second_network_that_the_page_compares(monkeypatch, capsys):
    """Every OSCR of the table of recipes is printed from the records."""
    section = PAGE[PAGE.index("### A second network") : PAGE.index("### A soup of several runs")]
    command = re.search(r"python -m benchmarks\.judges (.*)", section)[1]
    monkeypatch.setattr(sys, "argv", ["judges", *shlex.split(command)])
    judges.main()
    printed = capsys.readouterr().out
    rows = [line for line in section.splitlines() if line.startswith("| frozen") and "0 of 10" in line]
    numbers = [number for line in rows for number in re.findall(r"\d+\.\d(?= \|)", line)]
    assert len(numbers) == 12
    assert all(f"| {number} |" in printed for number in numbers)


def test_the_defaults_that_the_page_compares(monkeypatch, capsys):
    """Every difference in the table is printed from the records."""
    section = PAGE[PAGE.index("### The new defaults") : PAGE.index("## How classes are dealt")]
    command = re.search(r"python -m benchmarks\.study (versions .*)", section)[1]
    monkeypatch.setattr(sys, "argv", ["study", *shlex.split(command)])
    main()
    rows = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    printed = {(row[1], row[2].lower()): row for row in rows if len(row) > 10}
    for line in section.splitlines():
        cells = [cell.strip(" *").replace("−", "-") for cell in line.split("|")]
        if len(cells) < 10 or "±" not in line:
            continue
        row = printed[
            cells[1].replace("medic++ - erm, now", "medic++ over erm, after"), cells[2].lower().replace("-", "")
        ]
        assert [cells[5], *cells[6:10]] == [row[5], *row[7:11]]
        assert cells[3] in ("", row[3])


def test_the_soups_that_the_page_compares(monkeypatch, capsys):
    command = re.search(r"python -m benchmarks\.soups (show .*)", PAGE)[1]
    monkeypatch.setattr(sys, "argv", ["soups", *shlex.split(command)])
    soups.main()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 4
    for target, runs, *cells in rows:
        assert runs == "12"
        assert f"| {target} | {' | '.join(cells)} |" in PAGE


RECIPES = {
    "AdamW, lr 0.001, decay, head first": "vit adamw 1e-3 decay head",
    "AdamW, lr 1e-4, head first": "vit adamw 1e-4 head",
    "AdamW, lr 3e-4, decay": "vit adamw 3e-4 decay",
    "SGD, lr 0.0054, clip 5": "vit sgd",
    "SGD, lr 0.0018 (0.3)": "vit 0.3",
    "AdamW, lr 1e-4": "vit adamw 1e-4",
    "AdamW, lr 3e-4, head first": "vit adamw 3e-4 head",
    "AdamW, lr 3e-5": "vit adamw 3e-5",
    "AdamW, lr 1e-4, decay": "vit adamw 1e-4 decay",
    "adapters, lr 0.003": "lora adamw 0.003",
    "adapters, lr 0.001": "lora adamw 0.001",
    "adapters, lr 0.0003": "lora adamw 0.0003",
}


OF_START = ("optimizer", "lr", "weight_decay", "schedule", "layer_decay", "clip_norm")


def test_the_recipes_for_transformers_that_the_page_compares(monkeypatch, capsys):
    """Every row of the table is printed from the records, and the default is its best recipe."""
    section = PAGE[PAGE.index("### A recipe for transformers") : PAGE.index("### The recipe at 224 pixels")]
    command = re.search(r"python -m benchmarks\.judges (.*)", section)[1]
    monkeypatch.setattr(sys, "argv", ["judges", *shlex.split(command)])
    judges.main()
    printed = capsys.readouterr().out
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line][2:]
    assert [name for name, *_ in rows] == list(RECIPES)
    for name, *numbers in rows:
        assert f"| {RECIPES[name]} | {' | '.join(numbers)} |" in printed
    best, start = recipes.TRANSFORMERS[RECIPES[rows[0][0]]], STARTS["pretrained without batch norm"]
    assert {name: best[name] for name in OF_START} == {name: getattr(start, name) for name in OF_START}


COMMANDS = [
    line.strip()
    for page in sorted(Path("docs").glob("*.md"))
    for line in command_lines(page.read_text())
    if line.strip().startswith("python -m benchmarks.study ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_pages_are_understood(command):
    """Their methods and recipes exist, and so do the records that they read."""
    options = vars(make_parser().parse_args(shlex.split(command.replace("…", ""), comments=True)[3:]))
    read = [*options.get("folders", ()), *(options[name] for name in ("before", "after") if name in options)]
    assert options["command"] == "pack" or all(path.exists() for path in read)


RECIPES_AT_224 = {
    "AdamW, lr 0.001, decay, head first, grey, small crops": "vit-224 adamw 1e-3 decay head grey crops",
    "adapters, lr 0.001, grey, small crops": "lora-224 adamw 0.001 grey crops",
    "AdamW, lr 0.001, decay, head first, grey": "vit-224 adamw 1e-3 decay head grey",
    "AdamW, lr 1e-4, head first": "vit-224 adamw 1e-4 head",
    "AdamW, lr 0.001, decay, head first": "vit-224 adamw 1e-3 decay head",
    "adapters, lr 0.001": "lora-224 adamw 0.001",
    "AdamW, lr 3e-4, decay, head first": "vit-224 adamw 3e-4 decay head",
    "SGD, lr 0.0018 (0.3)": "vit-224 0.3",
    "AdamW, lr 0.0018, decay, head first": "vit-224 adamw 1.8e-3 decay head",
    "AdamW, lr 1e-4, decay, head first": "vit-224 adamw 1e-4 decay head",
}


def test_the_recipes_at_224_pixels_that_the_page_compares(monkeypatch, capsys):
    """Every row of the table is printed from the records, and the defaults are its best recipes."""
    section = PAGE[PAGE.index("### The recipe at 224 pixels") : PAGE.index("### Transformers at 224 pixels")]
    command = re.search(r"python -m benchmarks\.judges (.*)", section)[1]
    monkeypatch.setattr(sys, "argv", ["judges", *shlex.split(command)])
    judges.main()
    printed = capsys.readouterr().out
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line][2:]
    assert [name for name, *_ in rows] == list(RECIPES_AT_224)
    named = [f"| {RECIPES_AT_224[name]} | {' | '.join(numbers)} |" for name, *numbers in rows]
    assert named == printed.splitlines()[2:]  # in the same order, with the best recipe first
    for tune, name in (("all", "pretrained without batch norm"), ("adapters", "adapters")):
        ranked = [recipes.AT_224[RECIPES_AT_224[recipe]] for recipe, *_ in rows]
        best, start = next(one for one in ranked if one.get("tune", "all") == tune), STARTS[name]
        named = OF_START if tune == "all" else [name for name in OF_START if name != "layer_decay"]
        assert {name: best[name] for name in named} == {name: getattr(start, name) for name in named}
        assert make_augmentation(best["augment"]) == make_augmentation(start.augment)


HEADS = {
    "as they are": "heads_raw", "each by its deviation": "heads_standardised", "all by one number": "heads_scaled",
}  # fmt: skip


def test_the_heads_that_the_page_compares(monkeypatch, capsys):
    """Every pair of numbers in the table is printed from the records."""
    section = PAGE[PAGE.index("### Heads on frozen features") : PAGE.index("### A soup of several runs")]
    network = ""
    for line in section.splitlines():
        cells = [cell.strip(" *").replace("**", "") for cell in line.split("|")[1:-1]]
        if len(cells) != 8 or cells[1] not in HEADS:
            continue
        network = cells[0] or network
        records = f"benchmarks/records/{HEADS[cells[1]]}{'_vit' if 'ViT' in network else ''}.jsonl.gz"
        assert records in section
        monkeypatch.setattr(sys, "argv", ["judges", records])
        judges.main()
        printed = capsys.readouterr().out.partition(f"\n{cells[2]}\n")[2].partition("\n\n\n")[0].split("recipes,")[0]
        for rate, pair in zip(("0.0018", "0.0054", "0.018", "0.054", "0.18"), cells[3:], strict=True):
            if pair:
                loo, target = pair.split(" / ")
                assert re.search(rf"\| head {rate} \| [\d.]+ \| {loo} \| {target} \|", printed), (line, rate)


def test_the_judges_of_raw_features(monkeypatch, capsys):
    command = re.search(r"python -m benchmarks\.judges (.*frozen.*)", PAGE)[1]
    monkeypatch.setattr(sys, "argv", ["judges", *shlex.split(command)])
    judges.main()
    assert "| lr 0.0018 | 84.02 | 54.7 | 56.8 |" in capsys.readouterr().out


def test_the_same_number_of_trials_for_every_method():
    counts = {base: sum(name.startswith(f"{base} @") for name in recipes.trials()) for base in recipes.BASES}
    others = {
        base: sum(name.startswith((f"{base} @ head", f"{base} @ vit", f"{base} @ lora")) for name in recipes.trials())
        for base in recipes.BASES
    }
    assert {counts[base] - others[base] for base in recipes.BASES} == {12}


TRAINING = ("optimizer", "lr", "weight_decay", "schedule", "warmup", "clip_norm", "layer_decay", "head_first")


@pytest.mark.parametrize("file", ["screening", "transformers", "transformers_224", "mobilenet_recipes", "heads_scaled"])
def test_recorded_runs_had_the_settings_of_their_recipes(file):
    """A recipe sets everything that the defaults could change later."""
    compared = 0
    for run, lines in read_runs(Path(f"benchmarks/records/{file}.jsonl.gz")).items():
        if " @ " not in run.method:
            continue
        settings, recorded = METHODS[run.method], lines[0]["settings"]
        # Runs of earlier versions have no clipping, layer decay and head-first phase, and do not record them.
        off = {"clip_norm": 0.0, "layer_decay": 1.0, "head_first": 0}
        recorded = {**recorded, **{name: value for name, value in off.items() if recorded.get(name) is None}}
        assert {"method", "batch_norm", *TRAINING} <= set(settings), run
        assert settings["method"] != "medic++" or "inner_lr" in settings, run
        assert {name: recorded[name] for name in settings} == pytest.approx(settings), run  # records have seven digits
        compared += 1
    assert compared > 40


def test_rehearsals_of_a_target_leave_out_every_class_once():
    """Runs on two of the four domains of the digits share one third of the six known classes."""
    images, left_out = training.Images(), {}
    for target in ("printed,street", "handwritten,street", "blended,street"):
        settings = {"dataset": "digits", "method": "erm", "target": target}
        left_out[target] = training.leave_out_classes(settings, images)["unknown"]
    assert sorted(name for names in left_out.values() for name in names) == list("012345")
    assert training.leave_out_classes({"dataset": "digits", "target": "street"}, images) == {
        "dataset": "digits",
        "target": "street",
    }


def test_regret_and_order():
    values = {"a": (70.0, 0.9), "b": (72.0, 0.8), "c": (60.0, 0.7)}
    trials = [judges.Trial(name, oscr, {"judge": judged}, False) for name, (oscr, judged) in values.items()]
    assert judges.regret(trials, "judge") == 2.0
    assert judges.kendall(trials, "judge") == pytest.approx(1 / 3)
    assert judges.kendall([trials[0], trials[1]._replace(collapsed=True), trials[2]], "judge") == 1.0
    assert math.isnan(judges.kendall(trials[:1], "judge"))
    assert judges.bootstrap({0: 1.0, 1: 1.0}) == (1.0, 1.0)


def test_intervals_over_seeds_for_fixed_targets(monkeypatch, capsys):
    """A seed that lacks a target does not count."""
    differences = {("a", 0): 2.0, ("b", 0): 4.0, ("a", 1): 1.0, ("b", 1): 1.0, ("a", 2): 9.0}
    assert intervals.seed_interval(differences) == (pytest.approx(2), pytest.approx(12.7062, abs=1e-3), 2)
    records = "benchmarks/records/defaults_0.3.jsonl.gz"
    monkeypatch.setattr(sys, "argv", ["study", "versions", records, records])
    main()
    out = capsys.readouterr().out
    assert "| erm | oscr | 67.2 | 67.2 | +0.00 ± 0.00 | 5 |" in out
    assert "| medic++ over erm, after | oscr |" in out


def markdown_tables(section):
    """Return the tables of a section, each as a list of rows with the cells by title."""
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    for table in tables:
        rows = [[cell.strip().replace("−", "-") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        yield [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_the_speed_of_six_backbones_is_that_of_the_record():
    page = Path("docs/performance.md").read_text()
    section = page[page.index("### Six backbones") :].partition("\n## ")[0]
    tables = markdown_tables(section.partition("\n### ")[0])
    for table, file in zip(tables, ("throughput.json", "throughput_compiled.json"), strict=True):
        rows = json.loads((Path("benchmarks/records") / file).read_text())["rows"]
        measured = {row["what"]: row for row in rows}
        for cells in table:
            for method, memory in (("erm", cells["GiB of erm"]), ("medic++", cells["GiB of medic++"])):
                row = measured.pop(f"{cells['backbone']}, {cells['`--tune`']}, {cells['pixels']} px, {method}")
                assert cells[method] == f"{row['images/s']:,.0f} ({row['× bare']:.2f} ×)"
                assert memory == f"{row['peak GiB']:.1f}"
        assert all(", head," in name for name in measured)


STUDIES = {
    "Thresholds from left-out domains": (left_out_domains, [left_out_domains.curve_rows] * 2),
    "Scores and calibration in a new domain": (
        scores,
        [*(partial(scores.score_rows, method=name) for name in ("erm", "medic++") * 2), *[scores.calibration_rows] * 3],
    ),
    "What `medic watch` says in a new domain": (watch, [watch.alarm_rows] * 2 + [watch.error_rows] * 2),
    "Transformers at 224 pixels": (
        backbones,
        [backbones.result_rows, backbones.difference_rows, backbones.pair_rows],
    ),
    "MobileNetV2 at 160 pixels": (backbones, [backbones.result_rows]),
    "Every class unknown in turn": (class_splits, [class_splits.split_rows, class_splits.spread_rows]),
}


@pytest.mark.parametrize("title", STUDIES)
def test_tables_of_the_page_that_are_printed_from_records(title):
    """Every row of a section's tables is a row that the benchmark prints from the records named in the section."""
    module, makers = STUDIES[title]
    section = re.search(rf"^##+ {re.escape(title)}\n.*?(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]
    name = module.__name__.rpartition(".")[2]
    files = re.findall(rf"python -m benchmarks\.{name} (benchmarks/records/\S+)", section)
    everything = [packed.read_records(Path(file)) for file in files]
    studies = everything + [own for records in everything for _, own in packed.by_study(records)]
    tables = list(markdown_tables(section))
    assert len(tables) == len(makers)
    for table, maker in zip(tables, makers, strict=True):
        assert len(table) > 1
        assert any(all(any(row.items() <= other.items() for other in maker(own)) for row in table) for own in studies)


def test_the_curves_of_thresholds_that_the_page_shows(tmp_path):
    file = Path("benchmarks/records/left_out_domains.jsonl.gz")
    threshold_curves.main(file, tmp_path)
    assert sorted(re.findall(r"images/thresholds/(\S+)\)", PAGE)) == sorted(path.name for path in tmp_path.iterdir())
    records = [r for r in packed.read_records(file) if r["dataset"] == "pacs" and r["method"] == "erm"]
    axes = threshold_curves.draw(records).axes[1]
    drawn = {tuple(line.get_ydata()) for line in axes.lines}
    for seed in range(3):
        own = [r for r in records if (r["target"], r["rule"], r["seed"]) == ("art_painting", "source", seed)]
        assert tuple(100 * record["hscore"] for record in own) in drawn


SYSTEMS = {
    "## PACS with sketches as target": ("systems", "pacs tf_efficientnet_lite0 all None"),
    "## Heads on frozen features": ("probe", "pacs tf_efficientnet_lite0 head None"),
    "### ConvNet, SGD": ("systems", "digits convnet all None"),
    "### GFNet-H-Ti from scratch, Adam": ("systems", "digits gfnet_h_ti all None"),
    "### Noisy labels": ("systems", "digits convnet all 0.4"),
}
"""Sections of docs/systems.md: their records, and dataset, backbone, tune and share of noisy labels."""
OF_ALL_ROWS = ", lr 0.02"
"""An option that the page names above a table."""


@pytest.mark.parametrize("heading", SYSTEMS)
def test_the_systems_that_the_page_compares(heading):
    """The tables have a row for every system in the records."""
    page = (DOCS / "systems.md").read_text()
    section = page[page.index(f"{heading}\n") :]
    records, study = SYSTEMS[heading]
    everything = packed.read_records(Path(f"benchmarks/records/{records}.jsonl.gz"))
    own = [record for record in everything if " ".join(str(record.get(name)) for name in systems.TABLE) == study]
    header, *lines = section[section.index("    method  ") :].partition("\n\n")[0].splitlines()
    titles = re.split(r"\s{2,}", header.strip())
    printed = [" ".join(row[title] for title in titles) for row in systems.system_rows(own)]
    assert [" ".join(line.split()) for line in lines] == [line.replace(OF_ALL_ROWS, "") for line in printed]
    assert printed


def test_runs_that_were_trained_again_are_the_same():
    first, again = (
        {
            tuple(record[name] for name in (*backbones.GROUP, "target", "seed")): record
            for record in packed.read_records(Path(f"benchmarks/records/{name}.jsonl.gz"))
        }
        for name in ("backbones", "backbones_again")
    )
    assert len(again) == 17
    assert all(record == first[key] for key, record in again.items())
