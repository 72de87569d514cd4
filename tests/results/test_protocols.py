"""Both protocols, value by value, against the tables in the documentation."""

from pathlib import Path

import pytest

from medic.config.files import load_yaml
from medic.config.protocols import PROTOCOLS, STATED
from medic.config.resolve import resolve
from medic.data import Generated, benchmark
from medic.results.paper_tables import reproduction

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
LABELS = {
    "default": "MEDIC++, default hyper-parameters, no binary head",
    "own": "MEDIC++, own hyper-parameters, with binary head",
}


def tables():
    """The rows of the tables of the page, without their headings."""
    bodies, rows = [], []
    for line in [*PAGE.read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            bodies.append(rows[2:])
            rows = []
    return bodies


DEFAULTS, RUNS, DOMAINBED, *_ = tables()


def written(cell):
    """The value of a cell, behind the calculation that leads to it."""
    return load_yaml(cell.rpartition("=")[2].strip())


def complete(user_settings):
    """The settings of a run on a benchmark of which no image exists."""

    def described(bench, root, seed):
        classes = bench.classes or tuple(f"class_{number:03}" for number in range(345))
        return Generated(bench.name, bench.domains, classes, None)

    return resolve(user_settings, described).config.settings


def check(settings, name, cell):
    wanted = written(cell)
    assert settings[name.strip("`")] == (pytest.approx(wanted) if isinstance(wanted, float) else wanted)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("row", RUNS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_value_of_a_run(row, protocol):
    run, name, paper, _, authors, _ = row
    method, _, rest = run.partition(" on ")
    dataset, *split = rest.split(", split ")
    settings = {"method": method, "dataset": dataset, "target": benchmark(dataset).domains[0], "protocol": protocol}
    settings |= {"split": split[0]} if split else {}
    check(complete(settings), name, {"paper": paper, "authors": authors}[protocol])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("row", DOMAINBED, ids=lambda row: "-".join(row[:3]))
def test_every_value_of_domainbed(row, protocol):
    label, column, name, paper, _, authors, _ = row
    (settings, *_) = reproduction("domainbed", protocol=protocol).runs()[LABELS.get(label, label), column]
    check(complete(settings), name, {"paper": paper, "authors": authors}[protocol])


def by_protocol(dataset):
    """The settings of MEDIC++ by default, by the paper and by the authors' code."""
    settings = {"method": "medic++", "dataset": dataset, "target": benchmark(dataset).domains[0]}
    return [complete(settings | protocol) for protocol in ({}, {"protocol": "paper"}, {"protocol": "authors"})]


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: row[0])
def test_every_value_that_differs_from_the_defaults(row):
    name, *cells = row
    dataset = "domainnet" if name == "`class_groups`" else "pacs"
    for settings, cell in zip(by_protocol(dataset), cells, strict=True):
        check(settings, name, cell.replace(":", " ").split()[0])


def test_the_defaults_differ_in_no_other_setting():
    several = [by_protocol(dataset) for dataset in ("pacs", "domainnet", "digits-dg")]
    differing = {name for ours, *others in several for name in ours if any(ours[name] != one[name] for one in others)}
    assert differing == {name.strip("`") for name, *_ in DEFAULTS} | {"protocol", "hparams"}


def test_the_paper_is_credited_with_what_it_states_only():
    """A setting is stated if the page gives a place in the paper for it, in some row."""
    stated = {name.strip("`") for _, name, _, place, *_ in RUNS if not place.startswith("–")}
    silent = {name.strip("`") for _, name, *_ in RUNS} - stated
    assert silent == {"momentum", "weight_decay", "bn_buffers", "batch_norm", "evaluate_every", "image_size", "augment"}
    assert stated <= STATED
    assert not silent & STATED


def test_what_is_given_goes_first():
    settings = {"dataset": "domainnet", "target": "real", "protocol": "authors"}
    overrides = {"ova_scale": 0.7, "iterations": 50, "sampling": "random", "class_groups": 4, "averaging": "ema"}
    resolved = complete({**settings, **overrides})
    assert {name: resolved[name] for name in overrides} == overrides


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_row_leaves_out_what_it_cannot_use(protocol):
    """Without a one-vs-all loss, without class splits, in one step."""
    settings = {"dataset": "pacs", "target": "sketch", "protocol": protocol}
    plain = complete({**settings, "method": "erm"})
    assert (plain["ova_scale"], plain["ova_floor"], plain["separate"], plain["class_groups"]) == (None,) * 4
    assert complete({**settings, "method": "medic++", "steps": 1})["separate"] is None
