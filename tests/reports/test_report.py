"""The reports of a run and of a folder of runs, read as their script does, against the package's own numbers."""

import base64
import copy
import io
import itertools
import json
import platform
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import medic
from medic import openset
from medic.analysis import style
from medic.cli import main
from medic.metrics import METRICS
from medic.reports import table_page
from medic.reports.pages import ASSETS
from medic.reports.run_page import write_report
from medic.reports.table_page import _content, write_table_report
from medic.reports.thumbnails import _data_url
from medic.results.runs import find_runs
from medic.results.tabulate import tabulate
from tests.results.written import write_run
from tests.runs.short import SHORT

HOSTILE = "<script>alert(1)</script>"
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
VISION = {
    "full": np.eye(3),
    # Machado, Oliveira and Fernandes (2009), severity 1
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Matrices that map linear RGB to the RGB that a colour-blind reader sees."""


def colours(dark):
    """The colours of the style sheet by name."""
    light, _, night = (ASSETS / "style.css").read_text().partition("@media")
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", night if dark else light))


def linear(colour):
    """Linear RGB of a colour such as #0072b2."""
    channels = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB, for a white of D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    share = to_xyz @ np.clip(rgb, 0, 1) / to_xyz.sum(1)
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.fixture
def folder(mini, four_runs):
    return four_runs(mini)


@pytest.fixture
def run(folder):
    return next(one for one in map(medic.Run, folder.iterdir()) if one.settings["method"] == "medic++")


def page_data(page):
    """The data that the script of a page reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def unpacked(text):
    """The numbers that a page has as text."""
    return np.frombuffer(base64.b64decode(text), dtype="<f8")


def changed(run, measured=lambda record: None, **predictions):
    """A run with other records and predictions."""
    records = copy.deepcopy(run.records)
    for record in records:
        measured(record)
    run.__dict__ |= {"records": records, "predictions": {**run.predictions, **predictions}}
    return run


def at_threshold(data, part, threshold):
    """Shares of known images named correctly and of unknown ones rejected, from the groups of a page."""
    values = unpacked(part["confidence"])
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
        chosen = unpacked(data["threshold"])[0]
        for threshold in (chosen, *torch.quantile(confidence, torch.tensor([0.1, 0.5, 0.9]).double())):
            expected = openset.hscore(confidence, prediction, label, float(threshold))
            assert at_threshold(data, target, float(threshold)) == pytest.approx((expected.acc_k, expected.acc_u))
        assert run.metrics["hscore"] == openset.hscore(confidence, prediction, label, chosen).hscore
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
        model = replace(run.config.model, backbone=HOSTILE)
        monkeypatch.setitem(run.__dict__, "config", replace(run.config, model=model))
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
        data = page_data(page)
        assert "All of them belong to known classes." in page
        assert "does not measure how well the model rejects unknown images" in page
        assert "The last column counts known images that the model rejects." in page
        assert 'id="slider"' in page
        assert unpacked(data["threshold"]).tolist() == [closed.predictor.threshold.value]
        assert len(data["curves"]) == 6
        assert len(data["gallery"]) > 10
        assert '<i class="swatch"></i>unknown' not in page

    def test_without_a_threshold(self, run, tmp_path):
        """A model file without one: counts are those before rejection."""
        kept = run.predictions["label"] >= 0
        run = changed(
            run,
            lambda record: (record.update(target={"acc": 0.5}), record.pop("source", None)),
            **{name: values[kept] for name, values in run.predictions.items()},
        )
        run.__dict__["description"] = {**run.description, "threshold": None}
        page = write_report(run, tmp_path / "page.html").read_text()
        assert "Number of images, before rejection." in page
        assert 'id="slider"' not in page
        assert page_data(page)["threshold"] is None

    def test_several_targets_and_another_score(self, mini, tmp_path):
        settings = {**SHORT, "target": ["street", "printed"]}
        several = medic.train(dataset=mini, method="erm", score="energy", output=tmp_path, **settings)
        page = write_report(several, tmp_path / "page.html").read_text()
        assert "images from printed and street, domains it has never seen." in page
        assert "averages over the 2 domains" in page
        data = page_data(page)
        assert [part["name"] for part in data["parts"]] == ["printed", "street", "sources"]
        assert not data["probability"]
        assert {item["part"] for item in data["gallery"]} == {0, 1}

    def test_unknown_classes_in_the_sources_alone(self, run, tmp_path):
        kept = (run.predictions["split"] != "target") | (run.predictions["label"] >= 0)
        run = changed(
            run,
            lambda record: record.update(target={"acc": 0.5}),
            **{name: values[kept] for name, values in run.predictions.items()},
        )
        page = write_report(run, tmp_path / "page.html").read_text()
        data = page_data(page)
        assert 'id="slider"' in page
        assert unpacked(data["threshold"])[0] == run.record["source"]["threshold"]
        assert not any("OSCR" in curve["title"] for curve in data["curves"])

    def test_numbers_that_are_not_finite(self, run, tmp_path):
        def measured(record):
            record["loss"] = float("nan")
            record["target"]["hscore"] = float("nan")
            if record["iteration"] == 2:
                del record["validation"]["loss"]

        page = write_report(changed(run, measured), tmp_path / "page.html").read_text()
        validation, shares, *_ = page_data(page)["curves"]
        assert (validation["title"], validation["series"][0]["y"][0]) == ("Validation loss: cross-entropy", None)
        assert "H-score, target" not in [line["name"] for line in shares["series"]]
        assert "is the H-score, –." in page

    def test_losses_have_names(self, run, tmp_path):
        data = page_data(write_report(run, tmp_path / "page.html").read_text())
        titles = [curve["title"] for curve in data["curves"][:2]]
        assert titles == ["Training loss: ce+ova", "Validation loss: cross-entropy"]

    def test_risk_and_reliability(self, run, tmp_path):
        *_, risk, reliable = page_data(write_report(run, tmp_path / "page.html").read_text())["curves"]
        rows = run.predictions["split"] == "target"
        label, confidence = (run.predictions[name][rows] for name in ("label", "confidence"))
        right = run.predictions["logits"][rows].argmax(1) == label
        (target,) = risk["series"]
        assert target["y"][-1] == pytest.approx(100 * (1 - right.mean()))
        assert target["name"] == f"street: AURC {100 * run.metrics['aurc']:.1f}"
        assert risk["title"].endswith(f"({target['name']})")
        assert [line["name"].split(":")[0] for line in reliable["series"]] == [
            "perfect calibration",
            "street",
            "sources",
        ]
        known = label >= 0
        error = openset.ece(1 / (1 + np.exp(-confidence[known])), right[known])
        assert reliable["series"][1]["name"] == f"street: ECE {100 * error:.1f}"
        assert run.metrics["ece/bcls"] == pytest.approx(error)

    def test_full_spectrum(self, run, tmp_path):
        curves = page_data(write_report(run, tmp_path / "page.html").read_text())["curves"]
        (spectrum,) = [curve for curve in curves if curve["title"].startswith("Full spectrum")]
        known = f"street, known: AUROC {100 * run.metrics['domain_auroc']:.1f}"
        overall = (100 * run.metrics[name] for name in ("fs_auroc", "fs_fpr95"))
        assert spectrum["title"].endswith("(all domains: AUROC {:.1f}, FPR95 {:.1f})".format(*overall))
        names = [line["name"] for line in spectrum["series"]]
        assert names[:2] == ["sources, known", known]
        assert [name.split(":")[0] for name in names[2:]] == ["street, unknown", "sources, unknown"]
        for line in spectrum["series"]:
            assert (line["x"][0], line["y"][0], line["x"][-1], line["y"][-1]) == (0, 0, 100, 100)
            area = np.trapezoid(line["y"], line["x"]) / 1e4
            named = float(line["name"].rpartition(" ")[2]) if "AUROC" in line["name"] else 50.0
            assert 100 * area == pytest.approx(named, abs=1.0)

    def test_a_colour_has_one_meaning(self, run, tmp_path):
        """Only accuracies have the colour of correct images; no line has that of errors or unknown images."""
        curves = page_data(write_report(run, tmp_path / "page.html").read_text())["curves"]
        lines = [line for curve in curves for line in curve["series"]]
        assert [line["name"] for line in lines if line["colour"] == "var(--known)"] == [
            "Acc, target",
            "Acc, validation",
        ]
        assert {line["colour"] for line in lines} == {"var(--known)", "var(--ink)", "var(--soft)"}

    def test_colours_are_those_of_figures(self):
        light = colours(dark=False)
        assert [light[name] for name in ("known", "wrong", "unknown")] == [style.KNOWN, style.WRONG, style.UNKNOWN]

    @pytest.mark.parametrize("dark", [False, True])
    def test_everybody_can_tell_colours_apart(self, dark):
        """Contrast to the page is above 3; in Lab, colours are 20 apart for colour-blind readers too."""
        palette = colours(dark)
        shades = [palette[name] for name in ("known", "wrong", "unknown")]
        for shade in shades:
            low, high = sorted(float(LUMINANCE @ linear(one)) for one in (shade, palette["paper"]))
            assert (high + 0.05) / (low + 0.05) > 3
        for vision in VISION.values():
            for one, other in itertools.combinations(shades, 2):
                assert np.linalg.norm(lab(vision @ linear(one)) - lab(vision @ linear(other))) > 20

    def test_a_name_of_two_classes(self, run, tmp_path):
        names = run.predictions["class"].copy()
        names[names == "9"] = "0"
        data = page_data(write_report(changed(run, **{"class": names}), tmp_path / "page.html").read_text())
        assert data["classes"] == ["0", "1", "2", "3", "4", "5", "0", "6", "7", "8"]
        groups = data["parts"][0]["groups"]
        assert [sum(group[3] for group in groups if group[0] == label) for label in (0, 6)] == [10, 10]

    def test_a_record_without_a_threshold(self, run, tmp_path):
        def measured(record):
            record["target"].pop("threshold")
            record.pop("source")

        data = page_data(write_report(changed(run, measured), tmp_path / "page.html").read_text())
        assert unpacked(data["threshold"])[0] == run.description["threshold"]["value"]
        run.__dict__["description"] = {**run.description, "threshold": None}
        assert page_data(write_report(run, tmp_path / "page.html").read_text())["threshold"] is None

    def test_a_rule_that_uses_the_target(self, run, tmp_path):
        page = write_report(run, tmp_path / "page.html").read_text()
        assert "The rule does not use the target." in page
        run = changed(run, lambda record: record["target"].update(threshold_rule="oracle-10"))
        page = write_report(run, tmp_path / "page.html").read_text()
        assert "The rule uses target labels" in page
        assert "The rule does not use the target" not in page

    def test_every_class_is_in_the_gallery(self, run, tmp_path):
        arrays = run.predictions
        logits = arrays["logits"].copy()
        logits[:, 0] += 100 * (np.arange(len(logits)) % 2)  # many mistakes, of every class
        data = page_data(write_report(changed(run, logits=logits), tmp_path / "page.html").read_text())
        wrong = {item["label"] for item in data["gallery"] if item["label"] < 6 and item["label"] != item["prediction"]}
        assert wrong >= {1, 2, 3, 4, 5}
        assert {item["label"] for item in data["gallery"]} >= {6, 7, 8, 9}
        assert len(unpacked(data["confidence"])) == len(data["gallery"])

    def test_thumbnails_keep_their_proportions(self):
        url = _data_url(np.zeros((3, 128, 128), np.uint8), (20, 40))
        assert Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size == (128, 64)

    def test_the_environment_is_named(self, run, tmp_path):
        page = write_report(run, tmp_path / "page.html").read_text()
        environment = json.loads((run.path / "environment.json").read_text())
        for text in (
            environment["precision"],
            f"torch {environment['packages']['torch']}",
            f"{platform.machine()} CPU",
        ):
            assert f">{text}" in page or f", {text}" in page


class TestFolder:
    def test_cells_and_their_runs(self, folder, tmp_path):
        data = page_data(write_table_report(find_runs([folder]), "title", tmp_path / "page.html").read_text())
        ours, paper = data["tables"]
        assert [row["label"] for row in ours["rows"]] == ["erm", "medic++"]
        row = ours["rows"][1]
        runs = [ours["runs"][number] for number in row["runs"]["street"]]
        assert row["cells"]["acc"]["street"]["mean"] == pytest.approx(sum(run["values"][0] for run in runs) / 2)
        assert {run["seed"] for run in runs} == {0, 1}
        assert {run["iteration"] for run in ours["runs"]} >= {"averaged"}
        assert "averaged" not in {run["iteration"] for run in paper["runs"]}
        assert (data["base"], data["other"]) == (0, 1)
        assert "model selection: evaluation" in paper["notes"]
        assert "model selection: evaluation" not in ours["notes"]

    def test_a_number_that_is_not_finite(self, tmp_path):
        write_run(tmp_path / "runs", "one run", "erm", "a", 0, (float("nan"), 0.1), user_settings={})
        write_run(tmp_path / "runs", "other", "medic++", "a", 0, (0.5, 0.1), user_settings={})
        page = write_table_report(find_runs([tmp_path / "runs"]), "title", tmp_path / "page.html").read_text()
        erm, medic_row = page_data(page)["tables"][0]["rows"]
        assert erm["cells"]["acc"]["a"] == {"mean": None, "error": None, "text": "–"}
        assert medic_row["cells"]["acc"]["a"]["text"] == "50.0"
        assert page_data(page)["tables"][0]["runs"][0]["command"] == f"medic report '{tmp_path}/runs/one run'"

    def test_a_row_of_the_paper_reads_its_own_keys(self, tmp_path):
        write_run(tmp_path / "runs", "run", "erm", "a", 0, (0.9, 0.1), user_settings={})
        table = tabulate(find_runs([tmp_path / "runs"]).finished, metrics=[METRICS["oscr"]])
        row = replace(table.rows[0], keys={"oscr": "acc"})
        content = _content(replace(table, rows=(row,)), table.metrics, None, tmp_path)
        assert content["runs"][0]["values"] == [content["rows"][0]["cells"]["oscr"]["a"]["mean"]] == [90.0]

    def test_the_direction_of_a_metric(self, tmp_path, monkeypatch):
        monkeypatch.setattr(table_page, "FURTHER", (METRICS["step_time"],))
        write_run(tmp_path / "runs", "run", "erm", "a", 0, (0.5, 0.1), user_settings={})
        page = write_table_report(find_runs([tmp_path / "runs"]), "title", tmp_path / "page.html").read_text()
        metrics = [(one["key"], one["lower"], one["percent"]) for one in page_data(page)["metrics"]]
        assert (metrics[0], metrics[-1]) == (("acc", False, True), ("step_time", True, False))

    def test_a_run_with_a_report_has_a_link(self, folder, tmp_path):
        path = next(folder.glob("*/config.json")).parent
        moved = tmp_path / path.name
        shutil.copytree(path, moved)
        write_report(medic.Run(moved), moved / "report.html")
        data = page_data(write_table_report(find_runs([moved]), "title", tmp_path / "page.html").read_text())
        assert [run["report"] for run in data["tables"][0]["runs"]] == [f"{path.name}/report.html"]

    def test_the_command(self, folder, tmp_path, capsys):
        assert main(["report", str(folder), "-o", str(tmp_path / "all.html")]) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / "all.html")
        path = next(folder.glob("*/config.json")).parent
        assert main(["report", str(path), "-o", str(tmp_path / "one.html")]) == 0
        assert (tmp_path / "one.html").exists()
        assert main(["report", str(path), "-o", str(tmp_path / "no" / "one.html")]) == 2
        said = capsys.readouterr().err
        assert f"--output {tmp_path}/no/one.html cannot be written: create the folder {tmp_path}/no" in said

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["nowhere"], "run nowhere does not exist"),
            (["RUN", "--paper", "pacs-resnet50"], "--paper requires a folder"),
            (["FOLDER", "--root", "x"], "--root requires a single run"),
            (["FOLDER", "--paper", "pacs"], "unknown table"),
        ],
    )
    def test_mistakes(self, folder, capsys, arguments, words):
        places = {"FOLDER": str(folder), "RUN": str(next(folder.glob("*/config.json")).parent)}
        assert main(["report", *(places.get(argument, argument) for argument in arguments)]) == 2
        assert words in capsys.readouterr().err


def test_a_run_without_a_target(mini, tmp_path):
    """Held-out images of every domain are its parts, and no domain is called unseen."""
    short = {"iterations": 2, "batch_size": 2, "device": "cpu", "quiet": True}
    run = medic.train(dataset=mini, method="erm", target="none", output=tmp_path, **short)
    page = write_report(run, tmp_path / "page.html", None).read_text()
    assert "held-out images from the same domains." in page
    assert "never seen" in page.split("from the same domains")[1]  # the classes
    assert '"name": "street"' in page
    assert '"name": "sources"' not in page
