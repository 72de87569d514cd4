"""What a run says before it trains."""

import pytest
import torch
from safetensors.torch import save_file

import medic
from medic.models import create_backbone
from medic.runs import facts
from medic.runs.facts import describe, notes
from tests.built import loaded
from tests.runs.short import SHORT


def facts_of(path="out/a", **settings):
    plan, dataset, problem = loaded(**settings)
    return dict(describe(plan, dataset, problem, path))


def test_a_colleague_reads_what_is_trained(mini, caplog, tmp_path):
    settings = {"dataset": mini, "method": "medic++", **SHORT}
    with caplog.at_level("INFO", logger="medic"):
        run = medic.train(**{**settings, "quiet": False}, output=tmp_path)
    lines = caplog.messages[: caplog.messages.index(next(line for line in caplog.messages if "iteration 2" in line))]
    assert lines == [
        f"output    {run.path}",
        "method    medic++, objective ce+ova, sampling adaptive, seed 0",
        "known     0, 1, 2, 3, 4, 5",
        "unknown   6, 7, 8, 9",
        "sources   handwritten 48 + 12, printed 48 + 12, blended 48 + 12 (training + validation images)",
        "target    street 60 known + 40 unknown images",
        "backbone  small, initialised by your code, 32 px",
        f"device    cpu, threads {torch.get_num_threads()}, fp32",
        "training  4 iterations of 18 images (9 tasks × 2), evaluated every 2",
        f"recipe    scratch: sgd lr {run.settings['lr']:g}, inner lr 0.01, weight decay 5.56e-05, schedule step, "
        "averaging swad, augmentation digits",
    ]


def test_nothing_is_said_when_quiet(mini, capfd, tmp_path):
    medic.train(dataset=mini, method="erm", output=tmp_path, **SHORT)
    assert capfd.readouterr().err == ""


def test_weights_are_named(mini, tmp_path):
    save_file(create_backbone("small").module.state_dict(), tmp_path / "w.safetensors")
    said = facts_of(dataset=mini, method="erm", weights=str(tmp_path / "w.safetensors"), tune="head")
    assert said["backbone"] == f"small, weights {tmp_path / 'w.safetensors'}, 32 px, trains head"


def test_adapters_and_pooling_are_named(mini):
    settings = {"backbone": "test_vit", "image_size": 32, "tune": "adapters", "pool": "avg", "augment": "none"}
    said = facts_of(dataset=mini, method="erm", **settings)
    assert said["backbone"] == "test_vit, from scratch, 32 px, pool avg, trains adapters of rank 8"
    assert said["recipe"].endswith(", augmentation none")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"backbone": "resnet18"}, True),
        ({"backbone": "test_vit"}, False),
        ({"backbone": "resnet18", "tune": "head"}, False),
    ],
)
def test_batch_norm_is_named_where_there_is_any(mini, settings, named):
    recipe = facts_of(dataset=mini, method="erm", image_size=32, **settings)["recipe"]
    assert (", batch norm local, " in recipe) == named


def test_an_evaluation_at_the_end_is_not_every(mini):
    assert facts_of(dataset=mini, method="erm", iterations=4, evaluate_every=20)["training"].endswith("at the end")


def test_a_part_of_random_weights_is_noted(mini):
    (said,) = notes(loaded(dataset=mini, method="erm", tune="head", backbone="convnet")[0])
    assert said == "backbone convnet starts from random weights: use --weights FILE to load pretrained weights"
    assert not list(notes(loaded(dataset=mini, method="erm", tune="head")[0]))  # a custom network may have weights


def test_a_protocol_is_named_in_place_of_the_starting_point(mini):
    assert facts_of(dataset=mini, method="erm", protocol="paper")["recipe"].startswith("protocol paper: sgd lr ")
    assert facts_of(dataset=mini, method="erm")["recipe"].startswith("scratch: sgd lr ")


def test_several_targets_and_no_unknown_class(mini):
    said = facts_of(
        dataset=mini, method="erm", target=["street", "printed"], unknown=[], known=[str(i) for i in range(10)]
    )
    assert said["unknown"] == "none"
    assert said["target"] == "printed 100 known + 0 unknown images, street 100 known + 0 unknown images"


def test_without_unknown_classes_a_note_says_how_to_measure_rejection(mini):
    known = [str(i) for i in range(10)]
    (said,) = notes(loaded(dataset=mini, method="erm", known=known)[0])
    assert said == (
        "every class is known: the model still rejects images; to measure how well, use --known or "
        "--split leave-one-class-out in a separate run"
    )
    assert list(notes(loaded(dataset=mini, method="erm")[0])) == []


def test_long_lists_are_cut(mini, monkeypatch):
    monkeypatch.setattr(facts, "MAX_LISTED", 3)
    assert facts_of(dataset=mini, method="erm")["known"] == "0, 1, 2, … (6 in all)"


@pytest.mark.gpu
def test_a_gpu_is_named(mini):
    said = facts_of(dataset=mini, method="erm", device="cuda")
    assert said["device"] == f"{torch.cuda.get_device_name()}, bf16"
