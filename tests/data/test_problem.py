"""Who may see what: class splits, held-out images, and the problem they make."""

import dataclasses

import pytest
import torch

from medic.data import (
    BENCHMARKS,
    Dataset,
    Resident,
    choose_domains,
    listed_split,
    make_parts,
    make_problem,
    named_split,
)
from medic.data.classes import ClassSplit
from medic.data.holdout import seed_hash
from medic.errors import MedicError
from tests.messages import naming

CLASSES = ("w", "x", "y", "z")


@pytest.fixture
def dataset() -> Dataset:
    """Three domains, four classes, ten images each."""
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(4)).repeat_interleave(10, 0)
    count = len(cells)
    return Dataset(
        "toy",
        ("a", "b", "c"),
        CLASSES,
        Resident(torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)),
        cells[:, 0],
        cells[:, 1],
        tuple(map(str, range(count))),
        "hash",
    )


def problem(dataset, targets=("c",), sources=None, known=("w", "x", "y"), unknown=None, partial=None, **settings):
    rule, share, seed = (settings.pop(name, value) for name, value in (("rule", "cell"), ("share", 0.2), ("seed", 0)))
    chosen_sources, chosen_targets = choose_domains(dataset.domains, targets, sources)
    split = listed_split(CLASSES, known, unknown, partial or {})
    parts = make_parts(dataset, rule, share, seed)
    return make_problem(dataset, chosen_sources, chosen_targets, split, parts, **settings)


def rows(samples) -> set[int]:
    return set(samples.indices.tolist())


class TestProblem:
    def test_leave_one_out(self, dataset):
        made = problem(dataset)
        assert (made.sources, made.targets) == ((0, 1), (2,))
        train, validation, target = map(rows, (made.train, made.validation, made.target))
        assert not train & validation
        assert len(train) == 2 * 3 * 8
        assert len(validation) == 2 * 3 * 2
        assert target == set((dataset.domain == 2).nonzero().squeeze(1).tolist())
        assert not target & (train | validation)

    def test_sources_train_on_known_classes_only(self, dataset):
        made = problem(dataset, known=("w", "z"))
        assert made.known == ("w", "z")
        for samples in (made.train, made.validation):
            assert set(samples.label.tolist()) == {0, 1}
            assert set(dataset.label[samples.indices].tolist()) == {0, 3}
        assert set(made.target.label.tolist()) == {-1, 0, 1}
        is_unknown = torch.isin(dataset.label[made.target.indices], torch.tensor([1, 2]))
        assert torch.equal(made.target.label == -1, is_unknown)

    def test_unknown_classes_of_the_sources_are_for_evaluation(self, dataset):
        made = problem(dataset, known=("w", "z"))
        assert len(made.source_unknown) == 2 * 2 * 10
        assert set(made.source_unknown.label.tolist()) == {-1}
        assert set(made.source_unknown.domain.tolist()) == {0, 1}
        assert not rows(made.source_unknown) & (rows(made.train) | rows(made.validation) | rows(made.target))

    def test_classes_in_neither_list_take_no_part(self, dataset):
        made = problem(dataset, known=("w", "z"), unknown=("y",))
        everything = torch.cat([s.indices for s in (made.train, made.validation, made.target, made.source_unknown)])
        assert set(dataset.label[everything].tolist()) == {0, 2, 3}

    def test_single_source_and_every_other_domain_as_a_target(self, dataset):
        made = problem(dataset, targets=None, sources=("b",))
        assert (made.sources, made.targets) == ((1,), (0, 2))
        assert set(made.target.domain.tolist()) == {0, 2}
        assert set(made.train.domain.tolist()) == {1}

    def test_partial_classes(self, dataset):
        made = problem(dataset, partial={"a": ("w", "x"), "b": ("x", "y")})
        for samples in (made.train, made.validation):
            cells = set(zip(samples.domain.tolist(), samples.label.tolist(), strict=True))
            assert cells == {(0, 0), (0, 1), (1, 1), (1, 2)}
        assert set(made.target.label.tolist()) == {-1, 0, 1, 2}

    def test_a_domain_without_images_of_a_known_class(self, dataset):
        lacking = dataclasses.replace(
            dataset, label=torch.where((dataset.domain == 0) & (dataset.label == 2), 1, dataset.label)
        )
        message = "source domain 'a' has no training images of known class 'y': use --partial auto"
        with pytest.raises(MedicError, match=message):
            problem(lacking)
        with pytest.warns(UserWarning, match="source domain 'a' has no training images of known class 'y'"):
            problem(lacking, on_empty="warn")
        assert len(problem(lacking, partial={"a": ("w", "x")}).train) == 2 * 8 + 8 + 3 * 8

    def test_a_known_class_that_no_source_has(self, dataset):
        without = dataclasses.replace(
            dataset, label=torch.where(dataset.domain < 2, dataset.label.clamp(max=2), dataset.label)
        )
        with pytest.raises(MedicError, match="known class 'z' has no images in any source domain"):
            problem(without, known=("w", "z"))

    def test_a_target_must_have_known_classes_and_may_lack_unknown_ones(self, dataset):
        unknown = dataclasses.replace(dataset, label=torch.where(dataset.domain == 2, 3, dataset.label))
        with pytest.raises(MedicError, match="target domain 'c' has no images of a known class"):
            problem(unknown)
        known = dataclasses.replace(
            dataset, label=torch.where(dataset.domain == 2, dataset.label.clamp(max=2), dataset.label)
        )
        with pytest.warns(UserWarning, match="target domain 'c' has no images of an unknown class"):
            problem(known)

    @pytest.mark.parametrize(("settings", "message"), [
        ({"targets": ["d"]}, "unknown domain 'd': choose from a, b, c"),
        ({"targets": None}, "missing target domain"),
        ({"sources": ["a", "c"]}, "target 'c' is also a source \\(a, c\\)"),
        ({"sources": []}, "no source domain"),
        ({"targets": ["a", "b", "c"]}, "no source domain"),
        ({"targets": None, "sources": ["a", "b", "c"]}, "no target domain"),
        ({"sources": ["a", "bb"]}, "unknown domain 'bb'"),
        ({"known": ["w", "q"]}, "unknown class 'q'"),
        ({"known": ["w"]}, "at least two known classes are required, got w"),
        ({"known": ["w", "x"], "unknown": ["x"]}, "class 'x' is both known and unknown"),
        ({"partial": {"a": ["z"]}}, "--partial assigns class 'z' to 'a', but this class is not in --known"),
        ({"share": 0.01}, "no validation images"),
    ])  # fmt: skip
    def test_mistakes(self, dataset, settings, message):
        with pytest.raises(MedicError, match=message):
            problem(dataset, **settings)


class TestHoldout:
    def test_every_cell_gives_its_share(self, dataset):
        made = problem(dataset, share=0.3)
        cells = torch.stack([made.validation.domain, made.validation.label]).unique(dim=1, return_counts=True)[1]
        assert cells.tolist() == [3] * 6
        assert made.held_out.sum() == 3 * 4

    @pytest.mark.parametrize("rule", ["cell", "domainbed"])
    def test_follows_the_seed(self, dataset, rule):
        first, again, other = (problem(dataset, rule=rule, seed=seed).train.indices for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_domainbed_draws(self, dataset):
        assert [seed_hash(0, 0), seed_hash(1, 0), seed_hash(0, 1)] == [894182419, 785910682, 1514274641]
        ten = dataclasses.replace(dataset, domain=dataset.domain[:10], label=dataset.label[:10])
        assert make_parts(ten, "domainbed", 0.2, 0).validation.nonzero().squeeze(1).tolist() == [2, 3]
        for domain in range(3):  # a domain at a time, whatever its classes
            held_out = make_parts(dataset, "domainbed", 0.2, 0).validation
            assert held_out[dataset.domain == domain].sum() == 8

    def test_official_parts(self, dataset):
        with pytest.raises(MedicError, match="--validation official is not available: toy has no official lists"):
            problem(dataset, rule="official")
        kinds = ("train", "val", "test", "train", "train")
        parted = dataclasses.replace(dataset, parts=tuple(kinds[row % 5] for row in range(120)))
        made = problem(parted, rule="official")
        assert {row % 5 for row in rows(made.train)} == {0, 3, 4}
        assert {row % 5 for row in rows(made.validation)} == {1}
        assert {row % 5 for row in rows(made.target)} == {2}
        two = dataclasses.replace(dataset, parts=tuple("test" if row % 5 == 2 else "train" for row in range(120)))
        assert rows(problem(two, rule="official").validation) == {
            row for row in range(80) if row % 5 == 2 and row % 40 < 30
        }
        no_test = dataclasses.replace(dataset, parts=tuple("val" if row % 5 == 2 else "train" for row in range(120)))
        assert len(problem(no_test, rule="official").target) == 40


class TestNamedSplits:
    @pytest.mark.parametrize(("name", "known", "unknown"), [
        ("pacs-6-1", 6, ("person",)),
        ("digitsdg-6-4", 6, ("6", "7", "8", "9")),
        ("digits-dg-6-4", 6, ("6", "7", "8", "9")),
    ])  # fmt: skip
    def test_by_name(self, name, known, unknown):
        bench = BENCHMARKS["pacs" if name.startswith("pacs") else "digits-dg"]
        split = named_split(name, bench.name, bench.classes, bench.domains[:3])
        assert len(split.known) == known
        assert split.unknown == unknown
        assert split.name(bench.name, bench.classes) == name.replace("-dg", "dg")

    def test_the_papers_of_office_home(self):
        bench = BENCHMARKS["office-home"]
        split = named_split(bench.split, bench.name, bench.classes, ())
        assert (split.known[-1], split.unknown[0]) == ("Oven", "Pan")
        assert (len(split.known), len(split.unknown)) == (40, 25)

    def test_openness_grows_as_fewer_classes_are_known(self):
        bench = BENCHMARKS["office-home"]
        splits = [named_split(f"officehome-{k}-{65 - k}", bench.name, bench.classes, ()) for k in range(10, 70, 10)]
        openness = [split.openness for split in splits]
        assert openness == sorted(openness, reverse=True)
        assert openness[0] == pytest.approx(1 - (20 / 75) ** 0.5)
        assert len({split.hash for split in splits}) == len(splits)
        assert named_split("officehome-65-0", bench.name, bench.classes, ()).openness == 0

    def test_fewer_unknown_classes_are_the_last(self):
        few, many = (named_split(f"toy-{k}-1", "toy", CLASSES, ()) for k in (2, 3))
        assert few.unknown == many.unknown == ("z",)
        assert few.name("toy", CLASSES) == "toy-2-1"

    def test_the_papers_partial_classes(self):
        bench = BENCHMARKS["pacs"]
        split = named_split("pacs-6-1-partial", bench.name, bench.classes, ("art_painting", "cartoon", "photo"))
        numbers = {domain: [1 + bench.classes.index(name) for name in has] for domain, has in split.partial.items()}
        assert numbers == {"art_painting": [1, 2, 3, 4], "cartoon": [1, 2, 5, 6], "photo": [3, 4, 5, 6]}
        assert split.name("pacs", bench.classes) == "pacs-6-1-partial"
        with pytest.raises(MedicError, match="partial classes require 2 to 6 source domains, got 1"):
            named_split("pacs-6-1-partial", bench.name, bench.classes, ("photo",))

    def test_a_split_without_a_name_has_a_hash(self):
        split = listed_split(CLASSES, ("x", "w"), ("z",), {})
        assert split.known == ("w", "x")
        assert split.name("toy", CLASSES) == "toy-2-1"
        other = listed_split(CLASSES, ("w", "y"), None, {})
        assert other.name("toy", CLASSES) == f"toy-2-2-{other.hash[:8]}"

    @pytest.mark.parametrize(("name", "message"), [
        ("toy", "invalid split 'toy': expected <dataset>-<known>-<unknown>, as in toy-6-1, random:K or leave-one-cl"),
        ("pacs-2-1", "split 'pacs-2-1' does not match dataset 'toy': use toy-k-u"),
        ("toy-3-2", "split 'toy-3-2' requires 5 classes, but toy has only 4"),
    ])  # fmt: skip
    def test_mistakes(self, name, message):
        with pytest.raises(MedicError, match=message):
            named_split(name, "toy", CLASSES, ("a", "b"))


@pytest.mark.parametrize(("name", "message"), [
    ("unknown", "known class 'unknown' rename"), ("a\x1b[2Jb", "control characters 'a\\x1b[2Jb' rename"),
    ("a\n", "control characters rename"),
])  # fmt: skip
def test_known_classes_without_a_proper_name(name, message):
    with pytest.raises(MedicError, match=naming(message)):
        ClassSplit(("cat", name), ())
    assert ClassSplit(("cat", "dog"), (name,)).unknown == (name,)
