"""Damaged files of predictions and labels, for `medic evaluate --predictions`."""

import csv
import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz.damage import damage, replace_value
from benchmarks.fuzz.harness import Door, Fault, command

KINDS = ("csv", "jsonl", "parquet", "npz")
CLASSES = ("cat", "dog", "fish")
IMAGES = 12


@functools.cache
def make_rows() -> tuple[dict[str, Any], ...]:
    """Return predictions of two known classes, and of images of one that is unknown."""
    return tuple(
        {
            "path": f"{number}.png",
            "label": CLASSES[number % 3],
            "prediction": CLASSES[number % 2],
            "confidence": (number * 5 % IMAGES) / IMAGES,
            "domain": "ab"[number % 2],
        }
        for number in range(IMAGES)
    )


def written(rows: Any, kind: str) -> bytes:
    """Return rows as the contents of a file."""
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode(errors="surrogatepass")
    text = io.StringIO()
    if kind == "csv":
        writer = csv.DictWriter(text, list(make_rows()[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row if isinstance(row, dict) else {"path": row} for row in rows)
        return text.getvalue().encode(errors="surrogatepass")
    file = io.BytesIO()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), file)
    else:
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        np.savez(file, **columns)
    return file.getvalue()


def prepare(folder: Path) -> None:
    """Write labels, and evaluate one file of every kind."""
    lines = ["path,class", *(f"{row['path']},{row['label']}" for row in make_rows())]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    for kind in KINDS:
        file = folder / f"file.{kind}"
        file.write_bytes(written(make_rows(), kind))
        code, _, err = command("evaluate", "--predictions", str(file), "--known", "cat", "dog")
        assert code == 0, err


def attempt(folder: Path, draw: random.Random) -> bool:
    """Evaluate a damaged file; what is accepted has metrics from 0 to 1."""
    kind = draw.choice(KINDS)
    file, labels = folder / f"file.{kind}", folder / "labels.csv"
    arguments = ["evaluate", "--predictions", str(file), "--json"]
    if draw.random() < 0.5 and kind in ("csv", "jsonl"):
        rows = list(make_rows())
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(rows))
            rows[place] = replace_value(rows[place], draw)
        file.write_bytes(written(rows, kind))
    else:
        file.write_bytes(damage(written(make_rows(), kind), draw))
    if draw.random() < 0.2:
        damaged = folder / "damaged.csv"
        damaged.write_bytes(damage(labels.read_bytes(), draw))
        arguments += ["--labels", str(damaged)]
    arguments += [] if draw.random() < 0.1 else ["--known", "cat", "dog"]
    arguments += draw.choice(([], ["--threshold", "0.5"], ["--per-class"], ["--by", "domain"]))
    code, out, _ = command(*arguments)
    if code == 0:
        for name, value in json.loads(out).items():
            if isinstance(value, float) and name != "threshold" and not 0 <= value <= 1:
                raise Fault(f"{name} is {value}")
    return code == 0


DOOR = Door("predictions", prepare, attempt, 20_000)
