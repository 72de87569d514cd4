"""`medic watch`: a model in use, without labels."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

import medic
from medic.cli import main
from medic.deploy.layout import WEIGHTS
from medic.errors import MedicError
from tests.browser import beyond_the_screen, needs_browser, open_address, requests
from tests.data.pictures import picture
from tests.deploy.test_model_file import sealed
from tests.messages import naming

httpx = pytest.importorskip("httpx")


def write_pictures(folder, seeds, size=(40, 30)):
    folder.mkdir()
    for seed in seeds:
        picture(seed, size).save(folder / f"{seed:04}.png")
    return folder


@pytest.fixture
def alike(tmp_path):
    return write_pictures(tmp_path / "alike", range(40))


@pytest.fixture
def grey(tmp_path):
    """Pictures that hardly vary."""
    folder = tmp_path / "grey"
    folder.mkdir()
    for seed in range(40):
        picture(seed).convert("L").point(lambda value: 100 + value // 20).save(folder / f"{seed}.png")
    return folder


def watch(*arguments):
    return main(["watch", *map(str, arguments)])


def test_pictures_like_the_held_out_ones_raise_no_alarm(watched, alike, capsys):
    assert watch(watched, alike) == 0
    out = capsys.readouterr().out
    assert "40 images, compared with 100 held-out source images" in out
    assert re.search(r"Two-sample tests against (all|50) of them", out)
    assert "No alarm" in out


def test_other_pictures_raise_an_alarm(watched, grey, tmp_path, capsys):
    assert watch(watched, grey, "--output", tmp_path / "page.html") == 1
    assert "ALARM" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "ALARM" in page
    assert "% of these images rejected" in page
    assert watch(watched, grey, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["alarm"] is True
    assert found["p_value"] < 0.01
    assert found["samples"] == 40


@needs_browser
@pytest.mark.parametrize("pictures", ["alike", "grey"])
def test_the_page_is_no_wider_than_a_phone(browser, watched, pictures, request, tmp_path):
    page = tmp_path / "page.html"
    watch(watched, request.getfixturevalue(pictures), "--output", page)
    open_address(browser, page, 390)
    assert beyond_the_screen(browser) == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert requests(browser) == [page.as_uri()]


def test_the_share_of_false_alarms_is_chosen(watched, alike, capsys):
    assert watch(watched, alike, "--json") == 0
    p_value = json.loads(capsys.readouterr().out)["p_value"]
    assert watch(watched, alike, "--alpha", min(0.99, p_value + 0.01)) == (1 if p_value < 0.98 else 0)


def test_an_unreadable_image_is_left_out(watched, alike, capsys):
    (alike / "broken.png").write_bytes(b"no picture")
    assert watch(watched, alike) == 0
    assert "1 unreadable image" in capsys.readouterr().out


def test_mistakes_are_one_line(trained, watched, alike, tmp_path, capsys):
    assert watch(trained.path, alike) == 2
    assert naming_found(capsys, "40 held-out images retrain --holdout")
    assert watch(watched, write_pictures(tmp_path / "few", range(3))) == 2
    assert naming_found(capsys, "3 images 20")
    assert watch(watched, tmp_path / "nothing") == 2


def naming_found(capsys, words):
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return re.search(naming(words), err) is not None


def test_in_python(watched, alike):
    shift = medic.watch(watched, alike)
    assert shift == medic.load(watched).watch(sorted(alike.glob("*.png")))
    model = medic.load(watched)
    with pytest.raises(MedicError, match="features"):
        model.watch(model.infer([picture(0)])._replace(features=None))


def test_the_reference_travels_with_the_model(watched, tmp_path):
    first = medic.load(watched)
    first.at(0.7).save(tmp_path / "other")
    second = medic.load(tmp_path / "other")
    assert second.held_out.reference is not None
    for name, tensor in first.held_out.reference.tensors.items():
        assert torch.equal(second.held_out.reference.tensors[name], tensor)


def test_a_run_keeps_a_reference_of_its_validation_images(mini, tmp_path):
    run = medic.train(
        dataset=mini,
        target="street",
        method="erm",
        iterations=2,
        batch_size=2,
        holdout=0.5,
        output=tmp_path,
        quiet=True,
    )
    validation = run.outputs("validation")
    reference = run.predictor.held_out.reference
    assert reference is not None
    assert len(reference.confidence) == len(validation.label) // 2
    known = {round(value, 9) for value in run.score(validation.output).tolist()}
    assert {round(value, 9) for value in reference.confidence.tolist()} <= known


def test_a_damaged_reference_is_refused(watched, tmp_path):
    medic.load(watched).save(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / WEIGHTS)
    sealed(tmp_path / "model", {**tensors, "reference/mean": torch.zeros(3)})
    with pytest.raises(MedicError, match=naming("reference mean")):
        medic.load(tmp_path / "model")


def test_a_service_watches_its_recent_images(watched):
    pytest.importorskip("fastapi")
    from tests.data.pictures import encoded
    from tests.deploy.served import Service

    with Service(medic.load(watched)) as service:
        for seed in range(19):
            assert service.post(encoded(picture(seed), "PNG")).status_code == 200
        assert "medic_recent" not in httpx.get(f"{service.url}/metrics").text
        service.post(encoded(picture(19), "PNG"))
        text = httpx.get(f"{service.url}/metrics").text
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert numbers["medic_recent_images"] == "20"
    expected = medic.load(watched).watch([picture(seed) for seed in range(20)])
    assert float(numbers["medic_recent_p_value"]) == pytest.approx(expected.p_value, rel=1e-3)
    assert float(numbers["medic_recent_accuracy"]) == pytest.approx(expected.accuracy, rel=1e-3)
