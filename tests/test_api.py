"""The public functions, each on real runs: what the commands do, from Python."""

import asyncio
import json
import shutil
from typing import get_type_hints

import numpy as np
import pytest

import medic
from medic.api.training import _values
from medic.cli import main
from medic.config.settings import SETTINGS
from medic.errors import MedicError
from tests.messages import naming
from tests.small import register_mini

QUICK = {"iterations": 2, "evaluate_every": 1, "batch_size": 4, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, mini_dataset):
    """Return the runs of a sweep: two methods, one of them with two seeds."""
    variants = [{"method": "erm", "seed": 0}, {"method": "medic++", "seed": 0}, {"method": "medic++", "seed": 1}]
    with pytest.MonkeyPatch.context() as patch:
        register_mini(patch, mini_dataset)
        output = tmp_path_factory.mktemp("runs")
        yield medic.sweep({"target": ["street"]}, variants, executor="here", dataset="mini", output=output, **QUICK)


def test_a_sweep_returns_its_runs(runs):
    assert sorted((run.method, run.config.run.seed) for run in runs) == [("erm", 0), ("medic++", 0), ("medic++", 1)]
    assert [run.path for run in medic.load_runs(runs[0].path.parent)] == sorted(run.path for run in runs)
    assert runs[:2].finished == runs.finished[:2]
    assert len(runs[:2].table("acc").rows) == 2


@pytest.mark.parametrize(("span", "options", "message"), [
    ({"sed": [1]}, {}, "'sed' 'seed'"),
    ({"output": ["a", "b"]}, {}, "output"),
    ({"seed": []}, {}, "seed values"),
    ({"seed": [0]}, {"seed": 5}, "seed span"),
    ({"seed": [0]}, {"variants": {"method": "erm"}}, "variants list"),
    ({"seed": [0]}, {"executor_options": {"adress": "x"}}, "'adress' 'address'"),
])  # fmt: skip
def test_mistakes_in_a_sweep(span, options, message, tmp_path):
    with pytest.raises(MedicError, match=naming(message)):
        medic.sweep(span, dataset="digits", target="street", output=tmp_path, **options)


def test_mistakes_in_an_executor_come_first(tmp_path):
    """Before the images are listed."""
    wrong = {"dataset": "pacs", "root": tmp_path / "nowhere", "output": tmp_path, "executor_options": {"adress": "x"}}
    for call in (lambda: medic.sweep({"seed": [0]}, **wrong), lambda: medic.probe(["erm"], **wrong)):
        with pytest.raises(MedicError, match=naming("'adress' 'address'")):
            call()


def test_a_probe_returns_its_runs(mini, tmp_path):
    options = {**QUICK, "dataset": mini, "target": "street", "output": tmp_path, "executor": "here", "retries": 0}
    (run,) = medic.probe("erm", [3], **options)
    assert (run.method, run.config.run.seed, run.config.model.tune) == ("erm", 3, "head")
    assert "oscr/knn" in run.metrics


def test_a_quiet_sweep_warns_of_failures(mini, tmp_path, caplog):
    options = {**QUICK, "dataset": mini, "target": "street", "method": "erm", "output": tmp_path, "clip_norm": 0.0}
    runs = medic.sweep({"lr": [1e30]}, executor="here", retries=0, **{**options, "iterations": 20})
    assert len(runs.failed) == 1
    assert "failed: erm → street" in caplog.text


def test_an_unfinished_run_is_not_called_damaged(runs, tmp_path):
    path = shutil.copytree(runs[0].path, tmp_path / "copy")
    (path / "done").unlink()
    (unfinished,) = medic.load_runs(tmp_path).unfinished
    assert unfinished.state == "unfinished"
    assert unfinished.config == runs[0].config
    for name in ("metrics", "record", "seconds", "learning_failure", "selected"):
        with pytest.raises(MedicError, match="unfinished"):
            getattr(unfinished, name)
    assert unfinished.written > 0
    shutil.copy(runs[0].path / "done", path)
    assert unfinished.state == "unfinished"  # as it was when it was opened
    with pytest.raises(MedicError, match="open it again"):
        _ = unfinished.metrics


def test_a_table(runs):
    table = runs.table(metrics=["acc", "oscr"])
    assert [row.method for row in table.rows] == ["erm", "medic++"]
    assert [metric.key for metric in table.metrics] == ["acc", "oscr"]
    frame = table.to_frame()
    assert len(frame) == 4
    assert frame.set_index(["method", "key"]).loc[("erm", "acc"), "mean"] == pytest.approx(
        100 * next(run for run in runs if run.method == "erm").metrics["acc"]
    )
    assert r"\begin{tabular}" in table.to_latex()
    with pytest.raises(MedicError, match=naming("'accuracy' 'acc'")):
        runs.table(metrics=["accuracy"])


def test_a_frame(runs):
    assert len(runs.to_frame()) == 3
    assert len(runs.to_frame(every=True)) == sum(len(run.records) for run in runs)


@pytest.mark.parametrize("kind", ["run", "runs", "table", "analysis"])
def test_a_notebook_shows_it(runs, kind):
    values = {
        "run": lambda: runs[0],
        "runs": lambda: runs,
        "table": lambda: runs.table(),
        "analysis": lambda: medic.analyze("errors", runs[0]),
    }
    page = values[kind]()._repr_html_()
    assert page.count("<table>") == page.count("</table>") >= 1
    assert ("data:image/png;base64," in page) == (kind == "analysis")


def test_reports(runs, tmp_path):
    assert medic.report(runs[0], tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert medic.report(runs, tmp_path / "runs.html").read_text().startswith("<!doctype html>")
    assert medic.report(runs[0].path) == runs[0].path / "report.html"
    assert medic.report(runs[0].path.parent) == runs[0].path.parent / "report.html"
    assert medic.report(runs) == runs[0].path.parent / "report.html"
    assert medic.report([runs[0].path, runs[1]], tmp_path / "two.html") == tmp_path / "two.html"
    with pytest.raises(MedicError, match=naming("path")):
        medic.report(list(runs))
    with pytest.raises(MedicError, match=naming("path")):  # not the page of the run
        medic.report(medic.load_runs(runs[0].path))
    with pytest.raises(MedicError, match=naming("--paper")):
        medic.report(runs[0], tmp_path / "run.html", paper="pacs-resnet50")
    with pytest.raises(MedicError, match=naming("--root")):
        medic.report(runs, tmp_path / "runs.html", root=tmp_path)


def test_analyses(runs):
    result = medic.analyze("errors", runs[0])
    assert json.dumps(result.as_dict())
    assert result.draw().axes
    assert medic.analyze("expansion").rows()
    for arguments, message in (
        (("eror", runs[0]), "'eror' 'errors'"),
        (("errors", runs), "'errors' one 3"),
        (("cost",), "'cost' runs"),
    ):
        with pytest.raises(MedicError, match=naming(message)):
            medic.analyze(*arguments)
    with pytest.raises(MedicError, match=naming("moments 'errors'")):
        medic.analyze("errors", runs[0], moments=3)


def test_a_calibrated_model(runs, tmp_path):
    run = runs[0]
    lenient, strict = (medic.calibrate(run, accept=share, force=True) for share in (0.95, 0.3))
    assert lenient.threshold.value < strict.threshold.value
    assert medic.calibrate(run.path, threshold=0.5, force=True).display_threshold == pytest.approx(0.5)
    images = np.zeros((4, 32, 32, 3), np.uint8)
    assert len(strict.predict(list(images))) == 4
    strict.save(tmp_path / "model")
    assert medic.load(tmp_path / "model").threshold == strict.threshold
    assert strict.description["calibration"]["known"] > 0
    with pytest.raises(MedicError, match=naming("learned nothing force=True")):
        medic.calibrate(run, accept=0.8)
    with pytest.raises(MedicError, match=naming("accept threshold cost labels images")):
        medic.calibrate(run, force=True)
    with pytest.raises(MedicError, match=naming("accept threshold one")):
        medic.calibrate(run, accept=0.8, threshold=0.5)


def test_an_export(runs, tmp_path):
    exported = medic.export(runs[0], tmp_path / "model.pt2", format="torch-export")
    assert exported.path == tmp_path / "model.pt2"
    assert exported.path.stat().st_size > 0
    assert exported.images > 0
    assert exported.difference < 1e-4
    with pytest.raises(MedicError, match=naming("images empty")):
        medic.export(runs[0], tmp_path / "model.pt2", images=[])
    with pytest.raises(MedicError, match=naming("'pickle' onnx")):
        medic.export(runs[0], tmp_path / "model", format="pickle")
    with pytest.raises(MedicError, match=naming("images")):
        medic.export(runs[0].predictor, tmp_path / "model.onnx")


def test_a_service_beyond_this_machine_needs_a_token(runs):
    for options, message in (({}, "0.0.0.0 token"), ({"token": ""}, "token"), ({"token": "a b"}, "token")):
        with pytest.raises(MedicError, match=naming(message)):
            medic.serve(runs[0], host="0.0.0.0", **options)
    with pytest.raises(MedicError, match=naming("port 70000")):
        medic.serve(runs[0], port=70000)


def test_lists():
    assert {entry["method"] for entry in medic.list_methods()} >= {"erm", "medic++", "arpl"}
    assert {entry["dataset"] for entry in medic.list_datasets()} >= {"digits", "pacs"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: medic.calibrate(run.model, accept=0.8), "Classifier Predictor"),
        (lambda run: medic.calibrate(run, accept="0.8"), "'0.8' number"),
        (lambda run: medic.calibrate(run, accept=0.8, labels=[], force=True), "labelled empty"),
        (lambda run: medic.calibrate(run, accept=0.8, labels=["a.png"], force=True), "'a.png' class"),
        (lambda run: medic.export(run.model, "x.onnx", images=["x.png"]), "Classifier Predictor"),
        (lambda run: medic.report([None], "page.html"), "NoneType directory"),
        (lambda run: medic.report(run, "gone/page.html"), "gone/page.html folder"),
        (lambda run: medic.load_runs(["runs"]), "list load_runs"),
        (lambda run: medic.analyze("errors", [None]), "NoneType directory"),
        (lambda run: medic.analyze("gradients", run, moment=3), "'moment' 'moments'"),
        (lambda run: medic.sweep({"backbone": print}, method="erm"), "backbone MODULE:FUNCTION"),
        (lambda run: medic.serve(run, device="tpu", port=0, force=True), "'tpu' cuda"),
        (lambda run: medic.serve(run, host="0.0.0.0"), "0.0.0.0 MEDIC_TOKEN"),
        (lambda run: medic.serve(run, host="no.such.host.invalid", token="x"), "no.such.host.invalid --host"),
        (lambda run: medic.serve(run, replicas=2), "--replicas --ray"),
        (lambda run: medic.push(None, "a/b"), "NoneType Predictor"),
    ],
)
def test_mistakes(runs, call, message, monkeypatch):
    monkeypatch.delenv("MEDIC_TOKEN", raising=False)
    with pytest.raises(MedicError, match=naming(message)):
        call(runs[0])


def test_a_service_needs_its_own_process(runs):
    async def cell():
        medic.serve(runs[0], port=0, force=True)

    with pytest.raises(MedicError, match=naming("process medic serve")):
        asyncio.run(cell())


def test_values_of_a_span_in_any_collection():
    assert [_values(value) for value in (range(2), (0, 1), np.arange(2), {0: None}.keys(), "each", 3)] == [
        [0, 1], [0, 1], [0, 1], [0], "each", 3
    ]  # fmt: skip


def test_a_predictor_on_another_device_is_a_copy(runs):
    predictor = runs[0].predictor
    moved = predictor.to("meta")
    assert next(moved.network.parameters()).is_meta
    assert not next(predictor.network.parameters()).is_meta
    assert predictor.to("cpu").network is predictor.network


def test_a_threshold_needs_no_predictions(runs, tmp_path):
    shutil.copytree(runs[0].path, tmp_path / "run")
    (tmp_path / "run" / "predictions.npz").write_bytes(b"damaged")
    assert medic.calibrate(tmp_path / "run", threshold=0.5, force=True).display_threshold == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["train", "sweep", "report", "analyze", "calibrate", "export", "push", "serve"])
def test_types_of_arguments_can_be_read(name):
    assert set(get_type_hints(getattr(medic, name))) >= {"return"}


@pytest.mark.parametrize(
    "command",
    ["serve gone", "serve gone --host 0.0.0.0", "push gone a/b", "export gone", "calibrate gone", "predict gone x.png",
     "analyze gradents gone", "analyze errors gone"],
)  # fmt: skip
def test_mistakes_are_found_before_code_is_executed(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("import pathlib; pathlib.Path('executed').touch()")
    assert main([*command.split(), "--import", "own.py"]) == 2
    assert not (tmp_path / "executed").exists()


def test_the_arguments_of_train_are_the_settings():
    """So that editors complete them and type checkers know them."""
    assert medic.train.__annotations__["settings"].__args__ == (medic.Settings,)
    assert set(medic.Settings.__annotations__) == set(SETTINGS)
