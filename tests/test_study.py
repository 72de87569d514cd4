"""Studies in `benchmarks`: the learning rate of a run, and records that earlier versions wrote."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import study


def write(folder, rate, acc):
    run = {"method": "erm adam", "target": "a", "seed": 0, "lr": rate}
    record = {"iteration": 1, "validation": {"acc": acc}, "target": {"acc": acc}}
    lines = [{"run": run, "settings": {"lr": 5e-5}}, record]
    (folder / f"{rate}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_rate_of_a_method_is_that_of_its_runs(tmp_path):
    """An arm with its own rate ignores --rates; older records named the given one."""
    assert study.make_run("erm adam", "a", 0, 0.0054).lr == 5e-5
    assert study.make_run("erm", "a", 0, 0.0054).lr == 0.0054
    for rate in (0.0054, 0.016):
        write(tmp_path, rate, 0.5)
    ((run, lines),) = study.read_runs(tmp_path).items()
    assert (run.lr, len(lines)) == (5e-5, 2)


def test_seeds_of_a_target_count_once():
    differences = {("a", 0): 2.0, ("a", 1): 4.0, ("b", 0): 1.0}
    assert study.interval(differences) == (pytest.approx(2), pytest.approx(12.7062, abs=1e-3))
    assert str(study.interval({("a", 0): 2.0, ("a", 1): 4.0})) == "(3.0, nan)"


def test_rules_that_every_run_allows():
    found = {study.Run("erm", "a", 0, None): {"last": {}, "swad": {}}, study.Run("erm", "b", 0, None): {"last": {}}}
    assert study.Study(found).rules == ["last"]


PAGE = (Path(__file__).parents[1] / "docs" / "studies.md").read_text()
COMMANDS = re.findall(r"^ +python -m benchmarks\.study ((?:rules|rates|methods) .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_the_page_shows(command, monkeypatch, capsys):
    """They print the tables of the page from the records in the repository."""
    monkeypatch.setattr(sys, "argv", ["study", *shlex.split(command)])
    study.main()
    assert capsys.readouterr().out.count("\n|") >= 3
