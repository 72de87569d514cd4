"""Folders, lists and tables of one's own."""

import os
import re

import pytest

from medic.data import BENCHMARKS, Storage
from medic.data.benchmarks.own import read_folder, read_lists, read_table
from medic.errors import MedicError
from tests.data.pictures import picture


class TestReaders:
    def test_folder(self, root):
        listing = read_folder(root)
        assert listing.domains == ("fotos à la carte", "二番")
        assert listing.classes == ("a 'quoted' one", "b")
        assert len(listing) == 12
        assert listing.counts()["二番"] == {"a 'quoted' one": 3, "b": 3}

    def test_links_are_followed_but_not_in_circles(self, root):
        (root / "二番" / "c").symlink_to(root / "二番" / "b")
        assert len(read_folder(root)) == 15
        (root / "二番" / "b" / "up").symlink_to(root / "二番")
        with pytest.raises(MedicError, match="links to one of its parent folders"):
            read_folder(root)

    @pytest.mark.parametrize(("make", "message"), [
        (lambda path: None, "does not exist"),
        (lambda path: path.touch(), "is not a folder"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path / "a").mkdir(parents=True), "contains no images"),
        (lambda path: (path.mkdir(), picture().save(path / "x.png")), "not in a class folder"),
    ])  # fmt: skip
    def test_wrong_roots(self, tmp_path, make, message):
        make(tmp_path / "r")
        with pytest.raises(MedicError, match=message):
            read_folder(tmp_path / "r")

    def test_lists(self, root):
        for domain in root.iterdir():
            lines = [f"{f.relative_to(root)} {11 - len(f.parent.name)}" for f in sorted(domain.rglob("*.png"))]
            (root / f"{domain.name}.txt").write_text("\n".join(lines) + "\n\n")
        listing = read_lists(root)
        assert listing.classes == ("-3", "10")
        assert len(listing) == 4
        (root / "bad.txt").write_text("some/file.png cat\n")
        with pytest.raises(MedicError, match=r"bad\.txt, line 1: expected `path label` .*, got 'some/file.png cat'"):
            read_lists(root)
        (root / "bad.txt").write_text("some/file.png --5\n")
        with pytest.raises(MedicError, match="line 1"):
            read_lists(root)
        (root / "bad.txt").unlink()
        os.mkfifo(root / "bad.txt")
        with pytest.raises(MedicError, match=r"bad\.txt is not a regular file"):
            read_lists(root)

    def test_table_with_further_attributes(self, root):
        rows = [f'"{f.relative_to(root)}",{f.parent.name[0]},{f.parts[-3][0]},{i % 3},{"xy"[i % 2]}'
                for i, f in enumerate(sorted(root.rglob("*.png")))]  # fmt: skip
        (root / "t.csv").write_text("path,class,domain,year,camera\n" + "\n".join(rows) + "\n")
        listing = read_table(root / "t.csv")
        assert set(listing.attributes) == {"year", "camera"}
        assert sorted(set(listing.attributes["year"].tolist())) == [0, 1, 2]
        assert set(listing.attributes["camera"].tolist()) == {0, 1}
        (root / "t.csv").write_text("path,label\nx,1\n")
        with pytest.raises(MedicError, match="row 2: missing 'class'; columns of the table: path, label"):
            read_table(root / "t.csv")

    def test_an_image_listed_twice(self, root):
        (root / "t.csv").write_text("path,class,domain\n" + "二番/b/1.png,b,x\n" * 2)
        with pytest.raises(MedicError, match=r"1\.png is listed"):
            read_table(root / "t.csv")

    def test_a_parquet_table_is_read_like_a_csv(self, root):
        from pyarrow import parquet, table

        files = sorted(root.rglob("*.png"))
        columns = {
            "path": [str(file.relative_to(root)) for file in files],
            "class": [file.parent.name for file in files],
            "domain": [file.parts[-3] for file in files],
            "year": list(range(len(files))),
        }
        parquet.write_table(table(columns), root / "t.parquet")
        rows = "".join(",".join(f'"{value}"' for value in row) + "\n" for row in zip(*columns.values(), strict=True))
        (root / "t.csv").write_text("path,class,domain,year\n" + rows)
        a, b = read_table(root / "t.parquet"), read_table(root / "t.csv")
        assert a.names == b.names
        assert a.attributes["year"].tolist() == b.attributes["year"].tolist()
        (root / "t.parquet").write_bytes(b"PAR1 no more")
        with pytest.raises(MedicError, match=r"t\.parquet cannot be read"):
            read_table(root / "t.parquet")

    def test_a_table_that_is_not_text(self, root):
        (root / "t.csv").write_bytes(b"path,class,domain\n\xff\xfe,a,b\n")
        with pytest.raises(MedicError, match=r"t\.csv cannot be read"):
            read_table(root / "t.csv")

    def test_a_nul_in_a_path_is_a_bad_image(self, root):
        (root / "t.csv").write_text("path,class,domain\n二番/b/1.png,b,x\n二番/b/\0.png,b,x\n")
        with pytest.raises(MedicError, match=r"二番/b/\0.png cannot be read.*--on-bad-image skip"):
            read_table(root / "t.csv").load(Storage(16))
        assert len(read_table(root / "t.csv").load(Storage(16, on_bad="skip")).paths) == 1

    @pytest.mark.parametrize("name", [b"\xff\xfe", b"two\nlines"])
    @pytest.mark.parametrize("folder", ["二番", "二番/b"])
    def test_domains_and_classes_are_text(self, root, folder, name):
        renamed = os.fsdecode(name)
        (root / folder).rename((root / folder).with_name(renamed))
        with pytest.raises(MedicError, match=re.escape(repr(renamed))):
            read_folder(root)

    @pytest.mark.parametrize("name", ["pacs", "folder", "lists", "table", "cmnist"])
    def test_roots_that_cannot_be_read(self, tmp_path, name):
        with pytest.raises(MedicError, match=r"--root.*xxx.*File name too long"):
            BENCHMARKS[name].open(tmp_path / ("x" * 300))

    def test_links_to_data_elsewhere_are_normal(self, root, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        for domain in root.iterdir():
            (tmp_path / "elsewhere" / domain.name).symlink_to(domain)
        assert len(read_folder(tmp_path / "elsewhere")) == 12
        (root / "二番" / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        assert len(read_folder(root)) == 13  # it is said when it is read

    def test_images_that_lie_deeper_than_expected_are_noted(self, root):
        with pytest.warns(UserWarning, match="every image is nested below its class folder: images/fotos"):
            read_folder(root.parent)
