"""The reports of a run and of a folder of runs, read as their script does, against the package's own numbers."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
import torch

import medic
from medic import openset
from medic.cli import main
from medic.report.run_page import write_report
from medic.report.table_page import write_table_report
from medic.tables.results import collect
from tests.runs.short import SHORT

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def folder(mini, four_runs):
    return four_runs(mini)


@pytest.fixture
def run(folder):
    return next(one for one in map(medic.Run, folder.iterdir()) if one.settings["method"] == "medic++")


def page_data(page):
    """The data that the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def at_threshold(data, part, threshold):
    """Shares of known images named correctly and of unknown ones rejected, from the groups of a page."""
    values = np.frombuffer(base64.b64decode(part["confidence"]), dtype="<f8")
    right = known = rejected = unknown = 0
    for label, prediction, start, count in part["groups"]:
        own = values[start : start + count]
        assert (np.diff(own) >= 0).all()
        accepted = int((own >= threshold).sum())
        if label < data["known"]:
            known, right = known + count, right + accepted * (label == prediction)
        else:
            unknown, rejected = unknown + count, rejected + count - accepted
    return right / known, rejected / unknown


class TestRun:
    def test_the_groups_are_what_a_threshold_needs(self, run, tmp_path):
        data = page_data(write_report(run, tmp_path / "page.html").read_text())
        output, label, _ = run.outputs("target")
        confidence, prediction = run.score(output), openset.predicted_class(output)
        (target, source) = data["parts"]
        assert (target["name"], source["name"]) == ("street", "sources")
        for threshold in (data["threshold"], *torch.quantile(confidence, torch.tensor([0.1, 0.5, 0.9]).double())):
            expected = openset.hscore(confidence, prediction, label, float(threshold))
            assert at_threshold(data, target, float(threshold)) == pytest.approx((expected.acc_k, expected.acc_u))
        assert run.metrics["hscore"] == openset.hscore(confidence, prediction, label, data["threshold"]).hscore
        assert sum(group[3] for group in source["groups"]) == sum(run.predictions["split"] != "target")

    def test_unknown_classes_have_their_names(self, run, tmp_path):
        data = page_data(write_report(run, tmp_path / "page.html").read_text())
        assert data["classes"] == [str(digit) for digit in range(10)]
        names, labels = run.predictions["class"], run.predictions["label"]
        assert set(names[labels < 0]) == {"6", "7", "8", "9"}
        assert (names[labels >= 0] == np.array(run.settings["known"])[labels[labels >= 0]]).all()

    def test_a_page_asks_for_nothing_and_runs_one_script(self, run, tmp_path):
        page = write_report(run, tmp_path / "page.html").read_text()
        assert not re.search(r'(src|href)="(?!data:)', page)
        assert re.search(r"default-src 'none'; img-src data:; .* script-src 'sha256-[^']+'", page)
        assert all(item["image"].startswith("data:image/webp") for item in page_data(page)["gallery"])
        assert len(page) < 6e6

    def test_names_are_shown_and_not_run(self, mini, run, tmp_path, monkeypatch):
        names = run.predictions["class"].astype("U40")
        names[names == "7"] = HOSTILE
        monkeypatch.setitem(run.__dict__, "predictions", {**run.predictions, "class": names})
        monkeypatch.setitem(run.__dict__, "settings", {**run.settings, "backbone": HOSTILE})
        page = write_report(run, tmp_path / "page.html").read_text()
        assert HOSTILE not in page
        assert HOSTILE in page_data(page)["classes"]
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page

    def test_images_are_read_below_the_named_root_alone(self, run, tmp_path, monkeypatch):
        from medic.data import BENCHMARKS

        bench = BENCHMARKS[run.settings["dataset"]]
        monkeypatch.setitem(BENCHMARKS, bench.name, bench.__class__(**{**bench.__dict__, "built_in": False}))
        page = write_report(run, tmp_path / "page.html").read_text()
        assert "image" not in page_data(page)["gallery"][0]
        assert f"medic report {run.path} --root DIR" in page

    def test_where_every_class_is_known(self, mini, tmp_path):
        closed = medic.train(dataset=mini, method="erm", known=list("0123456789"), output=tmp_path, **SHORT)
        page = write_report(closed, tmp_path / "page.html").read_text()
        assert "No image is of an unknown class." in page
        assert 'id="slider"' not in page
        assert len(page_data(page)["curves"]) == 2

    def test_several_targets_and_another_score(self, mini, tmp_path):
        settings = {**SHORT, "target": ["street", "printed"]}
        several = medic.train(dataset=mini, method="erm", score="energy", output=tmp_path, **settings)
        data = page_data(write_report(several, tmp_path / "page.html").read_text())
        assert [part["name"] for part in data["parts"]] == ["printed", "street", "sources"]
        assert not data["probability"]
        assert {item["part"] for item in data["gallery"]} == {0, 1}


class TestFolder:
    def test_cells_and_their_runs(self, folder, tmp_path):
        data = page_data(write_table_report(collect([folder]), "title", tmp_path / "page.html").read_text())
        ours, paper = data["tables"]
        assert [row["label"] for row in ours["rows"]] == ["erm", "medic++"]
        cell = ours["rows"][1]["cells"]["acc"]["street"]
        values = [ours["runs"][number]["values"][0] for number in cell["runs"]]
        assert cell["mean"] == pytest.approx(sum(values) / 2)
        assert {ours["runs"][number]["seed"] for number in cell["runs"]} == {0, 1}
        assert {run["iteration"] for run in ours["runs"]} >= {"averaged"}
        assert "averaged" not in {run["iteration"] for run in paper["runs"]}
        assert (data["base"], data["other"]) == (0, 1)
        (title, difference, low, high, _, pairs), *_ = ours["comparisons"]["0,1"]
        assert (title, pairs) == ("Acc", 2)
        assert low <= difference <= high

    def test_a_run_with_a_report_has_a_link(self, folder, tmp_path):
        path = next(folder.glob("*/config.yaml")).parent
        copy = tmp_path / path.name
        shutil.copytree(path, copy)
        write_report(medic.Run(copy), copy / "report.html")
        data = page_data(write_table_report(collect([copy]), "title", tmp_path / "page.html").read_text())
        assert [run["report"] for run in data["tables"][0]["runs"]] == [f"{path.name}/report.html"]

    def test_the_command(self, folder, tmp_path, capsys):
        assert main(["report", str(folder), "-o", str(tmp_path / "all.html")]) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / "all.html")
        path = next(folder.glob("*/config.yaml")).parent
        assert main(["report", str(path), "-o", str(tmp_path / "one.html")]) == 0
        assert (tmp_path / "one.html").exists()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["nowhere"], "run nowhere does not exist"),
            (["RUN", "--paper", "pacs-resnet50"], "--paper is for a folder"),
            (["FOLDER", "--root", "x"], "--root is for a single run"),
            (["FOLDER", "--paper", "pacs"], "unknown table"),
        ],
    )
    def test_mistakes(self, folder, capsys, arguments, words):
        places = {"FOLDER": str(folder), "RUN": str(next(folder.glob("*/config.yaml")).parent)}
        assert main(["report", *(places.get(argument, argument) for argument in arguments)]) == 2
        assert words in capsys.readouterr().err
