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
FOLDER = "give the folder of your images, arranged as <domain>/<class>/<image>"
TRAINED = "give the directory that training prints when it ends"
MISTAKES = {
    f"{TRAIN} --iterations 0": "--iterations 0: give a whole number of at least 1",
    f"{TRAIN} --iterations 1.5": "--iterations 1.5: give a whole number of at least 1",
    f"{TRAIN} --image-size 0": "--image-size 0: give a whole number of at least 1",
    f"{TRAIN} --lr nan": "--lr nan: give a number above 0",
    f"{TRAIN} --momentum 1": "--momentum 1: give a number of at least 0 and below 1",
    f"{TRAIN} --config wrong.yaml": "iterations is 0: give a whole number of at least 1",
    f"{TRAIN} --weights gone.pth": "weights gone.pth do not exist: check the path, or use weights by name, such as "
    "--weights imagenet-v1 for a ResNet",
    f"{TRAIN} --output file/runs": "output file/runs cannot be written: Not a directory",
    "train --dataset folder --root gone --target a": f"root gone does not exist: {FOLDER}",
    "train --dataset folder --root empty --target a": f"root empty is empty: {FOLDER}",
    "train --dataset table --root gone.csv --target a": "root gone.csv does not exist: give the CSV or Parquet file",
    "train --dataset pacs --root gone --target sketch": "root gone does not exist: give the folder that pacs is in; "
    "`medic data fetch pacs --root DIR` downloads it",
    "train --extend gone --iterations 5": f"run gone does not exist: {TRAINED}",
    f"{SWEEP} --jobs 0": "--jobs is 0: give a whole number, 1 or more",
    f"{SWEEP} --retries -1": "--retries -1: give a whole number of at least 0",
    f"{SWEEP} --span seed=1-3": "--span seed=1-3: write a range as seed=1..3",
    f"{SWEEP} --span lr=0,1": "lr is 0: give a whole number above 0",
    "sweep --span target=each,method=erm": "--span 'target=each,method=erm': separate settings by a space, as in "
    "--span target=each method=erm",
    "sweep gone.yaml": "sweep gone.yaml does not exist: check the path, or write the file first",
    "search --trials 0": "--trials 0: give a whole number of at least 1",
    "reproduce pacs-resnet50 --seeds -1": "--seeds -1: give a whole number of at least 0",
    "demo --iterations 0": "--iterations 0: give a whole number of at least 1",
    "demo --output file/demo": "--output file/demo cannot be written: Not a directory",
    "data check --root images": "no dataset given: use `medic data check NAME`; for your own images, `medic data check "
    "folder --root images`; `medic datasets` lists all",
    "data check images": "images is a folder: use `medic data check folder --root images`",
    "data check folder --root gone": f"root gone does not exist: {FOLDER}",
    "data fetch pacs --root x --archive gone.zip": "--archive gone.zip does not exist: check the path",
    "soup runs/run": "a soup needs at least two runs, got runs/run alone: give several run directories",
    "soup runs/run gone": f"run gone does not exist: {TRAINED}",
    "soup runs/run runs/run --output file/runs": "output file/runs cannot be written: Not a directory",
    "soup runs/run runs/run --weights gone.pth": "weights gone.pth do not exist: check the path, or use weights by "
    "name, such as --weights imagenet-v1 for a ResNet",
    "evaluate gone": f"run gone does not exist: {TRAINED}",
    "evaluate runs": "runs contains 1 finished run: give one of them, runs/run; `medic runs runs` lists them",
    "evaluate images": f"images is not a run directory, it has no config.json: {TRAINED}",
    "evaluate --predictions gone.csv": "--predictions gone.csv does not exist: check the path",
    "evaluate --predictions images": "--predictions images is a folder: give a file",
    "predict runs/run gone.png": "path gone.png does not exist: give images, folders, quoted patterns, @FILE or -",
    "predict runs/run images --top 0": "--top 0: give a whole number of at least 1",
    "predict runs/run images -o gone/x.csv": "--output gone/x.csv cannot be written, there is no folder gone: create "
    "it, or name another",
    "predict runs/run images -o images": "--output images is a folder: name a file",
    "predict runs/run images --import /gone.py": "--import /gone.py does not exist: give a Python file, or the name of "
    "a module",
    "predict images runs/run": "images is not a run or a model: give the run first, then the images",
    "calibrate runs/run --accept 2": "--accept 2: give a number above 0 and below 1",
    "calibrate runs/run --labels gone.csv": "--labels gone.csv does not exist: check the path",
    "calibrate runs/run --accept 0.9 -o file/x": "--output file/x cannot be written: Not a directory",
    "export runs/run -o file/x.onnx": "--output file/x.onnx cannot be written: Not a directory",
    "export runs/run --images gone.png": "path gone.png does not exist: give images, folders, quoted patterns, @FILE "
    "or -",
    "serve runs/run --port 99999": "--port 99999: give a whole number of at least 0 and at most 65535",
    "serve runs/run --max-bytes 0": "--max-bytes 0: give a number above 0",
    "serve runs/run --ray --replicas 0": "--replicas 0: give a whole number of at least 1",
    "serve runs/run --port x": "--port x: give a whole number of at least 0 and at most 65535",
    "serve gone": "gone does not exist: give the directory of a finished run, or of a model",
    "report gone": f"run gone does not exist: {TRAINED}",
    "report runs/run -o file/x.html": "--output file/x.html cannot be written: Not a directory",
    "analyze gradients gone": f"run gone does not exist: {TRAINED}",
    "analyze gradients runs/run --moments 0": "--moments 0: give a whole number of at least 1",
    "analyze gradients runs/run --json file/x": "--json file/x cannot be written: Not a directory",
    "figures runs -o file/x": "--output file/x cannot be written: Not a directory",
    "push gone a/b": "gone does not exist: give the directory of a finished run, or of a model",
    "pull a/b file/x": "DIR file/x cannot be written: Not a directory",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The exit code, standard error and whether torch was imported, of every command in one process."""
    folder = tmp_path_factory.mktemp("early")
    for name in ("images/a/cat", "empty", "runs/run"):
        (folder / name).mkdir(parents=True)
    for name in ("images/a/cat/0.png", "file", "runs/run/config.json", "runs/run/done"):
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
