"""Nothing about the target changes the model, the evaluation that is selected or the threshold."""

import shutil
from pathlib import Path

import pytest

import medic
from tests.built import plan_of
from tests.data.pictures import picture

SETTINGS = {
    "dataset": "folder", "known": ["cat", "dog"], "backbone": "convnet", "image_size": 32, "method": "medic++",
    "iterations": 4, "evaluate_every": 2, "batch_size": 2, "device": "cpu", "quiet": True, "domain_splits": 2,
    "class_splits": 2,
}  # fmt: skip


def draw(root: Path, domain: str, first: int, count: int, classes=("cat", "dog", "owl")) -> None:
    for number, label in enumerate(classes):
        (root / domain / label).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            picture(first + 100 * number + index, (32, 32)).save(root / domain / label / f"{index}.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The images that no test changes."""
    root = tmp_path_factory.mktemp("images")
    for position, domain in enumerate(("m", "n")):
        draw(root, domain, 1000 * position, 10)
    draw(root, "a", 5000, 8)
    return root


@pytest.fixture
def root(images, tmp_path):
    """A copy of the images."""
    return shutil.copytree(images, tmp_path / "images")


def train(root: Path, output: Path, validation: str) -> medic.Run:
    [target] = {path.name for path in root.iterdir()} - {"m", "n"}
    chosen = {"root": str(root), "sources": ["m", "n"], "target": target, "validation": validation}
    return medic.train(**SETTINGS, **chosen, output=str(output))


@pytest.fixture(scope="module")
def unchanged(images, tmp_path_factory, request):
    """A rule that holds images out, and a run with it before the target changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEDIC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield request.param, train(images, tmp_path_factory.mktemp("runs"), request.param)


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
CASES = [*(("cell", change) for change in CHANGES), ("domainbed", "fewer"), ("domainbed", "a new class")]
"""Rules and changes. DomainBed seeds its split by the numbers of the domains, which a new name can change."""


@pytest.mark.filterwarnings("ignore:.*some samples repeat", "ignore:.*only accuracy will be measured")
@pytest.mark.parametrize(("unchanged", "change"), CASES, indirect=["unchanged"])
def test_the_target_changes_nothing_but_its_own_metrics(change, unchanged, root, tmp_path):
    validation, first = unchanged
    CHANGES[change](root / "a")
    second = train(root, tmp_path / "runs", validation)
    assert first.path.name != second.path.name
    assert (first.path / "model.safetensors").read_bytes() == (second.path / "model.safetensors").read_bytes()
    assert first.record["iteration"] == second.record["iteration"]
    assert first.description["threshold"] == second.description["threshold"]
    assert [record["validation"] for record in first.records] == [record["validation"] for record in second.records]


def test_a_class_that_only_the_target_has_is_unknown(root):
    with_a_new_class(root / "a")
    plan = plan_of(dataset="folder", root=str(root), target="a", backbone="convnet", image_size=32)
    assert (plan.config.data.known, plan.config.data.unknown) == (["cat", "dog", "owl"], ["ant"])
