"""`medic analyze` and `medic figures`."""

import json
import re
import subprocess
import sys

import pytest

from medic.analysis import ANALYSES
from medic.cli import main
from tests.messages import naming


@pytest.fixture
def medic(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def test_the_list_of_analyses_needs_no_torch(medic):
    code, out, _ = medic("analyze")
    assert code == 0
    assert all(re.search(rf"^{name} ", out, re.MULTILINE) for name in ANALYSES)
    command = (
        "import sys, medic.cli; medic.cli.main(['analyze']); print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("ending", ["png", *(pytest.param(e, marks=pytest.mark.slow) for e in ("svg", "pdf"))])
def test_a_figure_in_every_format_and_always_the_same(medic, tmp_path, ending):
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        code, out, err = medic("analyze", "expansion", "-o", file, "--json", tmp_path / "numbers.json")
        assert code == 0
        assert str(file) in err
        assert "half the paper's coefficient" in out
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads((tmp_path / "numbers.json").read_text())["slope"]["half, mean over orders"] > 1.9


@pytest.mark.parametrize(("arguments", "message"), [
    (["gradient"], "'gradient' 'gradients'"),
    (["expansion", "runs/1"], "'expansion' runs/1"),
    (["expansion", "-o", "figure.jpg"], "'jpg' png svg pdf figure.jpg"),
    (["expansion", "--moments", "3"], "--moments 'expansion'"),
    (["expansion", "--rerun"], "--rerun 'expansion'"),
    (["errors"], "errors run"),
    (["errors", "gone"], "gone directory"),
    (["errors", "a", "b"], "'errors' one 2"),
    (["openness", "gone"], "gone --output"),
    (["gradients", "gone", "--moments", "few"], "--moments few"),
    (["boundary", "gone", "--classes", "a"], "--classes 2"),
])  # fmt: skip
def test_mistakes(medic, arguments, message):
    code, out, err = medic("analyze", *arguments)
    assert (code, out) == (2, "")
    assert re.search(naming(message), err)
    assert err.count("\n") == 1


def test_runs_for_a_figure_are_not_written_into_a_run(medic, make_run, tmp_path):
    run = make_run("erm")
    code, _, err = medic("figures", run.path, "-o", tmp_path / "drawn", "--only", "office-range")
    assert code == 1
    assert f"medic reproduce officehome-openness --root DIR --output {run.path.parent}`" in err.splitlines()[0]


@pytest.mark.slow
def test_figures_that_can_be_drawn_and_those_that_cannot(medic, make_run, tmp_path):
    for method in ("erm", "medic++"):
        run = make_run(method)
    code, out, err = medic(
        "figures", run.path.parent, "-o", tmp_path / "drawn", "--format", "svg", "--iterations", 2, "--moments", 1
    )
    assert code == 1
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {
        "bias.svg", "gradient.svg", "expansion.svg", "tsne.svg",
    }  # fmt: skip
    assert re.search(r"^MEDIC\+\+ .*", out, re.MULTILINE)
    for name, table in (
        ("norm", "tasks-per-step --save-features"),
        ("office-range", "officehome-openness"),
        ("time-memory", "time-memory"),
    ):
        command = f"medic reproduce {table} --root DIR --output {run.path.parent}"
        assert re.search(rf"figure {name}: .*`{command}`$", err, re.M)
    assert "--quick" in err
    code, out, err = medic("figures", run.path.parent, "-o", tmp_path / "one", "--only", "tsne")
    assert (code, [path.name for path in (tmp_path / "one").iterdir()]) == (0, ["tsne.pdf"])
    assert medic("figures", run.path.parent, "--only", "tnse")[0] == 2
    assert medic("figures", run.path.parent, "--format", "gif")[0] == 2
