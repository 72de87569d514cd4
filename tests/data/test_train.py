"""Short runs on every kind of data."""

import pytest
import torch

import medic
from medic.errors import MedicError
from tests.data.pictures import picture
from tests.messages import naming

CLOSED = {"acc", "domain_auroc", "ece/cls", "brier/cls", "nll/cls", "ece/bcls", "brier/bcls", "nll/bcls"}
"""The metrics if every class is known."""
SHORT = {
    "method": "medic++", "iterations": 2, "backbone": "convnet", "holdout": 0.4, "batch_size": 2, "device": "cpu",
    "quiet": True,
}  # fmt: skip
SMALL = {**SHORT, "backbone": "small"}
"""On the benchmark of 400 images."""


def test_a_folder(root, tmp_path):
    """In memory, mapped and streamed it is the same run, down to the bytes of its model."""
    bytes_of = set()
    for where in ("ram", "map", "stream"):
        run = medic.train(dataset="folder", root=root, target="二番", store=where, output=tmp_path / where, **SHORT)
        bytes_of.add((run.path.name, (run.path / "model.safetensors").read_bytes()))
    assert len(bytes_of) == 1
    assert run.settings["image_size"] == 32  # as the backbone wants it
    assert run.description["preprocessing"]["size"] == 32


def test_a_larger_store_to_crop_from(root, tmp_path):
    settings = {**SHORT, "dataset": "folder", "root": root, "target": "二番", "output": tmp_path / "o"}
    run = medic.train(store_size=48, augment="scale=0.5:1", **settings)
    assert run.settings["store_size"] == 48
    assert run.settings["augment"] == "scale=0.5:1.0"
    assert run.model(run.preprocessing(torch.zeros(1, 3, 48, 48))).logits.shape == (1, 2)
    with pytest.raises(MedicError, match=naming("store_size 16 32")):
        medic.train(store_size=16, **settings)


def test_a_table_with_a_further_axis(root, tmp_path):
    rows = [f'"{f.relative_to(root)}",{f.parent.name[0]},{f.parts[-3][0]},{i % 2}'
            for i, f in enumerate(sorted(root.rglob("*.*")))]  # fmt: skip
    (root / "t.csv").write_text("path,class,domain,camera\n" + "\n".join(rows) + "\n")
    run = medic.train(
        dataset="table", root=str(root / "t.csv"), target="f", axes="camera=2", output=str(tmp_path / "o"), **SHORT
    )  # fmt: skip
    assert run.settings["axes"] == {"camera": 2}
    assert run.settings["steps"] == [2, 2]
    assert set(run.metrics) == CLOSED  # every class is known


def test_cmnist(idx, tmp_path):
    run = medic.train(
        dataset="cmnist", root=idx, target="-90%", method="medic++", iterations=2, batch_size=2, device="cpu",
        quiet=True, output=tmp_path / "o",
    )  # fmt: skip
    assert run.settings["backbone"] == "mnist-cnn"
    assert run.records[0]["args"]["dataset"] == "ColoredMNIST"  # as DomainBed calls it
    assert run.settings["steps"] == [2, 2]
    assert set(run.metrics) == CLOSED
    assert "source" not in run.record


def test_one_source_and_several_targets(mini, tmp_path):
    run = medic.train(dataset=mini, sources=["printed"], output=tmp_path, **{**SMALL, "holdout": 0.2})
    assert run.settings["target"] == ["handwritten", "blended", "street"]
    targets = run.record["targets"]
    assert list(targets) == run.settings["target"]
    for key in ("acc", "hscore", "oscr_b"):
        assert run.metrics[key] == pytest.approx(sum(metrics[key] for metrics in targets.values()) / 3)
    assert {"env0_in_acc", "env1_in_acc", "env1_out_acc", "env3_out_acc"} <= run.record.keys()
    assert run.records[0]["args"]["test_envs"] == [0, 2, 3]
    split = run.description["provenance"]["split"]
    assert split["name"] == "mini-6-4"
    assert set(run.predictions["domain"][run.predictions["split"] == "target"]) == set(run.settings["target"])


def test_partial_classes(mini, tmp_path):
    run = medic.train(dataset=mini, target="street", split="mini-6-1-partial", output=tmp_path, **SMALL)
    assert run.settings["partial"]["printed"] == ["0", "1", "4", "5"]
    assert run.settings["unknown"] == ["9"]
    assert run.description["provenance"]["split"]["name"] == "mini-6-1-partial"
    again = medic.train(
        dataset=mini, target="street", known=list("012345"), unknown=["9"], output=tmp_path,
        partial=["handwritten=0,1,2,3", "printed=0,1,4,5", "blended=2,3,4,5"], **SMALL,
    )  # fmt: skip
    assert again.path == run.path


def test_domainbeds_holdout_follows_the_trial_seed(mini, tmp_path):
    settings = {**SMALL, "dataset": mini, "target": "street", "validation": "domainbed", "output": tmp_path}
    a, b = (medic.train(seed=seed, trial_seed=0, **settings) for seed in (0, 1))
    c = medic.train(seed=0, trial_seed=1, **settings)
    held_out = [set(run.predictions["path"][run.predictions["split"] == "validation"]) for run in (a, b, c)]
    assert held_out[0] == held_out[1] != held_out[2]
    assert a.records[0]["args"]["trial_seed"] == 0


def test_a_source_that_lacks_classes(root, tmp_path):
    """By default an error; `auto` takes what there is, and the grid follows it."""
    settings = {**SHORT, "dataset": "folder", "root": root, "target": "fotos à la carte", "output": tmp_path / "o"}
    third = root / "third" / "b"
    third.mkdir(parents=True)
    for name in ("1.png", "2.png", "3.png"):
        picture(len(name)).save(third / name)
    with pytest.raises(MedicError, match=naming("'third' --partial")):
        medic.train(**settings)
    run = medic.train(partial="auto", **settings)
    assert run.settings["partial"] == {"third": ["b"]}
    assert run.settings["class_splits"] == 1


def test_what_a_run_depends_on_is_in_its_name(root, tmp_path):
    """Other values of an attribute that is an axis make another run; of one that is not, the same."""
    names = set()
    for shift in (0, 1):
        rows = [f'"{f.relative_to(root)}",{f.parent.name[0]},{f.parts[-3][0]},{(i + shift) % 2},{shift}'
                for i, f in enumerate(sorted(root.rglob("*.*")))]  # fmt: skip
        table = tmp_path / f"{shift}" / "t.csv"
        table.parent.mkdir()
        (tmp_path / f"{shift}" / "images").symlink_to(root)
        rows = [row.replace('"', '"images/', 1) for row in rows]
        table.write_text("path,class,domain,camera,note\n" + "\n".join(rows) + "\n")
        for axes in (None, "camera=2"):
            run = medic.train(dataset="table", root=table, target="f", axes=axes, output=tmp_path / "o", **SHORT)
            names.add((axes, run.path.name))
    assert len({name for axes, name in names if axes is None}) == 1
    assert len({name for axes, name in names if axes}) == 2


@pytest.mark.parametrize(("settings", "words"), [
    ({"split": "mini-6-1-partial", "partial": "auto"}, "'mini-6-1-partial' --partial"),
    ({"split": "mini-6-1", "known": ["1", "2"]}, "'mini-6-1' --split"),
    ({"partial": ["printed"]}, "['printed'] partial"),
    ({"partial": ["printed="]}, "'printed' known"),
    ({"partial": ["street=1,2"]}, "source 'street'"),
    ({"known": ["1"]}, "known 1 two"),
    ({"validation": "official"}, "mini official"),
    ({"validation": "official", "holdout": 0.3}, "holdout trial_seed"),
    ({"store": "map"}, "store 'map' 'digits'"),
])  # fmt: skip
def test_mistakes(mini, tmp_path, settings, words):
    dataset = "digits" if "store" in settings else mini
    with pytest.raises(MedicError, match=naming(words)):
        medic.train(dataset=dataset, target="street", output=tmp_path, **{**SHORT, "holdout": None, **settings})
