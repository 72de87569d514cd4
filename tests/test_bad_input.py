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
    (["predict", "gone", "x.png"], "gone does not exist: give the directory of a finished run, or of a model"),
    (["predict", "empty", "x.png"], "empty is not a run or a model: give the run first, then the images"),
    (["predict", "images", "x.png"], "images is not a run or a model: give the run first, then the images"),
    (["predict", "model/gone.json", "x.png"],
     "model/gone.json does not exist: give the directory of a finished run, or of a model"),
    (["predict", "model\0", "x.png"],
     "model\\x00 does not exist: give the directory of a finished run, or of a model"),
    (["predict", "x" * 5000, "x.png"], ": File name too long"),
    ([*PREDICT, "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    ([*PREDICT, "--device", "tpu"], "unknown device 'tpu', choose from auto, cpu, cuda"),
    ([*PREDICT, "--top", "0"], "--top 0: give a whole number of at least 1"),
    ([*PREDICT, "--top", "all"], "--top all: give a whole number of at least 1"),
    ([*PREDICT, "--batch-size", "-1"], "--batch-size -1: give a whole number of at least 1"),
    ([*PREDICT, "--threshold", "2"], "threshold 2: score 'cls' is a probability, give 0 to 1"),
    ([*PREDICT, "--threshold", "nan"], "--threshold nan: give a number"),
    ([*PREDICT, "--threshold", "high"], "--threshold high: give a number"),
    ([*PREDICT, "--format", "xml"], "unknown format 'xml', choose from csv, jsonl, parquet"),
    ([*PREDICT, "-o", "rows.xml"],
     "output rows.xml does not end in .csv, .jsonl, .parquet: rename it, or choose --format"),
    ([*PREDICT, "-o", "gone/rows.csv"],
     "--output gone/rows.csv cannot be written, there is no folder gone: create it, or name another"),
    ([*PREDICT, "-o", "empty", "--format", "csv"], "--output empty is a folder: name a file"),
    (["predict", "model", "empty"],
     "folder empty has no images: no file ends in .bmp, .gif, .jfif, .jpeg"),
    (["predict", "model", "*.jpg"], "pattern *.jpg matches no file"),
    (["predict", "model", "@gone.txt"], "list gone.txt cannot be read: No such file or directory"),
    (["predict", "model", "@empty"], "list empty cannot be read: Is a directory"),
    ([*PREDICT, "--tpo", "3"], "unknown option '--tpo', did you mean '--top'?"),
    (["export", "gone"], "gone does not exist: give the directory of a finished run, or of a model"),
    (["export", "model"], "model is not a run, so it has no target images: check it on others with --images"),
    (["export", "model", "--format", "tflite"], "unknown format 'tflite', choose from onnx, torch-export"),
    (["export", "model", "--images", "gone.png"],
     "path gone.png does not exist: give images, folders, quoted patterns, @FILE or -"),
    (["export", "model", "--images", "empty"],
     "folder empty has no images: no file ends in .bmp, .gif, .jfif, .jpeg"),
    (["serve", "gone"], "gone does not exist: give the directory of a finished run, or of a model"),
    (["serve", "model", "--host", "0.0.0.0"],
     "--host 0.0.0.0 lets other machines connect: set a token with MEDIC_TOKEN or --token"),
    (["serve", "model", "--port", "http"], "--port http: give a whole number of at least 0 and at most 65535"),
    (["serve", "model", "--max-bytes", "0"], "--max-bytes 0: give a number above 0"),
    (["serve", "model", "--queue", "1"],
     "--queue 1 is less than --max-files 64: a request of that many images could never be accepted"),
    (["serve", "model", "--wait-ms", "-1"], "--wait-ms -1: give 0 to 10000"),
    (["serve", "model", "--token", "a b"], "--token or MEDIC_TOKEN must be printable ASCII characters without spaces"),
    (["serve", "model", "--replicas", "2"], "--replicas is only used with --ray: add --ray, or leave out --replicas"),
    (["serve", "model", "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    (["evaluate", "model"],
     "model is not a run directory, it has no config.json: give the directory that training prints when it ends"),
    (["report", "gone"], "run gone does not exist: give the directory that training prints when it ends"),
    (["table", "gone"], "folder gone does not exist: give the --output of a training command, or a run in it"),
    (["table", "empty", "--format", "xls"], "unknown format 'xls', choose from text, markdown, latex, csv, json"),
    (["analyze", "gradients", "gone"], "run gone does not exist: give the directory that training prints when it ends"),
    (["analyze", "gradient", "gone"], "unknown analysis 'gradient', did you mean 'gradients'?"),
    ([*TRAIN, "--device", "cuda"], "device 'cuda': torch finds no GPU; use --device cpu"),
    ([*TRAIN, "--output", "/dev/null/x"], "output /dev/null/x cannot be written: Not a directory"),
    ([*TRAIN, "--name", "../x"], "name '../x': give one of letters and digits; _ . + = , @ - may follow"),
    ([*TRAIN, "--weights", "model/model.json"], "weights model/model.json are not a plain state dict of tensors"),
    (["predict", "model", "@none.txt"], "no image in @none.txt: write a path per line"),
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
        "model is not a run or a model: give the run first, then the images",
    ),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "model holds no model, it has no model.safetensors"),
    "an empty description": (written(MODEL, b""), "model/model.json is not the description of a model"),
    "a list": (written(MODEL, b"[]"), "model/model.json is not the description of a model"),
    "another encoding": (written(MODEL, "{}".encode("utf-16")), "model/model.json is not the description of a model"),
    "deep nesting": (written(MODEL, b"[" * 10**6), "model/model.json is not the description of a model"),
    "a large description": (
        instead(MODEL, sparse(2**25)),
        "model/model.json has more than 16 MiB, so it is not that of a model",
    ),
    "a device": (
        instead(MODEL, lambda path: path.symlink_to("/dev/zero")),
        "model holds no model, it has no model.json",
    ),
    "a pipe": (instead(WEIGHTS, os.mkfifo), "model holds no model, it has no model.safetensors"),
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
    "a folder": (instead(WEIGHTS, Path.mkdir), "model holds no model, it has no model.safetensors"),
    "a link to itself": (
        instead(WEIGHTS, lambda path: path.symlink_to(path.name)),
        "model holds no model, it has no model.safetensors",
    ),
    "an earlier format": (
        put("format", 1),
        "the format 1 and this version reads 2 to 3; an earlier one wrote it: train the model again",
    ),
    "a later format": (
        put("format", 4),
        "model/model.json has the format 4 and this version reads 2 to 3; a newer version wrote it: upgrade medic",
    ),
    "empty weights": (written(WEIGHTS, b""), "the model in model cannot be used:"),
    "a pickle": (
        written(WEIGHTS, b"\x80\x04cos\nsystem\n(S'touch x'\ntR."),
        "the model in model cannot be used: model.safetensors has a header of 8751349991817282688 bytes",
    ),
    "a length of 2⁶³": (
        written(WEIGHTS, b"\xff" * 8 + b"{}"),
        "the model in model cannot be used: model.safetensors has a header of 18446744073709551615 bytes",
    ),
    "a file of zeros": (instead(WEIGHTS, sparse(2**33)), "the model in model cannot be used:"),
    "a tensor beyond the end": (
        reheaded(end_at),
        "the model in model cannot be used: model.safetensors is not as long as its header says",
    ),
    "a tensor too few": (
        reheaded(lambda header: header.pop("backbone.conv1.weight")),
        "the model in model cannot be used:",
    ),
    "another checksum": (
        put("sha256", "0" * 64),
        "the model in model cannot be used: model.safetensors is not the file that was written with it",
    ),
    "a program as backbone": (
        put("model/backbone", "__import__('os').system('touch x')"),
        "the model in model cannot be used: unknown backbone \"__import__('os').system('touch x')\", choose convnet",
    ),
    "a path as backbone": (
        put("model/backbone", "../../etc/passwd"),
        "the model in model cannot be used: unknown backbone '../../etc/passwd', choose convnet",
    ),
    "a hub as backbone": (
        put("model/backbone", "hf-hub:stranger/model"),
        "the model in model cannot be used: unknown backbone 'hf-hub:stranger/model', choose convnet",
    ),
    "a long name of a backbone": (
        put("model/backbone", "x" * 10**6),
        "the model in model cannot be used: unknown backbone 'xxxxxxxxxxxxxxxxxxxx'…, choose convnet",
    ),
    "a larger backbone": (
        put("model/backbone", "resnet152"),
        "the model in model cannot be used: its weights are not those of its network: backbone.bn1.bias",
    ),
    "a thousand networks": (put("model/networks", 1000), "the model in model cannot be used: it has 1000 networks"),
    "another head": (
        put("model/head", "separate"),
        "the model in model cannot be used: its weights are not those of its network: head.ova_head.bias",
    ),
    "many classes": (
        put("classes", [str(k) for k in range(10**5)]),
        "the model in model cannot be used: its weights are not those of its network: head.close_head.bias",
    ),
    "a class twice": (
        put("classes", ["cat", "cat"]),
        "the model in model cannot be used: two of its classes have the same name",
    ),
    "classes that are no names": (
        put("classes", [1, 2]),
        "the model in model cannot be used: its classes are not a list of names",
    ),
    "images of 10⁶ pixels a side": (
        put("preprocessing/size", 10**6),
        "the model in model cannot be used: its preprocessing is impossible",
    ),
    "images of another size": (
        put("preprocessing/size", 48),
        "the model cannot be used on images: the ConvNet takes images of 32x32 pixels, not 48x48",
    ),
    "a division by zero": (
        put("preprocessing/std", [0, 0, 0]),
        "the model in model cannot be used: its preprocessing is impossible",
    ),
    "a mean beyond all numbers": (put("preprocessing/mean", [1e308] * 3), "the model cannot be used on images:"),
    "a million views": (put("views", 10**6), "the model in model cannot be used: it has 1000000 views"),
    "a score that is none": (
        put("score/name", "eval"),
        "the model in model cannot be used: unknown score 'eval', choose from cls, bcls",
    ),
    "a score without its tensors": (
        put("score/name", "knn"),
        "the model in model cannot be used: its weights file lacks tensors that the score 'knn' needs, or has others",
    ),
    "a threshold of NaN": (
        put("threshold/value", float("nan")),
        "the model in model cannot be used: its threshold is not a number",
    ),
    "a threshold of two values": (
        put("threshold/probability", 0.9),
        "the model in model cannot be used: its threshold 0 is not that of the probability 0.9",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_the_model_file(refused, case):
    spoil, sentence = FILES[case]
    refused([*PREDICT, "--quiet"], sentence, spoil)


CONFIG = {
    "no mapping": ("- a\n", "configuration c.yaml holds no settings: write a line `name: value` for each"),
    "an unknown setting": ("iteration: 1\n", "unknown setting 'iteration' in c.yaml, did you mean 'iterations'?"),
    "a program": (
        "lr: !!python/object/apply:os.system [touch x]\n",
        "configuration c.yaml, line 1: could not determine",
    ),
    "a huge number": (f"seed: {10**20}\n", "seed is 100000000000000000000: give a whole number"),
    "another encoding": ("lr: \udcff\n", "configuration c.yaml cannot be read:"),
    "a text for a number": ("lr: fast\n", "lr is 'fast': give a number"),
    "a negative number": ("clip_norm: -1\n", "clip_norm is -1: give a whole number of at least 0"),
    "a tab": ("lr:\n\t- 1\n", "configuration c.yaml, line 2: found character"),
    "a name outside": ("name: ../../x\n", "name '../../x': give one of letters and digits; _ . + = , @ - may follow"),
}


@pytest.mark.parametrize("case", CONFIG)
def test_the_configuration(refused, case):
    text, sentence = CONFIG[case]
    refused([*TRAIN, "--config", "c.yaml"], sentence, written("c.yaml", text.encode(errors="surrogateescape")))


FIRST = "images/x/cat/0.png"
ARRANGED = "give the folder of your images, arranged as <domain>/<class>/<image>"
FETCH = ["data", "fetch", "pacs", "--root", "root", "--archive"]
DATASET = {
    "an empty file": (written(FIRST, b""), TRAIN, f"{FIRST} is empty: remove or replace"),
    "a text": (written(FIRST, b"hello"), TRAIN, f"{FIRST} is not an image of a format that is read: JPEG, PNG"),
    "a cut image": (
        written(FIRST, png((64, 64))[:60]),
        TRAIN,
        f"{FIRST} is damaged: image file is truncated: remove or replace",
    ),
    "a PostScript program": (
        written(FIRST, POSTSCRIPT),
        TRAIN,
        f"{FIRST} is not an image of a format that is read: JPEG, PNG",
    ),
    "a bomb": (
        lambda folder: (folder / FIRST).write_bytes(png((12_000, 12_000), "1")),
        TRAIN,
        f"{FIRST} has more than 134 million pixels, or 65536 on a side: shrink it",
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
    "no domain": (lambda folder: shutil.rmtree(folder / "images" / "z"), TRAIN, "unknown domain 'z', choose from x, y"),
    "no images": (lambda folder: None, [*TRAIN, "--root", "empty"], f"root empty is empty: {ARRANGED}"),
    "no folder": (lambda folder: None, [*TRAIN, "--root", "gone"], f"root gone does not exist: {ARRANGED}"),
    "no such class": (
        lambda folder: None,
        [*TRAIN, "--known", "cat", "cow"],
        "unknown class 'cow', choose from cat, dog, owl",
    ),
    "an archive that is none": (
        written("a.zip", b"PK\x03\x04"),
        [*FETCH, "a.zip"],
        "archive a.zip: a.zip is damaged (File is not a zip file); it must hold <domain>/",
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
        "archive a.zip: no folder holds images, splits or art_painting, cartoon, photo, sketch side by side",
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

    with pytest.raises(MedicError, match=r"^device .* cannot be used .*: use cpu$") as caught:
        medic.load(place / "model", device=device)
    assert "\n" not in str(caught.value)


def test_there_are_a_hundred():
    assert sum(map(len, (LINE, FILES, CONFIG, DATASET, HTTP))) >= 100
