"""Bad input through every door: refused in one line, with exit code 2 or an HTTP status, and nothing is written.

`benchmarks/fuzz` makes a million of such inputs; here are those that a person or a stranger would try first.
`tests/cli/test_mistakes.py` has the options of training.
"""

import hashlib
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.fuzz.images import POSTSCRIPT
from benchmarks.fuzz.model import bases
from medic.cli import main

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
    (folder / "none.txt").touch()
    return folder


def listing(folder):
    """Return every path below a folder with its size, but the cache of decoded images and locks."""
    every = {path: path.lstat().st_size for path in folder.rglob("*") if path.suffix != ".lock"}
    return {path: size for path, size in every.items() if folder / "cache" not in (path, *path.parents)}


@pytest.fixture
def refused(place, tmp_path, capsys, monkeypatch):
    """Run a command in a copy of the folder, after `spoil` damaged it; a sentence refuses it, and nothing is written.

    Its error is the last line, after reports of its progress if there are any.
    """
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))

    def run(arguments, sentence, spoil=lambda folder: None):
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
        assert sentence in lines[-1], err
        assert "Traceback" not in err
        assert len(lines[-1]) < 1100
        assert out == ""
        assert listing(tmp_path) == before

    return run


LINE = [
    (["predict"], "the following arguments are required: RUN, PATH"),
    (["predict", "model"], "the following arguments are required: PATH"),
    (["predict", "gone", "x.png"], "gone does not exist: pass the directory of a finished run or a model"),
    (["predict", "empty", "x.png"], "empty is not a run or a model: pass the run first, then the images"),
    (["predict", "images", "x.png"], "images is not a run or a model: pass the run first, then the images"),
    (["predict", "model/gone.json", "x.png"],
     "model/gone.json does not exist: pass the directory of a finished run or a model"),
    (["predict", "model\0", "x.png"],
     "model\\x00 does not exist: pass the directory of a finished run or a model"),
    (["predict", "x" * 5000, "x.png"], ": File name too long"),
    ([*PREDICT, "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    ([*PREDICT, "--device", "tpu"], "unknown device 'tpu': choose from auto, cpu, cuda"),
    ([*PREDICT, "--top", "0"], "--top must be a whole number of at least 1, got 0"),
    ([*PREDICT, "--top", "all"], "--top must be a whole number of at least 1, got all"),
    ([*PREDICT, "--batch-size", "-1"], "--batch-size must be a whole number of at least 1, got -1"),
    ([*PREDICT, "--threshold", "2"], "threshold must be from 0 to 1 because score 'cls' is a probability, got 2"),
    ([*PREDICT, "--threshold", "nan"], "--threshold must be a number, got nan"),
    ([*PREDICT, "--threshold", "high"], "--threshold must be a number, got high"),
    ([*PREDICT, "--format", "xml"], "unknown format 'xml': choose from csv, jsonl, parquet"),
    ([*PREDICT, "-o", "rows.xml"],
     "output rows.xml must end in one of .csv, .jsonl, .parquet: rename it, or pass --format"),
    ([*PREDICT, "-o", "gone/rows.csv"],
     "--output gone/rows.csv cannot be written: create the folder gone, or use another one"),
    ([*PREDICT, "-o", "empty", "--format", "csv"], "--output empty is a folder: pass a file"),
    (["predict", "model", "empty"],
     "folder empty contains no images (supported suffixes: .bmp, .gif, .jfif, .jpeg"),
    (["predict", "model", "*.jpg"], "pattern *.jpg matches no files"),
    (["predict", "model", "@gone.txt"], "list gone.txt cannot be read: No such file or directory"),
    (["predict", "model", "@empty"], "list empty cannot be read: Is a directory"),
    ([*PREDICT, "--tpo", "3"], "unknown option '--tpo': did you mean '--top'?"),
    (["export", "gone"], "gone does not exist: pass the directory of a finished run or a model"),
    (["export", "model"], "model is not a run and has no target images: pass --images to verify the export"),
    (["export", "model", "--format", "tflite"], "unknown format 'tflite': choose from onnx, torch-export"),
    (["export", "model", "--images", "gone.png"],
     "path gone.png does not exist: pass images, folders, quoted patterns, @FILE or -"),
    (["export", "model", "--images", "empty"],
     "folder empty contains no images (supported suffixes: .bmp, .gif, .jfif, .jpeg"),
    (["serve", "gone"], "gone does not exist: pass the directory of a finished run or a model"),
    (["serve", "model", "--host", "0.0.0.0"],
     "--host 0.0.0.0 is open to other machines and requires a token: set MEDIC_TOKEN or --token"),
    (["serve", "model", "--port", "http"], "--port must be a whole number of at least 0 and at most 65535, got http"),
    (["serve", "model", "--max-bytes", "0"], "--max-bytes must be a number above 0, got 0"),
    (["serve", "model", "--queue", "1"],
     "--queue must be at least --max-files, 64, got 1: otherwise a full request is never accepted"),
    (["serve", "model", "--wait-ms", "-1"], "--wait-ms must be from 0 to 10000, got -1"),
    (["serve", "model", "--token", "a b"],
     "--token and MEDIC_TOKEN accept only printable ASCII characters without spaces"),
    (["serve", "model", "--replicas", "2"], "--replicas requires --ray: add --ray, or omit --replicas"),
    (["serve", "model", "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    (["evaluate", "model"],
     "model is not a run directory (config.json is missing): pass the directory that training prints when it ends"),
    (["report", "gone"], "run gone does not exist: pass the directory that training prints when it ends"),
    (["table", "gone"], "folder gone does not exist: pass the --output of a training command, or a run in it"),
    (["table", "empty", "--format", "xls"], "unknown format 'xls': choose from text, markdown, latex, csv, json"),
    (["analyze", "gradients", "gone"], "run gone does not exist: pass the directory that training prints when it ends"),
    (["analyze", "gradient", "gone"], "unknown analysis 'gradient': did you mean 'gradients'?"),
    ([*TRAIN, "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    ([*TRAIN, "--output", "/dev/null/x"], "output /dev/null/x cannot be written: Not a directory"),
    ([*TRAIN, "--name", "../x"], "and start with a letter, digit or _, got '../x'"),
    ([*TRAIN, "--weights", "model/model.json"], "weights model/model.json are not a torch file"),
    (["predict", "model", "@none.txt"], "no image paths found in @none.txt: write one path per line"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), LINE, ids=[" ".join(line)[:60] for line, _ in LINE])
def test_the_command_line(refused, arguments, sentence):
    refused(arguments, sentence)


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
    "no description": (
        lambda folder: (folder / MODEL).unlink(),
        "model is not a run or a model: pass the run first, then the images",
    ),
    "no weights": (
        lambda folder: (folder / WEIGHTS).unlink(),
        "model does not contain a model (model.safetensors is missing)",
    ),
    "an empty description": (written(MODEL, b""), "model/model.json is not a model description"),
    "a list": (written(MODEL, b"[]"), "model/model.json is not a model description"),
    "another encoding": (written(MODEL, "{}".encode("utf-16")), "model/model.json is not a model description"),
    "deep nesting": (written(MODEL, b"[" * 10**6), "model/model.json is not a model description"),
    "a large description": (
        instead(MODEL, sparse(2**25)),
        "model/model.json is not a model description: it is larger than 16 MiB",
    ),
    "a device": (
        instead(MODEL, lambda path: path.symlink_to("/dev/zero")),
        "model does not contain a model (model.json is missing)",
    ),
    "a pipe": (instead(WEIGHTS, os.mkfifo), "model does not contain a model (model.safetensors is missing)"),
    **(
        {}
        if sys.platform != "linux"
        else {
            "a file that cannot be read": (
                instead(WEIGHTS, lambda path: path.symlink_to("/proc/self/mem")),
                "model cannot be read (Input/output error)",
            )
        }
    ),
    "a folder": (instead(WEIGHTS, Path.mkdir), "model does not contain a model (model.safetensors is missing)"),
    "a link to itself": (
        instead(WEIGHTS, lambda path: path.symlink_to(path.name)),
        "model does not contain a model (model.safetensors is missing)",
    ),
    "an earlier format": (
        put("format", 1),
        "has format 1, but this version reads 2 to 3: written by an older version, retrain the model",
    ),
    "a later format": (
        put("format", 4),
        "model/model.json has format 4, but this version reads 2 to 3: written by a newer version, upgrade medic",
    ),
    "empty weights": (written(WEIGHTS, b""), "cannot load the model in model:"),
    "a pickle": (
        written(WEIGHTS, b"\x80\x04cos\nsystem\n(S'touch x'\ntR."),
        "cannot load the model in model: the header of model.safetensors is too large: 8751349991817282688 bytes",
    ),
    "a length of 2⁶³": (
        written(WEIGHTS, b"\xff" * 8 + b"{}"),
        "cannot load the model in model: the header of model.safetensors is too large: 18446744073709551615 bytes",
    ),
    "a file of zeros": (instead(WEIGHTS, sparse(2**33)), "cannot load the model in model:"),
    "a tensor beyond the end": (
        reheaded(end_at),
        "cannot load the model in model: the size of model.safetensors does not match its header",
    ),
    "a tensor too few": (
        reheaded(lambda header: header.pop("backbone.conv1.weight")),
        "cannot load the model in model:",
    ),
    "another checksum": (
        put("sha256", "0" * 64),
        "cannot load the model in model: checksum mismatch between model.safetensors and model.json",
    ),
    "a program as backbone": (
        put("model/backbone", "__import__('os').system('touch x')"),
        "cannot load the model in model: unknown backbone \"__import__('os').system('touch x')\": choose convnet",
    ),
    "a path as backbone": (
        put("model/backbone", "../../etc/passwd"),
        "cannot load the model in model: unknown backbone '../../etc/passwd': choose convnet",
    ),
    "a hub as backbone": (
        put("model/backbone", "hf-hub:stranger/model"),
        "cannot load the model in model: unknown backbone 'hf-hub:stranger/model': choose convnet",
    ),
    "a long name of a backbone": (
        put("model/backbone", "x" * 10**6),
        "cannot load the model in model: unknown backbone 'xxxxxxxxxxxxxxxxxxxx'…: choose convnet",
    ),
    "a larger backbone": (
        put("model/backbone", "resnet152"),
        "cannot load the model in model: the weights do not match the network: backbone.bn1.bias",
    ),
    "a thousand networks": (
        put("model/networks", 1000),
        "cannot load the model in model: 'networks' must be 1 to 100, got 1000",
    ),
    "another head": (
        put("model/head", "separate"),
        "cannot load the model in model: the weights do not match the network: head.ova_head.bias",
    ),
    "many classes": (
        put("classes", [str(k) for k in range(10**5)]),
        "cannot load the model in model: the weights do not match the network: head.close_head.bias",
    ),
    "a class twice": (
        put("classes", ["cat", "cat"]),
        "cannot load the model in model: 'classes' contains a duplicate name",
    ),
    "classes that are no names": (
        put("classes", [1, 2]),
        "cannot load the model in model: 'classes' must be a list of names",
    ),
    "images of 10⁶ pixels a side": (
        put("preprocessing/size", 10**6),
        "cannot load the model in model: invalid preprocessing values",
    ),
    "images of another size": (
        put("preprocessing/size", 48),
        "the model failed on these images: ConvNet requires images of 32x32 pixels, got 48x48",
    ),
    "a division by zero": (
        put("preprocessing/std", [0, 0, 0]),
        "cannot load the model in model: invalid preprocessing values",
    ),
    "a mean beyond all numbers": (put("preprocessing/mean", [1e308] * 3), "the model failed on these images:"),
    "a million views": (put("views", 10**6), "cannot load the model in model: 'views' must be 1 to 1000, got 1000000"),
    "a score that is none": (
        put("score/name", "eval"),
        "cannot load the model in model: unknown score 'eval': choose from cls, bcls",
    ),
    "a score without its tensors": (
        put("score/name", "knn"),
        "cannot load the model in model: the tensors in the weights file do not match score 'knn'",
    ),
    "a threshold of NaN": (
        put("threshold/value", float("nan")),
        "cannot load the model in model: the threshold is NaN",
    ),
    "a threshold of two values": (
        put("threshold/probability", 0.9),
        "cannot load the model in model: the threshold 0 does not match its probability 0.9",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_the_model_file(refused, case):
    spoil, sentence = FILES[case]
    refused([*PREDICT, "--quiet"], sentence, spoil)


CONFIG = {
    "no mapping": ("- a\n", "configuration c.yaml must contain settings, one `name: value` per line"),
    "an unknown setting": ("iteration: 1\n", "unknown setting 'iteration' in c.yaml: did you mean 'iterations'?"),
    "a program": (
        "lr: !!python/object/apply:os.system [touch x]\n",
        "configuration c.yaml, line 1: could not determine",
    ),
    "a huge number": (f"seed: {10**20}\n", "seed must be a whole number, got 100000000000000000000"),
    "another encoding": ("lr: \udcff\n", "configuration c.yaml cannot be read:"),
    "a text for a number": ("lr: fast\n", "lr must be a number, got 'fast'"),
    "a negative number": ("clip_norm: -1\n", "clip_norm must be a number of at least 0, got -1"),
    "a tab": ("lr:\n\t- 1\n", "configuration c.yaml, line 2: found character"),
    "a name outside": ("name: ../../x\n", "and start with a letter, digit or _, got '../../x'"),
}


@pytest.mark.parametrize("case", CONFIG)
def test_the_configuration(refused, case):
    text, sentence = CONFIG[case]
    refused([*TRAIN, "--config", "c.yaml"], sentence, written("c.yaml", text.encode(errors="surrogateescape")))


FIRST = "images/x/cat/0.png"
ARRANGED = "pass the folder with your images, arranged as <domain>/<class>/<image>"
FETCH = ["data", "fetch", "pacs", "--root", "root", "--archive"]
DATASET = {
    "an empty file": (written(FIRST, b""), TRAIN, f"{FIRST} is empty: remove or replace"),
    "a text": (written(FIRST, b"hello"), TRAIN, f"{FIRST} is not in a supported image format (JPEG, PNG"),
    "a cut image": (
        written(FIRST, png((64, 64))[:60]),
        TRAIN,
        f"{FIRST} is damaged: image file is truncated: remove or replace",
    ),
    "a PostScript program": (
        written(FIRST, POSTSCRIPT),
        TRAIN,
        f"{FIRST} is not in a supported image format (JPEG, PNG",
    ),
    "a bomb": (
        lambda folder: (folder / FIRST).write_bytes(png((12_000, 12_000), "1")),
        TRAIN,
        f"{FIRST} is too large: shrink it to at most 134 million pixels and 65536 per side",
    ),
    "a pipe": (instead(FIRST, os.mkfifo), TRAIN, f"{FIRST} is not a regular file: remove or replace"),
    "a device": (
        instead(FIRST, lambda path: path.symlink_to("/dev/zero")),
        TRAIN,
        f"{FIRST} is not a regular file: remove or replace",
    ),
    "a link to nothing": (
        instead(FIRST, lambda path: path.symlink_to("gone")),
        TRAIN,
        f"{FIRST} cannot be read: No such file or directory: remove or replace",
    ),
    "no domain": (lambda folder: shutil.rmtree(folder / "images" / "z"), TRAIN, "unknown domain 'z': choose from x, y"),
    "no images": (lambda folder: None, [*TRAIN, "--root", "empty"], f"root empty is empty: {ARRANGED}"),
    "no folder": (lambda folder: None, [*TRAIN, "--root", "gone"], f"root gone does not exist: {ARRANGED}"),
    "no such class": (
        lambda folder: None,
        [*TRAIN, "--known", "cat", "cow"],
        "unknown class 'cow': choose from cat, dog, owl",
    ),
    "an archive that is none": (
        written("a.zip", b"PK\x03\x04"),
        [*FETCH, "a.zip"],
        "archive a.zip: a.zip is damaged (File is not a zip file); expected contents: <domain>/",
    ),
    "no archive": (lambda folder: None, [*FETCH, "gone"], "--archive gone does not exist: check the path"),
}


@pytest.mark.parametrize("case", DATASET)
def test_the_dataset(refused, case):
    spoil, arguments, sentence = DATASET[case]
    refused(arguments, sentence, spoil)


def test_an_archive_that_leads_outside(refused):
    def spoil(folder):
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            archive.writestr("../../evil", "x")

    refused(
        [*FETCH, "a.zip"],
        "archive a.zip: expected a folder that contains images, splits or art_painting, cartoon, photo, sketch",
        spoil,
    )


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
    reply = answer.json()
    message = reply.get("error") or reply["predictions"][0]["error"]
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

    with pytest.raises(MedicError, match=r"^device .* is not available .*: use cpu$") as caught:
        medic.load(place / "model", device=device)
    assert "\n" not in str(caught.value)


def test_there_are_a_hundred():
    assert sum(map(len, (LINE, FILES, CONFIG, DATASET, HTTP))) >= 100
