"""Bad input through every door: refused in one line, with exit code 2 or an HTTP status, and nothing is written.

`benchmarks/fuzz` makes a million of such inputs; here are those that a person or a stranger would try first.
`tests/cli/test_mistakes.py` has the options of training.
"""

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.fuzz.images import POSTSCRIPT
from benchmarks.fuzz.model import bases
from medic.cli import main
from tests.messages import naming

MODEL, WEIGHTS = "model/model.json", "model/model.safetensors"
PREDICT = ["predict", "model", "images/x/cat/0.png"]
TRAIN = [
    "train", "--dataset", "folder", "--root", "images", "--target", "z", "--known", "cat", "dog",
    "--backbone", "convnet", "--image-size", "32", "--iterations", "2", "--batch-size", "2", "--quiet",
]  # fmt: skip


def png(size=(8, 6), mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, a dataset of images, and a run that is none."""
    folder = tmp_path_factory.mktemp("place")
    described, weights = bases()[0]
    (folder / "model").mkdir()
    (folder / MODEL).write_text(json.dumps(described))
    (folder / WEIGHTS).write_bytes(weights)
    for domain in "xyz":
        for label in ("cat", "dog", "owl"):
            (folder / "images" / domain / label).mkdir(parents=True)
            for index in range(3):
                (folder / "images" / domain / label / f"{index}.png").write_bytes(png())
    for name in ("empty", "root"):
        (folder / name).mkdir()
    return folder


def listing(folder):
    """Return every path below a folder with its size, but the cache of decoded images and locks."""
    every = {path: path.lstat().st_size for path in folder.rglob("*") if path.suffix != ".lock"}
    return {path: size for path, size in every.items() if folder / "cache" not in (path, *path.parents)}


@pytest.fixture
def refused(place, tmp_path, capsys, monkeypatch):
    """Run a command in a copy of the folder, after `spoil` damaged it; it is refused, and nothing is written.

    Its error is the last line, after reports of its progress if there are any.
    """
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))

    def run(arguments, words, spoil=lambda folder: None):
        folder = tmp_path / "place"
        shutil.copytree(place, folder)
        spoil(folder)
        monkeypatch.chdir(folder)
        before = listing(tmp_path)
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert code == 2, (code, out, err)
        assert lines[-1].startswith("medic: error: "), err
        assert err.count("medic: error: ") == 1
        assert re.search(naming(words), lines[-1]), err
        assert "Traceback" not in err
        assert len(lines[-1]) < 1100
        assert out == ""
        assert listing(tmp_path) == before

    return run


LINE = [
    (["predict"], "RUN"),
    (["predict", "model"], "PATH"),
    (["predict", "gone", "x.png"], "gone"),
    (["predict", "empty", "x.png"], "empty"),
    (["predict", "images", "x.png"], "images"),
    (["predict", "model/gone.json", "x.png"], "model/gone.json"),
    (["predict", "model\0", "x.png"], "model"),
    (["predict", "x" * 5000, "x.png"], "long"),
    ([*PREDICT, "--device", "cuda"], "'cuda' --device cpu"),
    ([*PREDICT, "--device", "tpu"], "'tpu'"),
    ([*PREDICT, "--top", "0"], "--top 0"),
    ([*PREDICT, "--top", "all"], "--top all"),
    ([*PREDICT, "--batch-size", "-1"], "--batch-size -1"),
    ([*PREDICT, "--threshold", "2"], "threshold 2 probability"),
    ([*PREDICT, "--threshold", "nan"], "threshold nan"),
    ([*PREDICT, "--threshold", "high"], "--threshold high"),
    ([*PREDICT, "--format", "xml"], "'xml'"),
    ([*PREDICT, "-o", "rows.xml"], "rows.xml"),
    ([*PREDICT, "-o", "gone/rows.csv"], "gone/rows.csv"),
    ([*PREDICT, "-o", "empty", "--format", "csv"], "empty"),
    (["predict", "model", "empty"], "empty images"),
    (["predict", "model", "*.jpg"], "*.jpg"),
    (["predict", "model", "@gone.txt"], "gone.txt"),
    (["predict", "model", "@empty"], "empty"),
    ([*PREDICT, "--tpo", "3"], "'--tpo' '--top'"),
    (["export", "gone"], "gone"),
    (["export", "model"], "model --images"),
    (["export", "model", "--format", "tflite"], "'tflite'"),
    (["export", "model", "--images", "gone.png"], "gone.png"),
    (["export", "model", "--images", "empty"], "empty"),
    (["serve", "gone"], "gone"),
    (["serve", "model", "--host", "0.0.0.0"], "0.0.0.0 token"),
    (["serve", "model", "--port", "http"], "--port http"),
    (["serve", "model", "--max-bytes", "0"], "--max-bytes 0"),
    (["serve", "model", "--queue", "1"], "--queue 1"),
    (["serve", "model", "--wait-ms", "-1"], "--wait-ms -1"),
    (["serve", "model", "--token", "a b"], "--token"),
    (["serve", "model", "--replicas", "2"], "--replicas --ray"),
    (["serve", "model", "--device", "cuda"], "'cuda' --device cpu"),
    (["evaluate", "model"], "model"),
    (["report", "gone"], "gone"),
    (["table", "gone"], "gone"),
    (["table", "empty", "--format", "xls"], "'xls'"),
    (["analyze", "gradients", "gone"], "gone"),
    (["analyze", "gradient", "gone"], "'gradient'"),
    ([*TRAIN, "--device", "cuda"], "'cuda' --device cpu"),
    ([*TRAIN, "--output", "/proc/x"], "/proc/x"),
    ([*TRAIN, "--name", "../x"], "'../x'"),
    ([*TRAIN, "--weights", "model/model.json"], "model.json"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), LINE, ids=[" ".join(line)[:60] for line, _ in LINE])
def test_the_command_line(refused, arguments, words):
    refused(arguments, words)


def described(change):
    """Return a function that changes the description of the model."""

    def spoil(folder):
        values = json.loads((folder / MODEL).read_text())
        change(values)
        (folder / MODEL).write_text(json.dumps(values))

    return spoil


def put(place, value):
    """Return a function that puts a value at a place of the description, `a/b`."""
    *outer, last = place.split("/")

    def change(values):
        for name in outer:
            values = values[name]
        values[last] = value

    return described(change)


def written(name, content):
    """Return a function that overwrites a file."""

    def spoil(folder):
        (folder / name).write_bytes(content)

    return spoil


def instead(name, make):
    """Return a function that puts something else in the place of a file."""

    def spoil(folder):
        (folder / name).unlink()
        make(folder / name)

    return spoil


def reheaded(change):
    """Return a function that changes the header of the weights, and repairs their checksum."""

    def spoil(folder):
        data = (folder / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + data[8 + length :]
        (folder / WEIGHTS).write_bytes(data)
        put("sha256", hashlib.sha256(data).hexdigest())(folder)

    return spoil


def sparse(size):
    def make(path):
        with path.open("wb") as file:
            file.truncate(size)

    return make


def end_at(header):
    header["backbone.conv1.weight"]["data_offsets"][1] = 2**60


FILES = {
    "no description": (lambda folder: (folder / MODEL).unlink(), "model"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "model.safetensors"),
    "an empty description": (written(MODEL, b""), "model.json"),
    "a list": (written(MODEL, b"[]"), "model.json"),
    "another encoding": (written(MODEL, "{}".encode("utf-16")), "model.json"),
    "deep nesting": (written(MODEL, b"[" * 10**6), "model.json"),
    "a large description": (instead(MODEL, sparse(2**25)), "model.json MiB"),
    "a device": (instead(MODEL, lambda path: path.symlink_to("/dev/zero")), "model"),
    "a pipe": (instead(WEIGHTS, os.mkfifo), "model.safetensors"),
    "a file that cannot be read": (
        instead(WEIGHTS, lambda path: path.symlink_to("/proc/self/mem")),
        "Input/output error",
    ),
    "a folder": (instead(WEIGHTS, Path.mkdir), "model.safetensors"),
    "a link to itself": (instead(WEIGHTS, lambda path: path.symlink_to(path.name)), "model.safetensors"),
    "an earlier format": (put("format", 1), "format 1"),
    "a later format": (put("format", 3), "format 3 upgrade"),
    "empty weights": (written(WEIGHTS, b""), "cannot be used"),
    "a pickle": (written(WEIGHTS, b"\x80\x04cos\nsystem\n(S'touch x'\ntR."), "cannot be used"),
    "a length of 2⁶³": (written(WEIGHTS, b"\xff" * 8 + b"{}"), "cannot be used"),
    "a file of zeros": (instead(WEIGHTS, sparse(2**33)), "cannot be used"),
    "a tensor beyond the end": (reheaded(end_at), "cannot be used"),
    "a tensor too few": (reheaded(lambda header: header.pop("backbone.conv1.weight")), "cannot be used"),
    "another checksum": (put("sha256", "0" * 64), "model.safetensors"),
    "a program as backbone": (put("model/backbone", "__import__('os').system('touch x')"), "backbone"),
    "a path as backbone": (put("model/backbone", "../../etc/passwd"), "backbone"),
    "a hub as backbone": (put("model/backbone", "hf-hub:stranger/model"), "backbone"),
    "a long name of a backbone": (put("model/backbone", "x" * 10**6), "backbone"),
    "a larger backbone": (put("model/backbone", "resnet152"), "weights"),
    "a thousand networks": (put("model/networks", 1000), "networks"),
    "another head": (put("model/head", "separate"), "weights"),
    "many classes": (put("classes", [str(k) for k in range(10**5)]), "weights"),
    "a class twice": (put("classes", ["cat", "cat"]), "same name"),
    "classes that are no names": (put("classes", [1, 2]), "classes"),
    "images of 10⁶ pixels a side": (put("preprocessing/size", 10**6), "preprocessing"),
    "images of another size": (put("preprocessing/size", 48), "32x32"),
    "a division by zero": (put("preprocessing/std", [0, 0, 0]), "preprocessing"),
    "a mean beyond all numbers": (put("preprocessing/mean", [1e308] * 3), "model"),
    "a million views": (put("views", 10**6), "views"),
    "a score that is none": (put("score/name", "eval"), "score"),
    "a score without its tensors": (put("score/name", "knn"), "knn"),
    "a threshold of NaN": (put("threshold/value", float("nan")), "threshold"),
    "a threshold of two values": (put("threshold/probability", 0.9), "threshold 0.9"),
}


@pytest.mark.parametrize("case", FILES)
def test_the_model_file(refused, case):
    spoil, words = FILES[case]
    refused([*PREDICT, "--quiet"], words, spoil)


CONFIG = {
    "no mapping": ("- a\n", "c.yaml"),
    "an unknown setting": ("iteration: 1\n", "c.yaml 'iterations'"),
    "a program": ("lr: !!python/object/apply:os.system [touch x]\n", "c.yaml"),
    "an endless alias": ("lr: &a [*a]\n", "lr number"),
    "a huge number": (f"seed: {'9' * 10**5}\n", "c.yaml"),
    "another encoding": ("lr: \udcff\n", "c.yaml"),
    "a text for a number": ("lr: fast\n", "lr fast"),
    "a negative number": ("clip_norm: -1\n", "clip_norm -1"),
    "a tab": ("lr:\n\t- 1\n", "c.yaml"),
    "a name outside": ("name: ../../x\n", "'../../x'"),
}


@pytest.mark.parametrize("case", CONFIG)
def test_the_configuration(refused, case):
    text, words = CONFIG[case]
    refused([*TRAIN, "--config", "c.yaml"], words, written("c.yaml", text.encode(errors="surrogateescape")))


FIRST = "images/x/cat/0.png"
DATASET = {
    "an empty file": (written(FIRST, b""), TRAIN, "0.png empty"),
    "a text": (written(FIRST, b"hello"), TRAIN, "0.png"),
    "a cut image": (written(FIRST, png((64, 64))[:60]), TRAIN, "0.png damaged"),
    "a PostScript program": (written(FIRST, POSTSCRIPT), TRAIN, "0.png"),
    "a bomb": (written(FIRST, png((30_000, 30_000), "1")), TRAIN, "0.png pixels"),
    "a pipe": (instead(FIRST, os.mkfifo), TRAIN, "0.png"),
    "a device": (instead(FIRST, lambda path: path.symlink_to("/dev/zero")), TRAIN, "0.png"),
    "a link to nothing": (instead(FIRST, lambda path: path.symlink_to("gone")), TRAIN, "0.png"),
    "no domain": (lambda folder: shutil.rmtree(folder / "images" / "z"), TRAIN, "z"),
    "no images": (lambda folder: None, [*TRAIN, "--root", "empty"], "empty"),
    "no folder": (lambda folder: None, [*TRAIN, "--root", "gone"], "gone"),
    "no such class": (lambda folder: None, [*TRAIN, "--known", "cat", "cow"], "'cow'"),
    "an archive that is none": (
        written("a.zip", b"PK\x03\x04"), ["data", "fetch", "pacs", "--root", "root", "--archive", "a.zip"], "a.zip",
    ),
    "no archive": (lambda folder: None, ["data", "fetch", "pacs", "--root", "root", "--archive", "gone"], "gone"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATASET)
def test_the_dataset(refused, case):
    spoil, arguments, words = DATASET[case]
    refused(arguments, words, spoil)


def test_an_archive_that_leads_outside(refused):
    def spoil(folder):
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            archive.writestr("../../evil", "x")

    refused(["data", "fetch", "pacs", "--root", "root", "--archive", "a.zip"], "a.zip", spoil)


FORM = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
GOOD = PART % (b"files", b'; filename="a.png"', png())
HTTP = {
    "no body": (400, b"", {}),
    "a text": (415, b"x", {"content-type": "text/plain"}),
    "JSON": (415, b"{}", {"content-type": "application/json"}),
    "not an image": (422, b"hello", {}),
    "a cut image": (422, png()[:40], {}),
    "a bomb": (422, png((3000, 3000), "1"), {}),
    "PostScript": (422, POSTSCRIPT, {}),
    "a form without a boundary": (400, GOOD + b"--b--", {"content-type": "multipart/form-data"}),
    "another boundary": (400, GOOD + b"--b--", {"content-type": "multipart/form-data; boundary=c"}),
    "a form that is cut": (400, GOOD, {"content-type": FORM}),
    "a form without a part": (400, b"--b--\r\n", {"content-type": FORM}),
    "another field": (400, PART % (b"x", b'; filename="a"', png()) + b"--b--", {"content-type": FORM}),
    "a text in a form": (400, PART % (b"files", b"", b"x") + b"--b--", {"content-type": FORM}),
    "too many images": (413, GOOD * 9 + b"--b--", {"content-type": FORM}),
    "too many bytes": (413, b"x" * 30_000, {}),
    "another host": (403, png(), {"host": "evil.example"}),
    "an impossible host": (403, png(), {"host": "["}),
    "another origin": (403, png(), {"origin": "http://evil.example"}),
    "no class": (422, png(), {"top": "0"}),
    "too many classes": (422, png(), {"top": "9" * 100}),
    "half a number": (422, png(), {"top": "1.5"}),
}


@pytest.fixture(scope="module")
def client(place):
    testing = pytest.importorskip("starlette.testclient")
    pytest.importorskip("fastapi")
    import medic
    from medic.deploy.service import Limits
    from medic.deploy.service.app import make_app

    app = make_app(medic.load(place / "model"), Limits(bytes=20_000, files=8, queue=16, pixels=10**6))
    with testing.TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("case", HTTP)
def test_http(client, place, case):
    status, body, headers = HTTP[case]
    query = {name: headers[name] for name in headers if name == "top"}
    sent = {"content-type": "image/png", **{name: headers[name] for name in headers if name != "top"}}
    before = listing(place)
    answer = client.post("/predict", content=body, headers=sent, params=query)
    assert answer.status_code == status, answer.text
    found = answer.json()
    message = found.get("error") or found["predictions"][0]["error"]
    assert message.count("\n") == 0
    assert "Traceback" not in answer.text
    assert listing(place) == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("PUT", "/predict", 405), ("GET", "/gone", 404), ("GET", "/../etc/passwd", 404)],
)
def test_other_requests(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].count("\n") == 0


def test_a_good_input_passes_every_door(place, client, capsys, monkeypatch):
    """The cases above fail for the reason that they give: without it they pass."""
    monkeypatch.chdir(place)
    assert main([*PREDICT, "--quiet"]) == 0
    assert main([*TRAIN, "--print-config"]) == 0
    assert client.post("/predict", content=png(), headers={"content-type": "image/png"}).status_code == 200
    assert client.post("/predict", content=GOOD + b"--b--", headers={"content-type": FORM}).status_code == 200


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "gpu", ""])
def test_a_device_that_is_not_here(place, device):
    import medic
    from medic.errors import MedicError

    with pytest.raises(MedicError, match=naming("device cpu")) as caught:
        medic.load(place / "model", device=device)
    assert "\n" not in str(caught.value)


def test_there_are_a_hundred():
    assert sum(map(len, (LINE, FILES, CONFIG, DATASET, HTTP))) >= 100
