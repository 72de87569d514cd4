"""A run that learned nothing says so everywhere, and a run that learned never does."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import medic
from medic.cli import main
from medic.data import Dataset
from medic.deploy.model_file import read_learned
from medic.errors import MedicError
from medic.results import paper_tables
from medic.sweeps.search import best_trial
from tests.data.pictures import picture
from tests.deploy.hub import NAME, serve_hub
from tests.messages import naming
from tests.small import register_mini

COMMON = {
    "dataset": "mini", "target": "street", "method": "erm", "seed": 1, "device": "cpu", "track": "none",
    "averaging": "none",
}  # fmt: skip
COLLAPSED = {"optimizer": "adam", "lr": 1, "iterations": 4, "evaluate_every": 2, "images": 12}
"""A rate at which the first update ruins the network."""
LEARNED = {"lr": 0.1, "iterations": 60, "evaluate_every": 30, "images": 36}
SAYING = "learned nothing"


def options(settings: dict[str, object]) -> list[str]:
    """The options of a command for some settings."""
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module", autouse=True)
def patch(mini_dataset: Dataset) -> Iterator[pytest.MonkeyPatch]:
    """Register the small benchmark, with records of chance levels."""
    with pytest.MonkeyPatch.context() as patch:
        register_mini(patch, mini_dataset)
        yield patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of a collapsed run and a run that learned, trained once."""
    folder = tmp_path_factory.mktemp("learned")
    sweep = {**COMMON, "variants": [COLLAPSED, LEARNED]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert main(["sweep", str(folder / "sweep.yaml"), "--executor", "here", "--output", str(folder / "runs")]) == 1
    return folder


@pytest.fixture
def runs(folder: Path) -> Path:
    """The folder of both runs."""
    return folder / "runs"


@pytest.fixture(scope="module")
def named(folder: Path) -> dict[bool, Path]:
    """Both runs, by whether they learned."""
    finished = [medic.Run(path.parent) for path in (folder / "runs").glob("*/done")]
    return {run.learned: run.path for run in finished}


@pytest.fixture
def collapsed(named: dict[bool, Path]) -> Path:
    return named[False]


@pytest.fixture
def learned(named: dict[bool, Path]) -> Path:
    return named[True]


def test_training_warns_once_and_at_the_end(tmp_path, capsys):
    command = ["train", *options({**COMMON, **COLLAPSED, "evaluate_every": 1}), "--output", str(tmp_path)]
    assert main(command) == 1
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("medic: note: ")]
    early, last = (line for line in notes if "chance" in line)
    for line in (early, last):
        assert "is not significantly above chance (16.7%)" in line
        assert line.endswith(
            "raise --iterations above 4 (default: 1000), lower --lr below 1 or omit it, add --clip-norm 1, "
            "or add --warmup N"
        )
    assert "iteration 1: " in early
    assert SAYING in last
    assert main(command) == 1  # nothing is left to train
    again = capsys.readouterr()
    assert last in again.err
    assert "medic calibrate" not in again.out
    assert early not in again.err


def test_training_that_learns_is_silent(tmp_path, capsys):
    assert main(["train", *options({**COMMON, **LEARNED}), "--output", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "chance" not in said.err
    assert SAYING not in said.out + said.err


def test_the_fact_is_in_the_records_and_in_the_model(collapsed, learned):
    run, other = medic.Run(collapsed), medic.Run(learned)
    assert run.description["provenance"]["learned"] is False
    assert "learned" not in other.description["provenance"]
    assert (run.learned, other.learned) == (medic.load(collapsed).learned, medic.load(learned).learned) == (False, True)
    assert run.record["validation"]["chance_acc"] == pytest.approx(1 / 6)
    frame = medic.load_runs(collapsed.parent).to_frame().set_index("run")
    assert dict(frame["learned"]) == {collapsed.name: False, learned.name: True}


def test_the_list_of_runs_has_a_state(runs, collapsed, learned, capsys):
    assert main(["runs", str(runs)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert SAYING in rows[collapsed.name]
    assert "finished" in rows[learned.name]
    assert main(["runs", str(runs), "--format", "json"]) == 0
    states = {run["run"]: run["state"] for run in json.loads(capsys.readouterr().out)}
    assert states == {collapsed.name: SAYING, learned.name: "finished"}


def test_a_model_file_is_not_needed_for_the_state(collapsed, tmp_path, capsys):
    copy = tmp_path / "runs" / "copy"
    copy.mkdir(parents=True)
    for name in ("config.json", "settings.json", "results.jsonl", "environment.json", "done"):
        (copy / name).write_bytes((collapsed / name).read_bytes())
    assert main(["runs", str(copy.parent), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == SAYING


def test_a_sweep_counts_it_and_fails(folder, collapsed, learned, capsys):
    sweep = ["sweep", str(folder / "sweep.yaml"), "--executor", "here", "--output", str(folder / "runs")]
    assert main(sweep) == 1
    assert f"; 1 run {SAYING} ({collapsed})\n" in capsys.readouterr().out
    assert main([*sweep, "--dry-run"]) == 0
    alone = ["sweep", *options({**COMMON, **LEARNED}), "--executor", "here", "--output", str(folder / "runs")]
    assert main(alone) == 0
    assert SAYING not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv", "json"])
def test_a_table_notes_the_cell(runs, collapsed, learned, capsys, form):
    assert main(["table", str(runs), "--format", form]) == 0
    said = capsys.readouterr()
    assert f"1 run {SAYING}" in said.out + said.err
    assert f"street ({collapsed.name})" in said.out + said.err
    assert f"({learned.name})" not in said.out + said.err
    assert main(["table", str(learned), "--format", form]) == 0
    said = capsys.readouterr()
    assert SAYING not in said.out + said.err


def test_a_comparison_of_rows_warns(runs, capsys):
    assert main(["table", str(runs), "--compare", "erm: batch_size 36", "erm: batch_size 12"]) == 0
    assert SAYING in capsys.readouterr().out


def test_pages(runs, collapsed, learned, tmp_path):
    for path, failed in ((collapsed, True), (learned, False), (runs, True)):
        page = tmp_path / "page.html"
        assert main(["report", str(path), "-o", str(page)]) == 0
        text = page.read_text()
        assert ('class="warning"' in text) == failed
        assert (SAYING in text) == failed
        if path != runs:
            assert ("erm learned 6 classes" in text) != failed
            assert ("not significantly above chance (16.7%)" in text) == failed


@pytest.fixture
def model(collapsed: Path, tmp_path: Path) -> Path:
    """The two files of the collapsed model, without its run."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.json", "model.safetensors"):
        (folder / name).write_bytes((collapsed / name).read_bytes())
    return folder


def test_calibrate_serve_and_push_refuse_it(collapsed, model, learned, capsys, monkeypatch):
    served = []
    monkeypatch.setattr(
        "medic.deploy.service.server.run", lambda *arguments: (served.append(arguments), arguments[1].close())
    )
    with serve_hub(monkeypatch) as hub:
        for words in (["calibrate"], ["serve", "--port", "0"], ["push", NAME]):
            for place in (collapsed, model):
                command = [words[0], str(place), *words[1:]]
                assert main(command) == 2
                (line,) = capsys.readouterr().err.splitlines()
                assert line.startswith(f"medic: error: the model in {place} {SAYING}: ")
                assert "lower learning rate" in line
                assert "--force" in line
                assert ("16.7%" in line) == (place == collapsed)
                assert not served
                assert not hub.files
            further = ["--threshold", "0.5"] if words[0] == "calibrate" else []
            for place in (collapsed, model):
                assert main([words[0], str(place), *words[1:], *further, "--force"]) == 0
                assert f"medic: note: the model in {place} {SAYING}" in capsys.readouterr().err
            assert main([words[0], str(learned), *words[1:]]) == 0
            said = capsys.readouterr()
            assert SAYING not in said.out + said.err
            served.clear()
            if words[0] == "push":
                assert SAYING not in hub.files["README.md"].decode()
            hub.files.clear()
        assert main(["push", str(collapsed), NAME, "--force"]) == 0
        assert SAYING in hub.files["README.md"].decode()


def test_a_calibrated_model_remembers(collapsed, tmp_path):
    command = ["calibrate", str(collapsed), "--threshold", "0.5", "--force", "--output", str(tmp_path / "model")]
    assert main(command) == 0
    assert not medic.load(tmp_path / "model").learned
    assert main(["calibrate", str(tmp_path / "model"), "--threshold", "0.4"]) == 2


def test_evaluate_predict_and_export_warn_once(collapsed, learned, tmp_path, capsys):
    picture(0).save(image := tmp_path / "image.png")
    for path in (collapsed, learned):
        for command in (
            ["evaluate", str(path)],
            ["evaluate", str(path), "--by", "domain", "--json"],
            ["predict", str(path), str(image), "--quiet"],
            ["export", str(path), "--format", "torch-export", "-o", str(tmp_path / "model.pt2")],
        ):
            assert main(command) == 0
            assert capsys.readouterr().err.count(SAYING) == (path == collapsed)


def test_a_value_of_another_type_is_an_error(model):
    described = json.loads((model / "model.json").read_text())
    for value in ("false", 0, None, [False]):
        changed = {**described, "provenance": {**described["provenance"], "learned": value}}
        del changed["checksum"]
        (model / "model.json").write_text(json.dumps(changed))
        with pytest.raises(MedicError, match=naming("learned true false")):
            medic.load(model)
    assert not read_learned({"provenance": {"learned": False}})
    for silent in ({}, {"provenance": None}, {"provenance": []}, {"provenance": {}}, {"provenance": {"learned": True}}):
        assert read_learned(silent)


def trial(value: float, learned: bool | None) -> SimpleNamespace:
    return SimpleNamespace(value=value, user_attrs={} if learned is None else {"learned": learned})


def test_a_trial_that_learned_nothing_wins_only_against_its_like():
    nothing, something = trial(0.9, learned=False), trial(0.4, learned=True)
    assert best_trial([nothing, something]) is something
    assert best_trial([trial(0.1, learned=False), nothing]) is nothing
    assert best_trial([something, nothing, earlier := trial(0.5, learned=None)]) is earlier


def test_a_search_in_which_no_trial_learns_fails(tmp_path, capsys):
    pytest.importorskip("optuna")
    command = [
        "search",
        *options({**COMMON, **COLLAPSED, "method": "vrex"}),
        "--trials",
        "1",
        "--output",
        str(tmp_path),
    ]
    assert main(command) == 1
    said = capsys.readouterr()
    assert "no trial learned anything" in said.err
    assert "trial 0: " in said.err
    assert "(learned nothing)" in said.err
    assert "best: trial 0" in said.out


def test_the_warning_survives_a_resumed_run(tmp_path, capsys):
    """The first evaluation at chance is among the records of the checkpoint."""
    short = {**COMMON, **COLLAPSED, "iterations": 2, "evaluate_every": 1, "output": str(tmp_path)}
    run = medic.train(**short, quiet=True, name="short")
    assert "iteration 1: " in capsys.readouterr().err
    longer = medic.train(extend=str(run.path), iterations=4, output=str(tmp_path), quiet=True)
    assert not longer.learned
    said = capsys.readouterr().err
    assert "if it stays there" not in said
    assert SAYING in said


def test_a_reproduced_table_says_it(tmp_path, capsys, monkeypatch):
    stage = paper_tables.BUILT_IN._replace(dataset="mini", backbone="small", split="mini-6-4")
    monkeypatch.setattr(paper_tables, "BUILT_IN", stage)
    short = ["--iterations", "1", "--batch-size", "2", "--track", "none", "--device", "cpu", "--executor", "here"]
    part = ["confidence-sketch", "--quick", "--only", "street", "--methods", "erm"]
    assert main(["reproduce", *part, *short, "--output", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert f"1 of 1 run is finished in {tmp_path}; 1 run {SAYING} ({tmp_path}" in said.err
    assert f"note: 1 run {SAYING}" in said.out
