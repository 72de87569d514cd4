"""A method in a file outside of the package, and one in an installed package: trained, resumed, evaluated, tabled."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import medic
from medic.cli import main
from medic.config import imports
from medic.config.files import read_settings, to_yaml
from medic.errors import MedicError
from medic.methods import METHOD_GROUP
from tests.messages import naming
from tests.plugins import CALM, forgotten


@pytest.fixture(autouse=True)
def _forgotten():
    with forgotten():
        yield


@pytest.fixture
def calm(tmp_path):
    file = tmp_path / "calm.py"
    file.write_text(CALM)
    return file


@pytest.fixture
def settings(folder, tmp_path, calm):
    return {
        **folder, "imports": [str(calm)], "method": "calm", "output": str(tmp_path / "runs"), "track": "none",
        "evaluate_every": 1,
    }  # fmt: skip


def forget():
    """Forget the plug-in, as a new process would."""
    for registry in imports._REGISTRIES.values():
        for name in ("calm", "confidence", "half"):
            registry.pop(name, None)
    imports._executed.clear()
    imports._owners.clear()


def options(settings):
    names = {"imports": "import"}
    return [
        part
        for name, value in settings.items()
        for part in (
            f"--{names.get(name, name).replace('_', '-')}",
            *(map(str, value) if isinstance(value, list) else [str(value)]),
        )
    ]


@pytest.mark.slow
def test_a_method_in_a_file_is_trained_resumed_evaluated_and_tabled(settings, calm, tmp_path, capsys, monkeypatch):
    many = {**settings, "iterations": 60, "checkpoint_every": 1, "evaluate_every": 60, "averaging": "none"}
    command = [sys.executable, "-m", "medic", "train", *options(many)]
    monkeypatch.chdir(tmp_path)
    command[command.index(str(calm))] = "calm.py"  # a relative path is recorded as an absolute one
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while all(int(file.read_text()) < 3 for file in (tmp_path / "runs").glob("*/checkpoint/iteration")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert main(["train", *options(many)]) == 0
    out, err = capsys.readouterr()
    assert "resumes at iteration" in err
    (path,) = (tmp_path / "runs").iterdir()
    run = medic.Run(path)
    assert (run.settings["method"], run.settings["penalty"]) == ("calm", "confidence")
    assert run.settings["imports"] == read_settings(path / "settings.json")["imports"] == [str(calm)]
    assert run.plugins == [(str(calm), hashlib.sha256(CALM.encode()).hexdigest())]

    forget()  # in a process that has not executed the file the run can be read without its code,
    calm.rename(tmp_path / "moved.py")
    assert main(["table", str(tmp_path / "runs")]) == 0
    assert "calm" in capsys.readouterr().out
    assert main(["evaluate", str(path)]) == 0
    assert main(["report", str(path)]) == 0
    assert medic.load(path).predict([next(Path(settings["root"]).rglob("*.png"))])
    capsys.readouterr()
    # evaluated again if the code is named, wherever it is now,
    assert main(["evaluate", str(path), "--rerun", "--device", "cpu"]) == 2
    assert f"--import {calm}" in capsys.readouterr().err
    assert main(["evaluate", str(path), "--rerun", "--device", "cpu", "--import", str(tmp_path / "moved.py")]) == 0
    out, err = capsys.readouterr()
    assert "half" in out
    assert "changed" not in err
    # and trained again from its configuration.
    (tmp_path / "moved.py").rename(calm)
    assert main(["train", "--config", str(path / "config.json")]) == 0
    assert f"{path} is finished" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_of_a_sweep_execute_the_file(settings, tmp_path, capsys):
    del settings["target"]
    file = tmp_path / "sweep.yaml"
    file.write_text(to_yaml({**settings, "span": {"target": ["y", "z"]}}))
    assert main(["sweep", str(file), "--jobs", "1"]) == 0
    assert "2 of 2 runs are finished" in capsys.readouterr().out
    assert main(["table", settings["output"]]) == 0
    assert "calm" in capsys.readouterr().out
    assert main(["sweep", *options(settings), "--span", "target=each", "--dry-run"]) == 0
    assert "3 runs: 2 finished, 1 to do" in capsys.readouterr().out


def test_other_contents_are_another_run(settings, calm):
    first = medic.train(**settings, quiet=True)
    calm.write_text(CALM.replace("hyperparameter(0.1)", "hyperparameter(0.2)"))
    second = medic.train(**settings, quiet=True)
    assert second.path != first.path
    assert [run.settings["hparams"]["weight"] for run in (first, second)] == [0.1, 0.2]
    assert medic.train(**{**settings, "imports": []}, quiet=True).path not in (first.path, second.path)


def test_where_the_file_is_does_not_matter(settings, calm, tmp_path):
    first = medic.train(**settings, quiet=True)
    (tmp_path / "elsewhere").mkdir()
    moved = calm.rename(tmp_path / "elsewhere" / "other.py")
    assert medic.train(**{**settings, "imports": moved}, quiet=True).path == first.path
    moved.write_text(CALM + "# changed\n")
    with pytest.raises(MedicError, match=naming("'calm' calm.py other.py")):  # two files, one name
        medic.train(**{**settings, "imports": [moved]}, quiet=True)
    forget()
    assert medic.train(**{**settings, "imports": [moved]}, quiet=True).path != first.path


def test_a_named_run_refuses_other_contents(settings, calm):
    medic.train(**settings, name="mine", quiet=True)
    calm.write_text(CALM + "# changed\n")
    with pytest.raises(MedicError, match=naming(f"contents {calm} --name")):
        medic.train(**settings, name="mine", quiet=True)


def test_a_run_is_extended_with_the_same_code(settings, calm):
    run = medic.train(**settings, quiet=True)
    with pytest.raises(MedicError, match=naming(f"--import {calm}")):
        medic.train(extend=run.path, iterations=3, quiet=True)
    longer = medic.train(extend=run.path, iterations=3, imports=calm, quiet=True)
    assert (longer.settings["method"], longer.records[-1]["iteration"]) == ("calm", 3)
    calm.write_text(CALM + "# changed\n")
    with pytest.raises(MedicError, match=naming(f"{calm} changed")):
        medic.train(extend=run.path, iterations=4, imports=calm, quiet=True)


def test_what_a_run_names_is_not_executed(settings, calm, tmp_path, capsys):
    """The directory of a run may come from a stranger, with a file beside it."""
    run, marker = medic.train(**settings, quiet=True), tmp_path / "marker"
    forget()
    calm.write_text(f"open({str(marker)!r}, 'w')")
    path, longer = str(run.path), ["--extend", str(run.path), "--iterations", "9"]
    for code, command in (
        (0, ["evaluate", path]),
        (0, ["report", path]),
        (0, ["table", settings["output"]]),
        (0, ["runs", settings["output"]]),
        (0, ["predict", path, settings["root"], "--device", "cpu"]),
        (2, ["evaluate", path, "--rerun", "--device", "cpu"]),
        (2, ["analyze", "separation", path, "--rerun", "--device", "cpu"]),
        (2, ["analyze", "gradients", path, "--device", "cpu"]),
        (2, ["export", path, "-o", str(tmp_path / "model.pt2"), "--format", "torch-export"]),
        (2, ["train", *longer]),
    ):
        assert main(command) == code, command
        err = capsys.readouterr().err
        assert not marker.exists(), command
        assert code == 0 or f"--import {calm}" in err, (command, err)
    assert medic.Run(path).plugins[0].name == str(calm)
    assert main(["train", "--config", str(run.path / "config.json")]) == 2  # the user gave this file: it is executed
    assert marker.exists()


def test_a_rerun_with_changed_code_warns(settings, calm, capsys):
    run = medic.train(**settings, quiet=True)
    calm.write_text(CALM + "# changed\n")
    assert main(["evaluate", str(run.path), "--rerun", "--device", "cpu", "--import", str(calm)]) == 0
    assert f"{calm} has changed" in capsys.readouterr().err


def test_a_score_of_a_plug_in(settings, capsys):
    run = medic.train(**settings, score="half", quiet=True)
    assert run.metrics["score"] == "half"
    forget()
    assert main(["report", str(run.path)]) == 0
    assert main(["table", str(run.path.parent)]) == 0
    assert main(["predict", str(run.path), settings["root"]]) == 2
    assert "unknown score 'half'" in capsys.readouterr().err
    for command in (["predict", str(run.path), settings["root"]], ["calibrate", str(run.path)]):
        assert main([*command, "--import", *settings["imports"]]) == 0
        forget()


@pytest.mark.parametrize(("text", "message"), [
    ("import medic\nmedic.METHODS['erm'] = medic.Method('erm', '', '', '')", "'erm' built"),
    ("import medic\nmedic.METHODS['x'] = 3", "method 'x' int Method"),
    ("import medic\nmedic.METHODS['x'] = medic.Method('y', '', '', '')", "'x' 'y'"),
    ("import medic\nmedic.openset.SCORES['half'] = medic.openset.SCORES['cls']", "'half' 'cls'"),
    ("x = 1\nnothing + x", "line 2 NameError nothing"),
    ("x = (", "line 1 SyntaxError"),
    ("raise SystemExit('bye')", "line 1 SystemExit bye"),
    ("import medic\nmedic.METHODS['new'] = medic.METHODS['erm']\n1 / 0", "line 3 ZeroDivisionError"),
    ("\x00", "calm.py"),
])  # fmt: skip
def test_mistakes_of_a_file_are_one_line_and_leave_nothing(settings, calm, text, message, capsys):
    calm.write_text(text)
    modules = {name for name in sys.modules if name.startswith("medic_import_")}
    before = {kind: dict(registry) for kind, registry in imports._REGISTRIES.items()}
    assert main(["train", *options(settings)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    for word in ["calm.py", *message.split()]:
        assert word in err
    assert {kind: dict(registry) for kind, registry in imports._REGISTRIES.items()} == before
    assert {name for name in sys.modules if name.startswith("medic_import_")} == modules


@pytest.mark.parametrize("name", ["nowhere.py", "no_such_module", "no.such_module", "", "/", "a b"])
def test_a_file_or_module_that_does_not_exist(settings, name):
    with pytest.raises(MedicError, match="--import"):
        medic.train(**{**settings, "imports": [name]}, quiet=True)


def test_the_search_of_a_hyperparameter_of_a_file_is_not_domainbeds(calm, capsys):
    searched = "from medic.utils.parts import hyperparameter, log10"
    text = calm.read_text().replace("from medic.utils.parts import hyperparameter", searched)
    calm.write_text(text.replace("hyperparameter(0.1)", 'hyperparameter(0.1, search=log10("w", -3, 1))'))
    assert main(["methods", "calm", "--import", str(calm)]) == 0
    out = capsys.readouterr().out
    assert "weight=0.1  (search: 10^U(-3, 1))" in out
    assert "DomainBed" not in out


def test_the_list_of_methods_has_those_of_a_file(calm, capsys):
    assert main(["methods", "--import", str(calm)]) == 0
    assert "less confident predictions" in capsys.readouterr().out
    assert main(["methods", "calm", "--import", str(calm)]) == 0
    assert "weight=0.1" in capsys.readouterr().out


def distribution(folder, name, version, points, **files):
    """Write an installed package: its modules, and a folder with its metadata."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)
    for module, text in files.items():
        (folder / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    yield path
    for name, module in list(sys.modules.items()):
        if str(path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


POINTS = "[medic.methods]\ncalm = calm_methods:calm\n[medic.scores]\nall = calm_methods:scores\n"
INSTALLED = CALM + "scores = [half]\ndel medic.METHODS['calm'], medic.openset.SCORES['half']\n"


def test_a_method_of_an_installed_package(site, folder, tmp_path, capsys):
    distribution(site, "calm_methods", "1.2", POINTS, calm_methods=INSTALLED)
    calm_settings = {**folder, "method": "calm", "score": "half", "output": str(tmp_path / "runs"), "track": "none"}
    assert main(["train", *options(calm_settings)]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    digest = hashlib.sha256(INSTALLED.encode()).hexdigest()
    assert medic.Run(path).plugins == [("calm_methods 1.2", digest)]
    assert json.loads((path / "environment.json").read_text())["plugins"][0]["sha256"] == digest
    assert main(["evaluate", str(path), "--rerun", "--device", "cpu"]) == 0
    assert main(["table", str(tmp_path / "runs")]) == 0
    assert main(["predict", str(path), folder["root"]]) == 0
    assert main(["methods"]) == 0
    assert "less confident predictions" in capsys.readouterr().out


def test_other_versions_of_a_package_are_other_runs(site, folder, tmp_path):
    distribution(site, "calm_methods", "1.2", POINTS, calm_methods=INSTALLED)
    calm_settings = {**folder, "method": "calm", "output": str(tmp_path / "runs"), "track": "none", "quiet": True}
    first = medic.train(**calm_settings)
    del sys.modules["calm_methods"], medic.METHODS["calm"]
    (site / "calm_methods.py").write_text(INSTALLED + "# longer\n")
    assert medic.train(**calm_settings).path != first.path


def test_a_broken_entry_point_breaks_nothing_else(site, folder, capsys):
    points = "[medic.methods]\nbroken = broken:method\nagain = taken:METHODS\nlist = wrong:thing\n"
    taken = "import medic\nMETHODS = (medic.Method('erm', '', '', ''),)"
    distribution(site, "others", "2", points, broken="import nothing_of_this", taken=taken, wrong="thing = 3")
    assert main(["methods"]) == 0
    out, err = capsys.readouterr()
    assert "medic++" in out
    assert [word in err for word in ("others 2", "ModuleNotFoundError", "'erm'", "got int")] == [True] * 4
    assert main(["train", *options(folder), "--dry-run"]) == 0
    assert "others" not in capsys.readouterr().err  # not even looked at
    for name, message in (("broken", "cannot be loaded"), ("again", "'erm'"), ("list", "int")):
        with pytest.raises(MedicError, match=naming(f"{name!r} others {message}")):
            METHOD_GROUP.find(name)
    with pytest.warns(UserWarning, match="others 2"), pytest.raises(MedicError, match=naming("'nope'")):
        METHOD_GROUP.find("nope")


def test_two_packages_with_one_name(site):
    for name in ("first", "second"):
        distribution(site, name, "1", f"[medic.methods]\ncalm = {name}:calm\n", **{name: INSTALLED})
    with pytest.raises(MedicError, match=naming("'calm' first second")):
        METHOD_GROUP.find("calm")


@pytest.mark.slow
def test_a_file_may_import_timm_first(tmp_path):
    """In a new process, with a torchvision that was built for another torch: medic prepares it."""
    (tmp_path / "nets.py").write_text("import timm\n")
    code = f"from medic.config.imports import execute; execute([{str(tmp_path / 'nets.py')!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
