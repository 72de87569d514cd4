"""Class splits that depend on the seed, and tables over them."""

import pytest

import medic
from medic.data import drawn_split
from medic.errors import MedicError
from tests.built import plan_of
from tests.messages import naming

CLASSES = tuple("0123456789")


def test_every_class_is_left_out_in_turn():
    splits = [drawn_split("leave-one-class-out", CLASSES, seed) for seed in range(20)]
    assert [split.unknown for split in splits] == 2 * [(name,) for name in CLASSES]
    assert all(split.known == tuple(name for name in CLASSES if name not in split.unknown) for split in splits)


def test_random_classes():
    splits = [drawn_split("random:4", CLASSES, seed) for seed in range(30)]
    assert all(len(split.known) == 4 and sorted(split.known + split.unknown) == list(CLASSES) for split in splits)
    assert len({split.known for split in splits}) > 20
    assert drawn_split("random:4", CLASSES, 3) == splits[3]
    assert all(split.known == tuple(sorted(split.known)) for split in splits)


def test_the_seed_of_the_split_decides(mini):
    plans = [plan_of(dataset=mini, target="street", split="random:6", **seeds)
             for seeds in ({"seed": 1}, {"seed": 0, "trial_seed": 1}, {"seed": 0})]  # fmt: skip
    first, same, other = (tuple(plan.config.data.known) for plan in plans)
    assert first == same != other


def test_seeds_with_different_classes_share_a_row(mini, tmp_path):
    settings = {"iterations": 1, "batch_size": 2, "device": "cpu", "track": "none", "quiet": True}
    span = {"seed": range(2)}
    runs = medic.sweep(
        span, dataset=mini, target="street", method="erm", split="leave-one-class-out", executor="here",
        output=str(tmp_path), **settings,
    )  # fmt: skip
    assert {tuple(run.config.data.unknown) for run in runs} == {("0",), ("1",)}
    table = runs.table()
    assert [row.label for row in table.rows] == ["erm"]
    assert any("2 seeds with different unknown classes" in note for note in table.notes)


@pytest.mark.parametrize("name", ["random:1", "random:10", "random:x", "random:"])
def test_mistakes(mini, name):
    with pytest.raises(MedicError, match=naming(f"{name!r} known classes 2 to 9")):
        plan_of(dataset=mini, target="street", split=name)
