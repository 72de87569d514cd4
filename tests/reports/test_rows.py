"""Tables of runs in the terminal."""

import pytest

import medic
from medic.reports.terminal import lenient, print_run
from tests.runs.short import SHORT


@pytest.fixture
def run(mini, tmp_path):
    return medic.train(dataset=mini, method="medic++", output=tmp_path / "runs", **SHORT)


def test_rows_of_a_run(run, capsys):
    target = run.record["targets"]["street"]
    print_run(run)
    titles, first, sources, *_ = capsys.readouterr().out.splitlines()
    assert titles.split() == "target method Acc H-score acc_k acc_u OSCR cls OSCR bcls".split()
    keys = ("acc", "hscore", "acc_k", "acc_u", "oscr_c", "oscr_b")
    assert first.split() == ["street", "medic++", *(f"{100 * target[key]:.1f}" for key in keys)]
    assert sources.startswith("(sources)")


@pytest.mark.parametrize(("known", "unknown", "hint"), [
    (0.8, 0.075, "only 7.5% of the unknown images are rejected"),
    (0.51, 0.499, "only 49.9% of the unknown images are rejected"),
    (0.8, 0.5, ""),
    (0.2, 0.3, ""),  # a stricter threshold would lose the last known images
    (0.3, 0.3, ""),
    (None, None, ""),  # no unknown images
])  # fmt: skip
def test_a_lenient_threshold(known, unknown, hint):
    metrics = {} if known is None else {"acc_k": known, "acc_u": unknown}
    assert lenient(metrics) == hint


def test_a_lenient_threshold_points_to_calibrate(run, capsys):
    record = run.record
    record["target"] |= {"acc_k": 0.9, "acc_u": 0.075}
    print_run(run)
    wanted = f"only 7.5% of the unknown images are rejected: compare other thresholds with `medic calibrate {run.path}`"
    assert capsys.readouterr().out.splitlines()[-1] == wanted


def test_other_scores_and_several_targets(mini, tmp_path, capsys):
    run = medic.train(
        dataset=mini, method="erm", score="energy", output=tmp_path, **{**SHORT, "target": ["street", "printed"]}
    )
    print_run(run)
    titles, *rows, sources = capsys.readouterr().out.splitlines()
    assert titles.endswith("OSCR bcls  OSCR energy")
    assert [row.split()[0] for row in rows] == [*run.record["targets"], "average"]
    mean = sum(values["acc"] for values in run.record["targets"].values()) / 2
    average = rows[-1].split()
    assert (average[2], average[-2]) == (f"{100 * mean:.1f}", "–")  # it has no one-vs-all head
    assert sources.startswith("(sources)")
