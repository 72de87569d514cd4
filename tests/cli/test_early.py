"""Mistakes in options are found before torch is imported, which takes seconds: each case is refused without it."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import contextlib, io, json, sys
from medic.cli import main
found = []
for line in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(line)
    found.append((code, err.getvalue(), "torch" in sys.modules))
    if "torch" in sys.modules:
        break
json.dump(found, sys.stdout)
"""
TRAIN = "train --target street"
SWEEP = "sweep --method erm --target street"
FOLDER = "pass the folder with your images, arranged as <domain>/<class>/<image>"
TRAINED = "pass the directory that training prints when it ends"
MISTAKES = {
    f"{TRAIN} --iterations 0": "--iterations must be a whole number of at least 1, got 0",
    f"{TRAIN} --iterations 1.5": "--iterations must be a whole number of at least 1, got 1.5",
    f"{TRAIN} --image-size 0": "--image-size must be a whole number of at least 1, got 0",
    f"{TRAIN} --lr nan": "--lr must be a number above 0, got nan",
    f"{TRAIN} --momentum 1": "--momentum must be a number of at least 0 and below 1, got 1",
    f"{TRAIN} --config wrong.yaml": "iterations must be a whole number of at least 1, got 0",
    f"{TRAIN} --weights gone.pth": "weights file gone.pth not found: check the path, or use named weights, such as "
    "--weights imagenet-v1 for a ResNet",
    f"{TRAIN} --output file/runs": "output file/runs cannot be written: Not a directory",
    "train --dataset folder --root gone --target a": f"root gone does not exist: {FOLDER}",
    "train --dataset folder --root empty --target a": f"root empty is empty: {FOLDER}",
    "train --dataset table --root gone.csv --target a": "root gone.csv does not exist: pass the path of a "
    "CSV or Parquet file",
    "train --dataset pacs --root gone --target sketch": "root gone does not exist: pass the folder that contains "
    "pacs; to download it, run `medic data fetch pacs --root DIR`",
    "train --extend gone --iterations 5": f"run gone does not exist: {TRAINED}",
    f"{SWEEP} --jobs 0": "--jobs must be a whole number of at least 1, got 0",
    f"{SWEEP} --retries -1": "--retries must be a whole number of at least 0, got -1",
    f"{SWEEP} --span seed=1-3": "--span seed=1-3: write a range as seed=1..3",
    f"{SWEEP} --span lr=0,1": "lr must be a number above 0, got 0",
    "sweep --span target=each,method=erm": "--span 'target=each,method=erm': separate settings with a space, as in "
    "--span target=each method=erm",
    "sweep gone.yaml": "sweep gone.yaml does not exist: check the path",
    "search --trials 0": "--trials must be a whole number of at least 1, got 0",
    "probe": "output probe cannot be written: Not a directory",
    "reproduce pacs-resnet50 --seeds -1": "--seeds must be a whole number of at least 0, got -1",
    "demo --iterations 0": "--iterations must be a whole number of at least 1, got 0",
    "demo --output file/demo": "--output file/demo cannot be written: Not a directory",
    "data check --root images": "missing dataset: use `medic data check NAME`; for your own images, `medic data check "
    "folder --root images`; `medic datasets` lists all",
    "data check images": "images is a folder: use `medic data check folder --root images`",
    "data check folder --root gone": f"root gone does not exist: {FOLDER}",
    "data fetch pacs --root x --archive gone.zip": "--archive gone.zip does not exist: check the path",
    "soup runs/run": "a soup requires at least two runs, got only runs/run: pass several run directories",
    "soup runs/run gone": f"run gone does not exist: {TRAINED}",
    "soup runs/run runs/run --output file/runs": "output file/runs cannot be written: Not a directory",
    "soup runs/run runs/run --weights gone.pth": "weights file gone.pth not found: check the path, or use named "
    "weights, such as --weights imagenet-v1 for a ResNet",
    "evaluate gone": f"run gone does not exist: {TRAINED}",
    "evaluate runs": "runs contains 1 finished run: pass one of them, such as runs/run; "
    "`medic runs runs` lists them all",
    "evaluate images": f"images is not a run directory (config.json is missing): {TRAINED}",
    "evaluate --predictions gone.csv": "--predictions gone.csv does not exist: check the path",
    "evaluate --predictions images": "--predictions images is a folder: pass a file",
    "predict runs/run gone.png": "path gone.png does not exist: pass images, folders, quoted patterns, @FILE or -",
    "predict runs/run images --top 0": "--top must be a whole number of at least 1, got 0",
    "predict runs/run images -o gone/x.csv": "--output gone/x.csv cannot be written: create the folder gone, "
    "or use another one",
    "predict runs/run images -o images": "--output images is a folder: pass a file",
    "predict runs/run images --import /gone.py": "--import /gone.py not found: pass a Python file or a module name",
    "predict images runs/run": "images is not a run or a model: pass the run first, then the images",
    "calibrate runs/run --accept 0.8 --threshold 0.4": (
        "--threshold and --accept cannot be combined: pass only one of them"
    ),
    "probe --target street --output fresh --seeds 0..": "--seeds must be numbers such as 0,1,2 or 0..2, got '0..'",
    "calibrate runs/run --accept 2": "--accept must be a number above 0 and below 1, got 2",
    "calibrate runs/run --labels gone.csv": "--labels gone.csv does not exist: check the path",
    "calibrate runs/run --accept 0.9 -o file/x": "--output file/x cannot be written: Not a directory",
    "export runs/run -o file/x.onnx": "--output file/x.onnx cannot be written: Not a directory",
    "export runs/run --images gone.png": "path gone.png does not exist: pass images, folders, quoted patterns, @FILE "
    "or -",
    "serve runs/run --port 99999": "--port must be a whole number of at least 0 and at most 65535, got 99999",
    "serve runs/run --max-bytes 0": "--max-bytes must be a number above 0, got 0",
    "serve runs/run --ray --replicas 0": "--replicas must be a whole number of at least 1, got 0",
    "serve runs/run --port x": "--port must be a whole number of at least 0 and at most 65535, got x",
    "serve gone": "gone does not exist: pass the directory of a finished run or a model",
    "report gone": f"run gone does not exist: {TRAINED}",
    "report runs/run -o file/x.html": "--output file/x.html cannot be written: Not a directory",
    "analyze gradients gone": f"run gone does not exist: {TRAINED}",
    "analyze gradients runs/run --moments 0": "--moments must be a whole number of at least 1, got 0",
    "analyze gradients runs/run --json file/x": "--json file/x cannot be written: Not a directory",
    "figures runs -o file/x": "--output file/x cannot be written: Not a directory",
    "push gone a/b": "gone does not exist: pass the directory of a finished run or a model",
    "pull a/b file/x": "DIR file/x cannot be written: Not a directory",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The exit code, standard error and whether torch was imported, of every command in one process."""
    folder = tmp_path_factory.mktemp("early")
    for name in ("images/a/cat", "empty", "runs/run"):
        (folder / name).mkdir(parents=True)
    for name in ("images/a/cat/0.png", "file", "probe", "runs/run/config.json", "runs/run/done"):
        (folder / name).touch()
    (folder / "wrong.yaml").write_text("iterations: 0\n")
    before = sorted(folder.rglob("*"))
    lines = json.dumps([line.split() for line in MISTAKES])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=lines, cwd=folder, capture_output=True, text=True, check=True
    )
    assert sorted(folder.rglob("*")) == before
    return dict(zip(MISTAKES, json.loads(done.stdout), strict=False))


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_do_not_wait_for_torch(answers, line):
    assert answers[line] == [2, f"medic: error: {MISTAKES[line]}\n", False]
