"""Benchmarks as people have them on disk."""

from pathlib import Path

import pytest

from medic.data import BENCHMARKS
from medic.errors import MedicError
from tests.data.pictures import picture


class TestLayouts:
    def make(self, root: Path, *folders: str) -> Path:
        for folder in folders:
            (root / folder).mkdir(parents=True)
            picture().save(root / folder / "p.png")
        return root

    def test_vlcs_in_both_forms(self, tmp_path):
        bench = BENCHMARKS["vlcs"]
        plain = [f"VLCS/{d}/{c}" for d in bench.domains for c in bench.classes]
        assert bench.open(self.make(tmp_path / "a", *plain)).location.startswith("folders in ")
        dassl = ("CALTECH", "LABELME", "PASCAL", "SUN")
        parts = [f"VLCS/{d}/{s}/{c}" for d in dassl for s in ("train", "crossval", "full") for c in "01234"]
        dataset = bench.open(self.make(tmp_path / "b", *parts))
        assert dataset.location.startswith("train, crossval and test folders in ")
        assert len(dataset) == 40  # `full` holds the same images again
        assert dataset.parts.count("val") == dataset.parts.count("train") == 20
        assert dataset.counts()["VOC2007"]["person"] == 2

    @pytest.mark.parametrize("real", ["Real World", "Real_World", "RealWorld", "real_world"])
    def test_real_world_is_written_in_many_ways(self, tmp_path, real):
        bench = BENCHMARKS["office-home"]
        folders = [f"{d}/{c}" for d in ("Art", "Clipart", "Product", real) for c in ("TV", "alarm_clock", "Other")]
        dataset = bench.open(self.make(tmp_path / "r", *folders))
        assert dataset.domains[3] == "Real World"
        assert len(dataset) == 8
        assert f"{real}/Other" in dataset.ignored

    def test_the_folder_that_fetch_makes(self, tmp_path):
        """`medic data fetch office-home --root DIR` and `--dataset office-home --root DIR` belong together."""
        bench = BENCHMARKS["office-home"]
        self.make(tmp_path / "office-home", *[f"{d}/TV" for d in bench.domains])
        assert len(bench.open(tmp_path)) == 4

    def test_lists_hold_out_and_the_corrupt_sketch_is_dropped(self, tmp_path):
        bench, root = BENCHMARKS["pacs"], tmp_path / "pacs"
        self.make(root / "images", *[f"{d}/dog" for d in bench.domains])
        picture().save(root / "images" / "sketch" / "dog" / "n02103406_4068-1.png")
        (root / "splits").mkdir()
        (root / "splits" / "photo_crossval_kfold.txt").write_text("photo/dog/p.png 7\n")
        listing = bench.open(tmp_path)
        assert len(listing) == 4
        assert listing.parts == ("train", "train", "val", "train")
        assert set(listing.label.tolist()) == {0}  # the folder's class, not the list's number

    def test_another_benchmark_is_recognised(self, tmp_path):
        self.make(tmp_path / "r", *[f"PACS/{d}/dog" for d in BENCHMARKS["pacs"].domains])
        with pytest.raises(MedicError, match="contains pacs, not vlcs"):
            BENCHMARKS["vlcs"].open(tmp_path / "r")

    def test_missing_domains_are_named(self, tmp_path):
        self.make(tmp_path / "r", "PACS/photo/dog", "PACS/sketch/dog")
        with pytest.raises(MedicError, match="art_painting, cartoon not found; to download it"):
            BENCHMARKS["pacs"].open(tmp_path / "r")

    def test_a_list_that_names_a_missing_file(self, tmp_path):
        self.make(tmp_path, *[f"PACS/{d}/dog" for d in BENCHMARKS["pacs"].domains])
        (tmp_path / "splits").mkdir()
        (tmp_path / "splits" / "photo_crossval_kfold.txt").write_text("photo/dog/gone.png 1\n")
        listing = BENCHMARKS["pacs"].open(tmp_path)
        assert listing.parts is None  # no harm is done where the lists are not asked for
        assert "photo_crossval_kfold.txt lists photo/dog/gone.png, which is missing from" in listing.parts_problem

    def test_lists_may_write_a_domain_another_way(self, tmp_path):
        bench = BENCHMARKS["office-home"]
        self.make(tmp_path, *[f"OfficeHome/{d}/Bed" for d in ("Art", "Clipart", "Product", "RealWorld")])
        (tmp_path / "OfficeHome_list" / "crossval").mkdir(parents=True)
        (tmp_path / "OfficeHome_list" / "crossval" / "Real_World_val.txt").write_text("Real_World/Bed/p.png 64\n")
        assert bench.open(tmp_path).parts == ("train", "train", "train", "val")

    def test_domainnets_classes_are_ordered_without_case_and_its_images_as_domainbed_has_them(self, tmp_path):
        bench = BENCHMARKS["domainnet"]
        names = ("zebra", "The_Eiffel_Tower", "axe", "teapot")
        self.make(tmp_path, *[f"domain_net/{d}/{c}" for d in bench.domains for c in names])
        (tmp_path / "domain_net" / "real_test.txt").write_text("real/axe/p.png 9\n")
        listing = bench.open(tmp_path)
        assert listing.classes == ("axe", "teapot", "The_Eiffel_Tower", "zebra")
        assert [name.split("/")[1] for name in listing.names[:4]] == ["The_Eiffel_Tower", "axe", "teapot", "zebra"]
        assert [name for name, part in zip(listing.names, listing.parts, strict=True) if part == "test"] == [
            "real/axe/p.png"
        ]

    def test_a_class_may_be_called_train(self, tmp_path):
        """DomainNet has one; and an empty folder `test` does not make parts of PACS."""
        bench = BENCHMARKS["domainnet"]
        self.make(tmp_path / "a", *[f"domain_net/{d}/{c}" for d in bench.domains for c in ("train", "tree")])
        assert bench.open(tmp_path / "a").classes == ("train", "tree")
        self.make(tmp_path / "b", *[f"PACS/{d}/dog" for d in BENCHMARKS["pacs"].domains])
        (tmp_path / "b" / "PACS" / "photo" / "test").mkdir()
        assert len(BENCHMARKS["pacs"].open(tmp_path / "b")) == 4

    def test_terra_incognita_has_ten_classes(self, tmp_path):
        bench = BENCHMARKS["terra-incognita"]
        folders = [f"terra_incognita/{d}/{c}" for d in bench.domains for c in (*bench.classes, "badger", "car")]
        dataset = bench.open(self.make(tmp_path, *folders))
        assert len(dataset.classes) == 10
        assert len(dataset) == 40
        assert "location_38/car" in dataset.ignored

    def test_a_domain_without_images(self, tmp_path):
        self.make(tmp_path, *[f"PACS/{d}/dog" for d in ("photo", "sketch", "cartoon")])
        (tmp_path / "PACS" / "art_painting" / "dog").mkdir(parents=True)
        assert BENCHMARKS["pacs"].open(tmp_path).counts()["art_painting"]["dog"] == 0
