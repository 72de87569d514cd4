"""The page about some runs, and the tables of runs in it and in the terminal."""

import re

import pytest

import medic
from medic.report.page import write_page
from medic.report.table import columns, print_run, print_runs, run_rows
from tests.runs.short import SHORT


@pytest.fixture
def run(mini, tmp_path):
    return medic.train(dataset=mini, method="medic++", output=tmp_path / "runs", **SHORT)


def test_a_page_stands_alone(run, mini, tmp_path):
    other = medic.train(dataset=mini, method="erm", output=tmp_path / "runs", **SHORT)
    page = write_page(tmp_path / "index.html", [run, other], "A & B", note="Only an example.").read_text()
    assert "<title>A &amp; B</title>" in page
    assert "<strong>Only an example.</strong>" in page
    assert not re.search(r"<script|src=\"(?!data:)|href=\"http", page)
    for one in (run, other):
        assert f'<a href="runs/{one.path.name}">' in page
    assert page.count("<svg") == 1
    for score in ("medic++, cls", "medic++, bcls", "erm, cls"):
        assert score in page
    shares = [int(share) for share in re.findall(r'class="share">(\d+) %', page)]
    assert len(shares) == 10
    for start in (0, 5):  # known and unknown images of each run, up to rounding
        known, unknown = shares[start : start + 3], shares[start + 3 : start + 5]
        assert 98 <= sum(known) <= 102
        assert 98 <= sum(unknown) <= 102


def test_a_page_where_every_class_is_known(mini, tmp_path):
    run = medic.train(dataset=mini, method="erm", known=list("0123456789"), output=tmp_path / "runs", **SHORT)
    (tmp_path / "pages").mkdir()
    page = write_page(tmp_path / "pages" / "index.html", [run], "all known").read_text()
    assert "All classes are known here" in page
    assert "known, classified correctly" in page
    assert f'<a href="../runs/{run.path.name}">' in page
    for absent in ("nan %", "<svg", "unknown, rejected", "0 unknown classes", "<strong>"):
        assert absent not in page


def test_rows_of_runs(run, capsys):
    (row,) = run_rows([run])
    target = run.record["targets"]["street"]
    assert row == {
        "target": "street", "method": "medic++", "Acc": f"{100 * target['acc']:.1f}",
        "H-score": f"{100 * target['hscore']:.1f}", "OSCR cls": f"{100 * target['oscr_c']:.1f}",
        "OSCR bcls": f"{100 * target['oscr_b']:.1f}",
    }  # fmt: skip
    print_run(run)
    assert "(sources)" in capsys.readouterr().out
    print_runs([run])
    assert "(sources)" not in capsys.readouterr().out


def test_both_rules(run, tmp_path, capsys):
    ours, theirs = run_rows([run], paper=True)
    best = run.best_evaluation
    assert list(ours)[:5] == ["target", "method", "rule", "weights", "Acc"]
    assert (ours["rule"], ours["weights"]) == ("default", "averaged")
    assert (theirs["rule"], theirs["weights"]) == ("paper", f"iteration {best['iteration']}")
    assert theirs["OSCR bcls"] == f"{100 * best['target']['oscr_b']:.1f}"
    print_runs([run], paper=True)
    assert len(capsys.readouterr().out.splitlines()) == 3
    pages = {
        paper: " ".join(write_page(tmp_path / "index.html", [run], "a page", paper=paper).read_text().split())
        for paper in (True, False)
    }
    assert "<td>default</td><td>averaged</td>" in pages[True]
    assert "Rule “paper”: the weights of the evaluation" in pages[True]
    assert "Rule" not in pages[False]
    for page in pages.values():
        assert re.search(r"<td>4</td><td>averaged</td>", page)  # of the table of runs


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
