"""Image files: decoding, reading of folders, lists and tables, benchmarks on disk, and the store."""

import gzip
import io
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medic.data import BENCHMARKS, Storage, cmnist
from medic.data.catalog import locate
from medic.data.decode import BadImage, decode
from medic.data.readers import read_folder, read_lists, read_table
from medic.data.store import open_store
from medic.errors import MedicError


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth colour picture."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **settings) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path) -> Path:
    """Two domains, two classes, three images each, with awkward names."""
    count = itertools.count()
    for domain in ("fotos à la carte", "二番"):
        for label in ("a 'quoted' one", "b"):
            folder = tmp_path / "images" / domain / label
            folder.mkdir(parents=True)
            for name in ("1.png", "2 2.PNG", "x.webp"):
                picture(next(count)).save(folder / name)
    return tmp_path / "images"


class TestDecode:
    def plain(self, size: int = 16) -> np.ndarray:
        return np.asarray(picture().resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)

    def test_rgb_is_squashed_as_pil_does(self):
        assert np.array_equal(decode(encoded(picture(), "PNG"), 16, "x").pixels, self.plain())

    @pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK"])
    def test_other_modes_become_rgb(self, mode):
        image = picture().convert(mode)
        kind = "TIFF" if mode == "CMYK" else "PNG"
        expected = image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
        assert np.array_equal(decode(encoded(image, kind), 16, "x").pixels, np.asarray(expected).transpose(2, 0, 1))

    def test_sixteen_bits_keep_their_upper_eight(self):
        values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
        decoded = decode(encoded(Image.fromarray(values), "PNG"), 16, "x").pixels
        assert np.array_equal(decoded[0], (values >> 8).astype(np.uint8))
        assert np.array_equal(decoded[0], decoded[2])

    def test_exif_turns_the_picture_upright(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera was turned by a quarter
        turned, frame = decode(encoded(picture(), "PNG", exif=exif), 16, "x")
        assert frame == (40, 30)
        upright = picture().transpose(Image.Transpose.ROTATE_270).resize((16, 16), Image.Resampling.BILINEAR)
        assert np.array_equal(turned, np.asarray(upright).transpose(2, 0, 1))

    def test_a_very_wide_picture(self):
        assert decode(encoded(picture(size=(30_000, 4)), "PNG"), 8, "x").pixels.shape == (3, 8, 8)

    @pytest.mark.parametrize(("data", "message"), [
        (b"", "pic is empty"),
        (b"hello, this is text", "pic is not an image"),
        (encoded(picture(size=(300, 300)), "PNG")[:2000], "pic is damaged"),
        (encoded(picture(size=(300, 300)), "JPEG")[:2000], "pic is damaged"),
    ])  # fmt: skip
    def test_bad_files_are_named(self, data, message):
        with pytest.raises(BadImage, match=message):
            decode(data, 16, "pic")


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
        with pytest.raises(MedicError, match="leads back"):
            read_folder(root)

    @pytest.mark.parametrize(("make", "message"), [
        (lambda path: None, "does not exist"),
        (lambda path: path.touch(), "is not a folder"),
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: (path / "a").mkdir(parents=True), "has no images"),
        (lambda path: (path.mkdir(), picture().save(path / "x.png")), "not in a domain's class"),
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
        with pytest.raises(MedicError, match=r"bad\.txt, line 1: 'some/file.png cat' is not"):
            read_lists(root)
        (root / "bad.txt").write_text("gone.png 3\n")
        with pytest.raises(MedicError, match=r"gone\.png does not exist"):
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
        with pytest.raises(MedicError, match="row 2: no 'class'; it has the columns path, label"):
            read_table(root / "t.csv")

    def test_an_image_listed_twice(self, root):
        (root / "t.csv").write_text("path,class,domain\n" + "二番/b/1.png,b,x\n" * 2)
        with pytest.raises(MedicError, match=r"1\.png is listed"):
            read_table(root / "t.csv")


class TestLayouts:
    def make(self, root: Path, *folders: str) -> Path:
        for folder in folders:
            (root / folder).mkdir(parents=True)
            picture().save(root / folder / "p.png")
        return root

    def test_vlcs_in_both_forms(self, tmp_path):
        bench = BENCHMARKS["vlcs"]
        plain = [f"VLCS/{d}/{c}" for d in bench.domains for c in bench.classes]
        assert locate(bench, self.make(tmp_path / "a", *plain)).layout.name == "folders"
        dassl = ("CALTECH", "LABELME", "PASCAL", "SUN")
        parts = [f"VLCS/{d}/{s}/{c}" for d in dassl for s in ("train", "crossval", "full") for c in "01234"]
        found = locate(bench, self.make(tmp_path / "b", *parts))
        assert found.layout.split
        assert len(found.listing) == 40  # `full` holds the same images again
        assert found.listing.parts.count("val") == found.listing.parts.count("train") == 20
        assert found.listing.counts()["VOC2007"]["person"] == 2

    @pytest.mark.parametrize("real", ["Real World", "Real_World", "RealWorld", "real_world"])
    def test_real_world_is_written_in_many_ways(self, tmp_path, real):
        bench = BENCHMARKS["office-home"]
        folders = [f"{d}/{c}" for d in ("Art", "Clipart", "Product", real) for c in ("TV", "alarm_clock", "Other")]
        found = locate(bench, self.make(tmp_path / "r", *folders))
        assert found.listing.domains[3] == "Real World"
        assert len(found.listing) == 8
        assert f"{real}/Other" in found.extra

    def test_lists_hold_out_and_the_corrupt_sketch_is_dropped(self, tmp_path):
        bench, root = BENCHMARKS["pacs"], tmp_path / "pacs"
        self.make(root / "images", *[f"{d}/dog" for d in bench.domains])
        picture().save(root / "images" / "sketch" / "dog" / "n02103406_4068-1.png")
        (root / "splits").mkdir()
        (root / "splits" / "photo_crossval_kfold.txt").write_text("photo/dog/p.png 7\n")
        listing = locate(bench, tmp_path).listing
        assert len(listing) == 4
        assert listing.parts == ("train", "train", "val", "train")
        assert set(listing.label.tolist()) == {0}  # the folder's class, not the list's number

    def test_another_benchmark_is_recognised(self, tmp_path):
        self.make(tmp_path / "r", *[f"PACS/{d}/dog" for d in BENCHMARKS["pacs"].domains])
        with pytest.raises(MedicError, match="holds pacs, not vlcs"):
            locate(BENCHMARKS["vlcs"], tmp_path / "r")

    def test_missing_domains_are_named(self, tmp_path):
        self.make(tmp_path / "r", "PACS/photo/dog", "PACS/sketch/dog")
        with pytest.raises(MedicError, match="art_painting, cartoon not found"):
            locate(BENCHMARKS["pacs"], tmp_path / "r")


class TestStore:
    def open(self, root, where="ram", on_bad="error", unique=False):
        said = []
        store = open_store(read_folder(root), 16, where, torch.device("cpu"), on_bad, said.append, unique)
        return store, said

    @pytest.mark.parametrize("where", ["ram", "map", "stream"])
    def test_every_place_gives_the_same_pixels(self, root, where):
        listing = read_folder(root)
        store, said = self.open(root, where)
        positions = torch.tensor([5, 0, 5, 11])
        gathered = store.images.gather(positions, torch.device("cpu"))
        expected = np.stack([decode(listing.files[i].read_bytes(), 16, "x").pixels for i in positions])
        assert np.array_equal(gathered.numpy(), expected)
        assert "12 images of 16 px" in said[-1]

    def test_decoded_once(self, root):
        assert any("decoding" in line for line in self.open(root)[1])
        first, again = self.open(root)
        assert not any("decoding" in line for line in again)
        picture(99).save(root / "二番" / "b" / "1.png")
        changed, said = self.open(root)
        assert any("decoding" in line for line in said)
        assert changed.hash != first.hash

    def test_bad_images(self, root):
        (root / "二番" / "b" / "bad.png").write_bytes(b"")
        (root / "二番" / "b" / "0.png").write_bytes(b"text")
        with pytest.raises(MedicError, match=r"0\.png is not an image, and 1 more cannot be read; --on-bad-image skip"):
            self.open(root)
        store, said = self.open(root, on_bad="skip")
        assert len(store.kept) == 12
        assert any("2 images left out" in line for line in said)
        listing = read_folder(root)
        last = store.images.gather(torch.tensor([11]), torch.device("cpu"))[0]
        assert np.array_equal(last.numpy(), decode(listing.files[store.kept[11]].read_bytes(), 16, "x").pixels)

    def test_duplicates_of_a_domain_count_once(self, root):
        data = (root / "二番" / "b" / "1.png").read_bytes()
        (root / "二番" / "b" / "again.png").write_bytes(data)
        (root / "fotos à la carte" / "b" / "again.png").write_bytes(data)
        assert len(self.open(root)[0].kept) == 14
        assert len(self.open(root, unique=True)[0].kept) == 13

    @pytest.mark.parametrize("where", ["ram", "map"])
    def test_damage_on_disk_is_noticed(self, root, where, tmp_path):
        self.open(root)
        (path,) = (tmp_path / "cache" / "stores").glob("*.bin")
        data = bytearray(path.read_bytes())
        data[1000] ^= 255
        path.write_bytes(data)
        with pytest.raises(MedicError, match="a cached image is damaged"):
            self.open(root, where)[0].images.gather(torch.arange(12), torch.device("cpu"))


class TestCmnist:
    @pytest.fixture
    def idx(self, tmp_path) -> Path:
        rng = np.random.default_rng(0)
        for part, count in (("train", 60), ("t10k", 30)):
            images = rng.integers(1, 256, (count, 28, 28), dtype=np.uint8)
            labels = rng.integers(0, 10, count, dtype=np.uint8)
            data = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + images.tobytes()
            (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(data))
            data = struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes()
            (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(data)
        return tmp_path

    def test_as_domainbed_draws_it(self, idx):
        """The same global draws, written out."""
        images, domain, label, _ = cmnist.build(idx, seed=3)
        parts = [(cmnist.read_idx(idx, p, "images"), cmnist.read_idx(idx, p, "labels")) for p in ("train", "t10k")]
        pixels, digits = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        with torch.random.fork_rng():
            torch.manual_seed(3)
            order = torch.randperm(90)
            for environment, flip in enumerate((0.1, 0.2, 0.9)):
                chosen = order[environment::3]
                y = (digits[chosen] < 5).float()
                y = (y - (torch.rand(30) < 0.25).float()).abs()
                colour = (y - (torch.rand(30) < flip).float()).abs()
                expected = torch.stack([pixels[chosen]] * 2, dim=1)
                expected[torch.arange(30), (1 - colour).long()] = 0
                mine = domain == environment
                assert torch.equal(images[mine], expected)
                assert torch.equal(label[mine], y.long())

    def test_missing_and_truncated_files(self, idx):
        bench = BENCHMARKS["cmnist"]
        assert bench.open(bench, idx, 0).load(Storage(28)).images.shape == (90, 2, 28, 28)
        (idx / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0")
        with pytest.raises(MedicError, match="truncated or not an idx file"):
            cmnist.build(idx, 0)
        (idx / "train-labels-idx1-ubyte").unlink()
        with pytest.raises(MedicError, match="has no train-labels-idx1-ubyte or"):
            cmnist.build(idx, 0)


def test_train_on_a_table_with_a_further_axis(root, tmp_path):
    import medic

    rows = [f'"{f.relative_to(root)}",{f.parent.name[0]},{f.parts[-3][0]},{i % 2}'
            for i, f in enumerate(sorted(root.rglob("*.*")))]  # fmt: skip
    (root / "t.csv").write_text("path,class,domain,camera\n" + "\n".join(rows) + "\n")
    run = medic.train(
        dataset="table", root=str(root / "t.csv"), target="f", axes="camera=2", method="medic++", iterations=2,
        image_size=32, backbone="convnet", holdout=0.4, batch_size=2, device="cpu", quiet=True,
        output=str(tmp_path / "o"),
    )  # fmt: skip
    assert run.config.axes == {"camera": 2}
    assert run.config.steps == [2, 2]
    assert set(run.metrics) == {"acc"}  # every class is known
