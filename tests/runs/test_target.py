"""Nothing about the target changes the model, the evaluation that is selected or the threshold."""

import shutil
from pathlib import Path

import pytest

import medic
from tests.built import recipe_of
from tests.data.pictures import picture

SETTINGS = {
    "dataset": "folder", "known": ["cat", "dog"], "backbone": "small", "image_size": 32, "method": "medic++",
    "iterations": 6, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "quiet": True, "domain_splits": 2,
    "class_splits": 2,
}  # fmt: skip


def draw(root: Path, domain: str, first: int, count: int, classes=("cat", "dog", "owl")) -> None:
    for number, label in enumerate(classes):
        (root / domain / label).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            picture(first + 100 * number + index, (32, 32)).save(root / domain / label / f"{index}.png")


@pytest.fixture
def root(tmp_path):
    for position, domain in enumerate(("m", "n")):
        draw(tmp_path / "images", domain, 1000 * position, 10)
    draw(tmp_path / "images", "a", 5000, 8)
    return tmp_path / "images"


def fewer(target: Path) -> None:
    for path in target.glob("*/[1-5].png"):
        path.unlink()


def more(target: Path) -> None:
    draw(target.parent, target.name, 7000, 20)


def permuted(target: Path) -> None:
    cat, dog = target / "cat", target / "dog"
    cat.rename(target / "other")
    dog.rename(cat)
    (target / "other").rename(dog)


def with_a_new_class(target: Path) -> None:
    draw(target.parent, target.name, 9000, 5, ["ant"])


def without_unknown(target: Path) -> None:
    shutil.rmtree(target / "owl")


def renamed(name: str):
    def rename(target: Path) -> None:
        target.rename(target.with_name(name))

    return rename


CHANGES = {
    "fewer": fewer, "more": more, "permuted": permuted, "a new class": with_a_new_class, "all known": without_unknown,
    "last in order": renamed("z"), "in the middle": renamed("mm"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*some repeat", "ignore:.*only accuracy is measured")
@pytest.mark.parametrize("validation", ["cell", "domainbed"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_target_changes_nothing_but_its_own_metrics(change, validation, root, mini, tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    if validation == "domainbed" and change in ("last in order", "in the middle"):
        pytest.skip("DomainBed seeds its split by the numbers of the domains")
    runs = []
    for number in range(2):
        [target] = {path.name for path in root.iterdir()} - {"m", "n"}
        settings = {**SETTINGS, "root": str(root), "sources": ["m", "n"], "target": target, "validation": validation}
        runs.append(medic.train(**settings, output=str(tmp_path / f"runs{number}")))
        if number == 0:
            CHANGES[change](root / target)
    first, second = runs
    assert first.path.name != second.path.name
    assert (first.path / "model.safetensors").read_bytes() == (second.path / "model.safetensors").read_bytes()
    assert first.record["iteration"] == second.record["iteration"]
    assert first.description["threshold"] == second.description["threshold"]
    assert [record["validation"] for record in first.records] == [record["validation"] for record in second.records]


def test_a_class_that_only_the_target_has_is_unknown(root):
    with_a_new_class(root / "a")
    recipe = recipe_of(dataset="folder", root=str(root), target="a", backbone="convnet", image_size=32)
    assert (recipe.data.known, recipe.data.unknown) == (["cat", "dog", "owl"], ["ant"])
