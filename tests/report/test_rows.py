"""Tables of runs in the terminal."""

import pytest

import medic
from medic.report.terminal import columns, lenient, print_run, print_runs, run_rows
from tests.runs.short import SHORT


@pytest.fixture
def run(mini, tmp_path):
    return medic.train(dataset=mini, method="medic++", output=tmp_path / "runs", **SHORT)


def test_rows_of_runs(run, capsys):
    (row,) = run_rows([run])
    target = run.record["targets"]["street"]
    assert row == {
        "target": "street", "method": "medic++", "Acc": f"{100 * target['acc']:.1f}",
        "H-score": f"{100 * target['hscore']:.1f}", "OSCR cls": f"{100 * target['oscr_c']:.1f}",
        "OSCR bcls": f"{100 * target['oscr_b']:.1f}",
    }  # fmt: skip
    print_run(run)
    titles, first, sources, *_ = capsys.readouterr().out.splitlines()
    assert titles.split()[2:6] == ["Acc", "H-score", "acc_k", "acc_u"]
    assert first.split()[3:6] == [f"{100 * target[key]:.1f}" for key in ("hscore", "acc_k", "acc_u")]
    assert sources.startswith("(sources)")
    print_runs([run])
    assert "(sources)" not in capsys.readouterr().out


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
    wanted = f"only 7.5% of the unknown images are rejected: `medic calibrate {run.path}` shows other thresholds"
    assert capsys.readouterr().out.splitlines()[-1] == wanted


def test_both_rules(run, tmp_path, capsys):
    ours, theirs = run_rows([run], paper=True)
    best = run.best_evaluation
    assert list(ours)[:5] == ["target", "method", "rule", "weights", "Acc"]
    assert (ours["rule"], ours["weights"]) == ("default", "averaged")
    assert (theirs["rule"], theirs["weights"]) == ("paper", f"iteration {best['iteration']}")
    assert theirs["OSCR bcls"] == f"{100 * best['target']['oscr_b']:.1f}"
    print_runs([run], paper=True)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_other_scores_and_several_targets(mini, tmp_path):
    run = medic.train(
        dataset=mini, method="erm", score="energy", output=tmp_path, **{**SHORT, "target": ["street", "printed"]}
    )
    assert columns([run])[-1].title == "OSCR energy"
    first, second, average = run_rows([run])
    assert {first["target"], second["target"], average["target"]} == {"street", "printed", "average"}
    assert average["OSCR bcls"] == "–"  # it has no one-vs-all head
    mean = sum(values["acc"] for values in run.record["targets"].values()) / 2
    assert average["Acc"] == f"{100 * mean:.1f}"
    rows = run_rows([run], paper=True)
    assert [row["rule"] for row in rows] == 3 * ["default"] + 3 * ["paper"]
    assert [row["weights"] for row in rows[:3]] == ["averaged", "averaged", ""]
