"""Read predictions made by any program from a CSV, JSON Lines, Parquet or NumPy file with one row per image."""

import json
import math
import shlex
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from medic import openset
from medic.data.benchmarks.own import csv_rows, parquet_rows
from medic.errors import MedicError, first_line, warn
from medic.evaluation.decisions import Decisions
from medic.openset.metrics import UNKNOWN
from medic.utils.files import csv_name, read_arrays

SUFFIXES = (".csv", ".jsonl", ".parquet", ".npz")
UNKNOWN_NAMES = (str(UNKNOWN), "unknown")
"""Labels for images of unnamed unknown classes."""
LOGIT = "logit_"
"""Prefix of logit columns, followed by the class name."""
TRUE = ("class", "label")
"""Columns with the true class in a file of labels, in order of preference."""
PREDICT = {"label", "known", "score", "threshold", "top1"}
"""Columns in files written by `medic predict`, where `label` is the decision."""

MAX_LISTED = 10
"""Maximum number of classes in an error message."""

Columns = dict[str, NDArray[Any]]


def read_columns(path: Path) -> Columns:
    """Return the columns of a file by name. Columns of text files are string arrays of shape (N,)."""
    if not path.is_file():
        raise MedicError(f"file {path} {'is a folder' if path.is_dir() else 'does not exist'}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MedicError(f"unsupported file {path}: expected one of {', '.join(SUFFIXES)}")
    if suffix == ".npz":
        return _arrays(path)
    rows = csv_rows(path) if suffix == ".csv" else parquet_rows(path) if suffix == ".parquet" else _json_rows(path)
    if not rows:
        raise MedicError(f"file {path} has no rows")
    text = csv_name if suffix == ".csv" else str
    return {name: np.array([text(row.get(name, "")) for row in rows], dtype=str) for name in rows[0]}


def _arrays(path: Path) -> Columns:
    try:
        columns = read_arrays(path)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise MedicError(f"file {path} cannot be read: {first_line(error)}") from error
    lengths = {name: len(values) if values.ndim else 0 for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise MedicError(f"file {path} has columns of different lengths: {_listed(lengths)}")
    if not any(lengths.values()):
        raise MedicError(f"file {path} has no rows")
    return columns


def _json_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a JSON Lines file as strings; a `top` list becomes the columns top1, top2, …"""
    rows, number = [], 0
    try:
        # Not splitlines, which also splits at U+2028 inside a string.
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):  # noqa: B007, of the error
            if line.strip():
                row = dict(json.loads(line))
                for rank, one in enumerate(row.pop("top", ()), start=1):
                    row[f"top{rank}"] = one["class"]
                rows.append(row)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise MedicError(f"file {path} cannot be read, line {number}: {first_line(error)}") from error
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: "" if row.get(name) is None else str(row[name]) for name in names} for row in rows]


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def read_decisions(
    path: Path, labels: Path | None = None, known: Sequence[str] = (), threshold: float | None = None
) -> Decisions:
    """Read decisions from a file. For its columns, see docs/use.md.

    `labels` is a file with the true class for each path. `known` lists the known classes. Without it, the known classes
    come from the logits. Without logits, they are all labels if any image is labelled −1 or unknown, and otherwise the
    predicted classes, which must then include every label.
    """
    columns = read_columns(path)
    written = columns.keys() >= PREDICT
    if written:
        columns, threshold = _of_predict(path, columns, threshold)
    elif "split" in columns and (target := columns["split"] == "target").any():  # a run's own predictions
        columns = {name: values[target] for name, values in columns.items()}
    if "path" in columns:
        _check_unique(path, columns["path"])
    every_row = columns
    if labels is not None:
        paths = _need(path, columns, "path", ", which --labels requires")
        has_label = _labelled(path, paths, labels)
        columns = {name: values[has_label] for name, values in columns.items()}
    names = _true_names(path, columns, labels, written, ", or pass a file with --labels")
    classes, logits = _logits(path, columns)
    if logits is not None:
        taken = np.array(classes)[logits.argmax(axis=1)]
    else:
        taken = _texts(_need(path, columns, "prediction"))
    marked = np.isin(names, UNKNOWN_NAMES)
    if "class" in columns and "label" in columns and not written and labels is None:
        marked |= np.isin(_texts(columns["label"]), UNKNOWN_NAMES)
        classes, taken = _renamed(columns, names, classes, taken)
    present = {*classes, *_predicted(columns, taken)}
    if labels is not None and logits is None:  # a prediction for an image without a label also names a known class
        present |= set(_predicted(every_row, _texts(every_row["prediction"])))
    classes = _known_classes(labels or path, known, classes if logits is not None else [], names, marked, present)
    if known and logits is not None and (missing := sorted(set(taken.tolist()) - set(classes))):
        raise MedicError(f"file {path} has logits for class {missing[0]!r}: add it to --known")
    place = {name: number for number, name in enumerate(classes)}
    label = np.array([place.get(name, UNKNOWN) for name in names.tolist()])
    if not known:
        label[marked] = UNKNOWN
    predicted = np.array([place.get(name, UNKNOWN) for name in taken.tolist()])
    if not (label >= 0).any():
        raise MedicError(
            f"file {path} has no image of a known class ({', '.join(classes[:5])}): check the labels or --known"
        )
    texts = {name: _texts(values) for name, values in columns.items() if values.ndim == 1}
    confidence = _confidence(path, columns, logits)
    return Decisions.named(classes, names, label, predicted, confidence, threshold, texts)


def _of_predict(path: Path, columns: Columns, threshold: float | None) -> tuple[Columns, float]:
    """Convert the columns written by `medic predict`, without unreadable images, and return the threshold."""
    readable = columns["score"] != ""
    if not readable.any():
        raise MedicError(f"file {path} has no readable images")
    if unreadable := int((~readable).sum()):
        warn(f"file {path}: {unreadable:,} of {len(readable):,} images were unreadable and are not evaluated")
    columns = {name: values[readable] for name, values in columns.items()}
    if threshold is None:
        own = np.unique(_numbers(path, "threshold", columns["threshold"])).tolist()
        if len(own) > 1:
            raise MedicError(
                f"file {path} has rows with {len(own)} thresholds, such as {own[0]:g} and {own[1]:g}: "
                "choose one with --threshold"
            )
        threshold = float(own[0])
    renamed = {"prediction": columns["top1"], "confidence": columns["score"], "decision": columns["label"]}
    dropped = ("label", "score")
    kept = {name: values for name, values in columns.items() if name not in dropped}
    return {**kept, **renamed}, threshold


def _need(path: Path, columns: Columns, name: str, or_else: str = "") -> NDArray[Any]:
    if name not in columns:
        raise MedicError(f"file {path} has no column {name!r}{or_else}; its columns: {', '.join(columns) or 'none'}")
    return columns[name]


def _texts(values: NDArray[Any]) -> NDArray[np.str_]:
    """Convert values to strings, with whole numbers written without a decimal point."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return np.char.strip(values.astype(str))


def _numbers(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert a column to numbers; raise an error that names the first invalid row."""
    if values.ndim != 1 or values.dtype.kind not in "USfiub":
        raise MedicError(f"file {path}, column {name!r}: expected one number per row")
    try:
        numbers: NDArray[np.float64] = values.astype(np.float64)
        wrong = np.flatnonzero(np.isnan(numbers))
    except ValueError:
        wrong = np.array([row for row, value in enumerate(values.tolist()) if not _is_number(value)])
    if len(wrong):
        value = str(values[wrong[0]])
        raise MedicError(f"file {path}, row {wrong[0] + 1}: {name} {value!r} is not a number")
    return numbers


def _is_number(value: str) -> bool:
    try:
        return not math.isnan(float(value))
    except ValueError:
        return False


def _check_unique(path: Path, paths: NDArray[Any]) -> None:
    name, count = Counter(paths.tolist()).most_common(1)[0]
    if count > 1:
        raise MedicError(f"file {path} has {count} rows for {name}: keep one row per image")


def _true_names(path: Path, columns: Columns, labels: Path | None, written: bool, others: str) -> NDArray[np.str_]:
    """Return the true class names, from the file or from `labels`; `others` completes the hint in errors."""
    if labels is not None:
        return joined(labels, TRUE, _need(path, columns, "path", ", which --labels requires"))
    if "class" in columns:
        names = _texts(columns["class"])
    elif written:
        way = "add a column 'class' with the true classes"
        raise MedicError(f"file {path} was written by `medic predict`, so its labels are predictions: {way}{others}")
    else:
        names = _texts(_need(path, columns, "label", f" with the true class: add it{others}"))
    if (empty := np.flatnonzero(names == "")).size:
        raise MedicError(
            f"file {path}, row {empty[0] + 1}: the label is empty; use a class name, or {UNKNOWN} for unknown"
        )
    return names


def read_labels(path: Path) -> list[tuple[str, str]]:
    """Read image paths, relative to the file's folder, and their true classes."""
    columns = read_columns(path)
    names = _true_names(path, columns, None, columns.keys() >= PREDICT, "")
    paths = _need(path, columns, "path").astype(str)
    _check_unique(path, paths)
    return [(str(path.parent / one), name) for one, name in zip(paths.tolist(), names.tolist(), strict=True)]


def _labelled(path: Path, paths: NDArray[Any], labels: Path) -> NDArray[np.bool_]:
    """Return which images have a label, as a mask of shape (N,). Warn about the other images."""
    columns = read_columns(labels)
    name = next((name for name in TRUE if name in columns), TRUE[0])
    present = _need(labels, columns, "path")[_texts(_need(labels, columns, name)) != ""]
    has_label = np.isin(paths.astype(str), present.astype(str))
    if not has_label.any():
        raise MedicError(f"file {labels} has no labels for the images in {path}, such as {paths[0]}: compare the paths")
    if not has_label.all():
        missing = f"{int((~has_label).sum()):,} of {len(paths):,} images have no label"
        warn(f"file {labels}: {missing} and are not evaluated, such as {paths[~has_label][0]}")
    return has_label


def joined(path: Path, names: Sequence[str], paths: NDArray[Any]) -> NDArray[np.str_]:
    """Look up images by path in a file; return the values of the first column in `names` that exists.

    `paths` and the returned values have shape (N,).
    """
    columns = read_columns(path)
    keys = _need(path, columns, "path").astype(str)
    _check_unique(path, keys)
    name = next((name for name in names if name in columns), names[0])
    value_by_path = dict(zip(keys.tolist(), _texts(_need(path, columns, name)).tolist(), strict=True))
    missing = [one for one in paths.astype(str).tolist() if one not in value_by_path]
    if missing:
        raise MedicError(f"file {path} has no row for {len(missing)} of {len(paths)} images, such as {missing[0]}")
    return np.array([value_by_path[one] for one in paths.astype(str).tolist()], dtype=str)


def _logits(path: Path, columns: Columns) -> tuple[list[str], NDArray[np.float64] | None]:
    """Return the classes of the logits and the logits of shape (N, C), or ([], None) without logits."""
    if "logits" in columns:
        logits = columns["logits"]
        if logits.ndim != 2 or logits.dtype.kind != "f":
            raise MedicError(f"file {path}, column 'logits': expected floats of shape (images, classes)")
        classes = [str(number) for number in range(logits.shape[1])]
    elif own := [name for name in columns if name.startswith(LOGIT)]:
        classes = [name.removeprefix(LOGIT) for name in own]
        logits = np.column_stack([_numbers(path, name, columns[name]) for name in own])
    else:
        return [], None
    if (wrong := np.flatnonzero(np.isnan(logits).any(axis=1))).size:
        raise MedicError(f"file {path}, row {wrong[0] + 1}: a logit is not a number")
    return classes, logits.astype(np.float64)


def _renamed(
    columns: Columns, names: NDArray[np.str_], classes: list[str], taken: NDArray[np.str_]
) -> tuple[list[str], NDArray[np.str_]]:
    """Replace class numbers with names, where `label` contains the numbers and `class` the names."""
    title = dict(zip(_texts(columns["label"]).tolist(), names.tolist(), strict=True))
    for name in UNKNOWN_NAMES:
        title.pop(name, None)
    predicted = [title.get(one, one) for one in taken.tolist()]
    return [title.get(name, name) for name in classes or sorted(title, key=str)], np.array(predicted, dtype=str)


def _predicted(columns: Columns, taken: NDArray[np.str_]) -> list[str]:
    """Return the sorted classes that occur as predictions."""
    ranks = [values for name, values in columns.items() if name.startswith("top") and name[3:].isdecimal()]
    names = {name for values in (taken, *ranks) for name in values.tolist()}
    return sorted(names - {*UNKNOWN_NAMES, ""}, key=str.casefold)


def _known_classes(
    path: Path,
    known: Sequence[str],
    logits: Sequence[str],
    names: NDArray[np.str_],
    marked: NDArray[np.bool_],
    predicted: set[str],
) -> list[str]:
    """Return the known classes; `marked`, of shape (N,), is true for images labelled as unknown."""
    if known:
        return list(dict.fromkeys(known))
    if logits:
        return list(logits)
    labelled = set(names[~marked].tolist())
    # A class that is never predicted may be unknown, or the model may always get it wrong.
    if not marked.any() and (missing := sorted(labelled - predicted, key=_by_number)):
        example = shlex.join(sorted(predicted, key=_by_number)[:MAX_LISTED])
        example += " …" if len(predicted) > MAX_LISTED else ""
        raise MedicError(
            f"file {path} has images of class {missing[0]!r}, which is never predicted: list all known classes, as in "
            f"--known {example}, or label images of unknown classes {UNKNOWN}"
        )
    return sorted((labelled | predicted) - set(UNKNOWN_NAMES), key=_by_number)


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isascii() and name.isdecimal() and len(name) < 10 else (2**31, name.casefold())


def _confidence(path: Path, columns: Columns, logits: NDArray[np.float64] | None) -> NDArray[np.float64]:
    for name in ("confidence", "score"):
        if name in columns:
            return _numbers(path, name, columns[name])
    if logits is None:
        _need(path, columns, "confidence", " or 'score', higher for known images")
    return openset.conf_cls(torch.from_numpy(logits)).numpy()


def with_column(decisions: Decisions, path: Path, column: str) -> Decisions:
    """Add a column from a file to the decisions, joined by path."""
    if "path" not in decisions.columns:
        raise MedicError(f"--groups {path} requires predictions with a column 'path'")
    values = joined(path, (column,), decisions.columns["path"])
    return replace(decisions, columns={**decisions.columns, column: values})
