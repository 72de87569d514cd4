"""Benchmarks that train or measure, on small data. Their numbers mean nothing here."""

import json
import sys

import pytest

import medic
from benchmarks import features, throughput
from medic.data import BENCHMARKS
from tests.data.pictures import picture

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for domain in BENCHMARKS["pacs"].domains:
        for label in BENCHMARKS["pacs"].classes:
            (root / "PACS" / domain / label).mkdir(parents=True)
            for index in range(10):
                picture(index).save(root / "PACS" / domain / label / f"{index}.png")
    return root


def measure(monkeypatch, path, benchmark, *arguments):
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *map(str, arguments), "--output", str(path)])
    benchmark.main()
    return json.loads(path.read_text())["rows"]


def test_throughput_of_backbones(pacs, tmp_path, monkeypatch):
    rows = measure(
        monkeypatch, tmp_path / "rows.json", throughput,
        "--root", pacs, "--backbones", "convnet", "--image-size", 32, "--seconds", 0.1, "--compile", "off",
        "--tunes", "all", "head", "--methods", "erm", "medic++",
    )  # fmt: skip
    assert [row["what"] for row in rows] == [
        f"convnet, {tune}, 32 px, {method}" for tune in ("all", "head") for method in ("erm", "medic++")
    ]
    assert all(row["images/s"] > 0 and row["× bare"] == row["images/s"] / row["bare"] for row in rows)


def test_frozen_features(pacs, tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path))  # the benchmark sets it
    [row] = measure(
        monkeypatch, tmp_path / "rows.json", features, "--root", pacs, "--backbones", "convnet", "--sizes", 32
    )
    assert (row["backbone"], row["px"], row["images"]) == ("convnet", 32, 280)
    assert row["features s"] > 0


def test_scores_against_pytorch_ood(mini, tmp_path):
    run = medic.train(
        dataset=mini, target="street", method="erm", iterations=20, save_features=True, output=tmp_path, quiet=True
    )
    from benchmarks.against_pytorch_ood import THEIRS, rows_of

    rows = rows_of(run)
    assert [row["score"] for row in rows] == list(THEIRS)
    for row in rows:
        if row["score"] not in ("rmds", "temperature"):  # their ridge is another, and their fit stops early
            assert row["medic"] == row["pytorch-ood"], row
