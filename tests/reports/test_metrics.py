"""The registry of metrics has every number that a run records."""

import subprocess
import sys

import medic
from medic.metrics import METRICS, find_metric
from medic.results.runs import find_runs
from medic.results.table import heading
from medic.results.tabulate import metric_keys, tabulate
from tests.results.written import write_run
from tests.runs.short import SHORT

FAMILIES = ("oscr/",)


def test_every_entry_is_recorded(mini, tmp_path):
    """A metric without an entry is shown under its key; `domainbed` is computed by tables."""
    medic.train(dataset=mini, method="medic++", output=tmp_path, **SHORT)
    (result,) = find_runs([tmp_path]).finished
    recorded = {key for key in metric_keys([result]) if not key.startswith(FAMILIES)}
    recorded |= result.records[-1]["validation"].keys()
    assert recorded >= METRICS.keys()


def test_keys_of_families_and_unknown_keys():
    assert (find_metric("oscr/knn").title, find_metric("oscr/knn").scale) == ("OSCR knn", 100.0)
    assert find_metric("hscore/fixed").title == "H-score fixed"
    assert find_metric("ccr@fpr=0.2").title == "CCR@FPR=0.2"
    assert (find_metric("new").title, find_metric("new").key) == ("new", "new")
    assert find_metric("acc") is METRICS["acc"]


def test_scale_and_direction(tmp_path):
    write_run(tmp_path, "run", "erm", "a", 0, (0.5, 0.5))
    table = tabulate(find_runs([tmp_path]).finished, metrics=[METRICS["acc"], METRICS["step_time"]])
    assert [table.entry(table.rows[0], "a", metric).mean for metric in table.metrics] == [50.0, 0.1]
    assert [heading(metric) for metric in table.metrics] == ["Acc", "seconds per iteration ↓"]


def test_a_table_does_not_import_torch(tmp_path):
    write_run(tmp_path, "run", "erm", "a", 0, (0.5, 0.5))
    write_run(tmp_path, "other", "erm", "a", 1, (0.5, 0.5))
    code = f"""
import sys
from medic.cli import main
assert main(["table", {str(tmp_path)!r}]) == 0
assert main(["table", {str(tmp_path)!r}, "--explain", "erm", "a"]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
