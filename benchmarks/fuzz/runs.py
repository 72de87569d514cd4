"""Damaged files of a run, read by `medic table`, `medic runs`, `medic evaluate` and `medic.Run`."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.fuzz.damage import damage, replace_value
from benchmarks.fuzz.harness import Door, Fault, command
from benchmarks.fuzz.small_run import copy, make_runs, settings

PROPERTIES = (
    "seconds", "settings", "records", "description", "metrics", "record", "predictions", "splits", "domains", "score",
    "preprocessing", "model",
)  # fmt: skip
TEXTS = (
    b"", b"\xff\xfe\0x", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"null", b"[]", b'"x"', b"{}", b"\0" * 100,
    b"\n\n{}\n", b"&a [*a]", b"? {x: y}\n: z", b"a: b: c", b"{\xe2\x80\xa8}",
)  # fmt: skip
TABLES = (*(["--format", kind] for kind in ("text", "markdown", "latex", "csv", "json")), ["--metrics", "auroc", "acc"],
          ["--explain", "erm", "z"], ["--columns", "source"])  # fmt: skip


def damage_file(path: Path, draw: random.Random) -> None:
    """Damage a file of a run as its format allows."""
    chance = draw.random()
    if chance < 0.05:
        path.unlink()
        if draw.random() < 0.3:
            path.mkdir()
    elif chance < 0.15:
        path.write_bytes(draw.choice(TEXTS))
    elif chance < 0.35 or path.suffix in (".pt", ""):
        path.write_bytes(damage(path.read_bytes() or b"{}", draw))
    elif path.suffix == ".npz":
        path.write_bytes(_damage_arrays(path, draw))
    elif path.suffix == ".safetensors":
        path.write_bytes(_damage_tensors(path.read_bytes(), draw))
    elif path.suffix == ".yaml":
        values = replace_value(yaml.safe_load(path.read_text()), draw)
        path.write_text(yaml.safe_dump(values, allow_unicode=True), errors="surrogatepass")
    else:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        chosen = draw.randrange(len(lines))
        lines[chosen] = json.dumps(replace_value(json.loads(lines[chosen]), draw))
        path.write_text("\n".join(lines) + "\n")


def _damage_arrays(path: Path, draw: random.Random) -> bytes:
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    name = draw.choice(list(arrays))
    array, buffer = arrays.pop(name), io.BytesIO()
    other = draw.choice(list(arrays.values()))
    changed = (
        None, array[: len(array) // 2], array[:0], array[:1].repeat(3 * len(array), 0), array.astype("U5"),
        array.astype(object), other, array.astype("U5").astype("S5"), array[..., None], array.ravel()[:1].reshape(()),
        np.zeros(len(array), bool), -np.arange(len(array)), np.full(array.shape, np.nan), np.zeros((len(array), 0)),
        np.full(len(array), "x"), np.zeros((len(array), 3), complex),
    )  # fmt: skip
    if (new := draw.choice(changed)) is not None:
        arrays[name if draw.random() < 0.9 else draw.choice(("x", "../x", "split"))] = new
    (np.savez_compressed if draw.random() < 0.2 else np.savez)(buffer, **arrays)
    data = buffer.getvalue()
    if draw.random() < 0.2:  # a header that promises more rows than there are; zip members are stored
        shape = f"'shape': ({len(other)},".encode()
        data = data.replace(shape, shape[: -len(str(len(other))) - 1] + b"9" * len(str(len(other))) + b",")
    return data


def _damage_tensors(data: bytes, draw: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(replace_value(json.loads(data[8 : 8 + length]), draw)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def prepare(folder: Path) -> None:
    """Train the run, and read it once."""
    import medic

    make_runs(folder)
    good = medic.train(**settings(folder, output=str(folder / "both"), seed=1), quiet=True)
    assert _use(good.path, random.Random(0)), "the run is not damaged yet"


def attempt(folder: Path, draw: random.Random) -> bool:
    """Damage a run beside a good one, and use both."""
    place = folder / "both"
    unfinished = draw.random() < 0.1
    shutil.rmtree(place / "bad", ignore_errors=True)  # of the attempt before, which may have been killed
    bad = copy(folder / ("unfinished" if unfinished else "finished"), folder / "bad").rename(place / "bad")
    if unfinished and draw.random() < 0.5:
        (bad / "error.json").write_text('{"reason": "x", "attempts": [{"reason": "x"}]}')
    files = sorted(path for path in bad.rglob("*") if path.is_file() and path.name != ".lock")
    weights = [
        0.3 if path.suffix in (".pt", ".safetensors") else 2 if path.name == "results.jsonl" else 1 for path in files
    ]
    for path in dict.fromkeys(draw.choices(files, weights, k=draw.choice((1, 1, 2)))):
        damage_file(path, draw)
    return _use(bad, draw)


def _use(bad: Path, draw: random.Random) -> bool:
    """Use a damaged run in every way; return whether all of it works."""
    import medic
    from medic.errors import MedicError

    table = ["table", str(bad.parent), *draw.choice(TABLES)]
    table += ["--selection", draw.choice(("validation", "domainbed", "last", "oracle"))] if draw.random() < 0.3 else []
    code, _, err = command(*table)
    if code == 2 and "--explain" not in table:  # damage may make a second row, of which one has to be named
        raise Fault(f"a damaged run ends medic table for the others: {err.splitlines()[-1][:70]}")
    fine = [code == 0]
    code, _, err = command("runs", str(bad.parent), "--format", draw.choice(("text", "json")))
    if code:
        raise Fault(f"a damaged run ends medic runs for the others: {err.splitlines()[-1][:70]}")
    rule = draw.choice(([], [], ["--json"], ["--score", "energy"], ["--score", "knn"], ["--threshold", "oracle-10"]))
    fine.append(command("evaluate", str(bad), *rule)[0] == 0)
    for name in PROPERTIES:
        try:
            getattr(medic.Run(bad), name)
        except MedicError:
            fine.append(False)
    try:
        run = medic.Run(bad)
        for split in run.splits:
            run.outputs(split)
    except MedicError:
        fine.append(False)
    medic.load_runs(bad.parent)
    return all(fine)


DOOR = Door("runs", prepare, attempt, 2000)
