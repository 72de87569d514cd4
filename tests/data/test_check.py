"""Images that occur twice: in two domains, in two classes, or within a class."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

from medic.cli import main
from medic.data import BENCHMARKS
from medic.data.check import check
from medic.data.duplicates import (
    LIMIT,
    Prints,
    Relation,
    _close_pairs,
    equal_images,
    perceptual_hash,
    similar_images,
)  # fmt: skip
from tests.data.pictures import encoded, picture

FOLDER = BENCHMARKS["folder"]


@pytest.fixture
def pictures(tmp_path):
    """Two domains with two classes of three pictures each, all different; a function that writes one more."""
    root = tmp_path / "root"

    def put(place, data):
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    for seed, place in enumerate(
        f"{d}/{c}/{n}.png" for d in ("photo", "sketch") for c in ("cat", "dog") for n in "123"
    ):
        put(place, encoded(detailed(seed), "PNG"))
    return root, put


def detailed(seed, size=(120, 90)):
    """Return a picture with edges at many scales, as photographs have."""
    rng = np.random.default_rng(seed)
    layers = [rng.normal(0, 1, (n, n, 3)) * 40 / n**0.5 for n in (3, 6, 12, 24)]
    images = [
        Image.fromarray(np.uint8(np.clip(128 + one, 0, 255))).resize(size, Image.Resampling.BICUBIC) for one in layers
    ]
    return Image.fromarray(np.uint8(np.clip(sum(np.asarray(one, dtype=float) for one in images) - 3 * 128, 0, 255)))


def relations(copies):
    return {relation.name: count for relation, count in copies.counts.items()}


class TestEqual:
    def test_different_images(self, pictures):
        report = check(FOLDER, pictures[0])
        assert (relations(report.equal), relations(report.similar), report.fine) == ({}, {}, True)

    @pytest.mark.parametrize(("place", "relation", "fine"), [
        ("sketch/cat/9.png", "DOMAINS", False),
        ("sketch/dog/9.png", "DOMAINS", False),
        ("photo/dog/9.png", "CLASSES", False),
        ("photo/cat/9.png", "WITHIN", True),
    ])  # fmt: skip
    def test_the_same_file_again(self, pictures, place, relation, fine):
        root, put = pictures
        put(place, (root / "photo/cat/1.png").read_bytes())
        report = check(FOLDER, root)
        assert (relations(report.equal), report.fine) == ({relation: 1}, fine)
        (copy,) = report.equal.copies
        assert {image.name for image in copy.images} == {"photo/cat/1.png", place}
        assert relations(report.similar) == {}

    def test_the_same_pixels_in_another_format(self, pictures):
        root, put = pictures
        put("sketch/cat/9.webp", encoded(detailed(0), "WEBP", lossless=True))
        (copy,) = check(FOLDER, root).equal.copies
        assert copy.relation is Relation.DOMAINS

    def test_three_of_the_same_are_one_group(self, pictures):
        root, put = pictures
        for place in ("photo/cat/8.png", "sketch/dog/8.png"):
            put(place, (root / "photo/cat/1.png").read_bytes())
        (copy,) = check(FOLDER, root).equal.copies
        assert (copy.relation, len(copy.images)) == (Relation.DOMAINS, 3)

    def test_flat_images_are_equal_only_if_their_colours_are(self, pictures):
        root, put = pictures
        for number, colour in enumerate(("black", "white", "white")):
            put(f"photo/cat/flat{number}.png", encoded(Image.new("RGB", (40, 40), colour), "PNG"))
        report = check(FOLDER, root)
        assert (relations(report.equal), relations(report.similar)) == ({"WITHIN": 1}, {})


class TestSimilar:
    @pytest.mark.parametrize("change", [
        lambda image: encoded(image, "JPEG", quality=40),
        lambda image: encoded(image.resize((70, 50), Image.Resampling.BILINEAR), "PNG"),
        lambda image: encoded(image.resize((200, 170), Image.Resampling.LANCZOS), "JPEG", quality=80),
        lambda image: encoded(image.point(lambda value: min(255, int(1.15 * value))), "PNG"),
        lambda image: encoded(image.convert("L"), "PNG"),
    ])  # fmt: skip
    def test_a_changed_copy_in_another_domain(self, pictures, change):
        root, put = pictures
        put("sketch/dog/9.jpg", change(detailed(4)))
        report = check(FOLDER, root)
        assert (relations(report.equal), relations(report.similar)) == ({}, {"DOMAINS": 1})
        assert [image.name for image in report.similar.copies[0].images] == ["photo/dog/2.png", "sketch/dog/9.jpg"]
        assert report.fine  # a person decides

    def test_an_image_with_an_equal_one_is_compared_once(self, pictures):
        root, put = pictures
        put("photo/dog/8.png", (root / "photo/dog/2.png").read_bytes())
        put("photo/dog/9.jpg", encoded(detailed(4), "JPEG", quality=60))
        report = check(FOLDER, root)
        assert (relations(report.equal), relations(report.similar)) == ({"WITHIN": 1}, {"WITHIN": 1})

    def test_the_hash_is_the_signs_of_the_lowest_frequencies(self):
        from scipy.fft import dctn

        pixels = np.ascontiguousarray(np.asarray(detailed(3, (64, 64))).transpose(2, 0, 1))
        grey = np.tensordot([0.299, 0.587, 0.114], pixels.astype(float), axes=1)
        bits = dctn(grey, norm="ortho")[:16, :16] > 0
        bits[0, 0] = False
        hash_bits = np.unpackbits(perceptual_hash(pixels).view(np.uint8))
        for band in range(16):  # a diagonal of the frequencies, by rows
            expected = [bits[row, (band - row) % 16] for row in range(16)]
            assert hash_bits[16 * band : 16 * band + 16].tolist() == expected

    def test_pairs_are_those_of_all_comparisons(self):
        rng = np.random.default_rng(0)
        bits = rng.random((300, 256)) < 0.5
        for row in range(1, 60):  # copies at every distance up to 29
            bits[row + 200] = bits[row]
            bits[row + 200, rng.choice(256, row // 2, replace=False)] ^= True
        hashes = np.packbits(bits, axis=1).view(np.uint64)
        distances = {
            tuple(pair): int(d)
            for pairs, ds in _close_pairs(hashes)
            for pair, d in zip(pairs.tolist(), ds, strict=True)
        }
        distance = (bits[:, None] ^ bits[None]).sum(axis=2)
        expected = {
            (i, j): int(distance[i, j]) for i in range(300) for j in range(i + 1, 300) if distance[i, j] <= LIMIT
        }
        assert len(expected) == 49
        assert distances == {pair: expected[pair] for pair in distances}
        assert {pair for pair, d in expected.items() if d < 16} <= set(distances)
        assert len(distances) >= 47

    def test_many_images_of_one_hash(self):
        """Memory and the list of pairs stay bounded; all pairs are counted."""
        prints = Prints.empty(500)
        prints.pixels[:], prints.textured[:], prints.readable[:] = np.arange(500), True, True
        zeros = np.zeros(500, np.int64)
        copies = similar_images(prints, zeros, zeros)
        assert relations(copies) == {"WITHIN": 500 * 499 // 2}
        assert len(copies.groups) == 100_000

    def test_no_readable_image(self):
        prints, zeros = Prints.empty(3), np.zeros(3, np.int64)
        assert equal_images(prints, zeros, zeros).groups == similar_images(prints, zeros, zeros).groups == []


class TestCommand:
    def test_the_most_serious_is_first(self, pictures, tmp_path, capsys):
        root, put = pictures
        put("sketch/cat/9.png", (root / "photo/cat/1.png").read_bytes())
        put("photo/dog/9.png", (root / "photo/cat/2.png").read_bytes())
        put("photo/cat/9.jpg", encoded(detailed(2), "JPEG", quality=60))
        output = tmp_path / "found.csv"
        assert main(["data", "check", "folder", "--root", str(root), "-o", str(output)]) == 1
        out = capsys.readouterr().out
        titles = [line for line in out.splitlines() if "image" in line and line.endswith(": 1")]
        assert [title.split(" (")[0] for title in titles] == [
            "the same image in two domains",
            "the same image in two classes",
            "similar images in one domain and class",
        ]
        assert "  photo/cat/1.png = sketch/cat/9.png\n" in out
        assert "  photo/cat/3.png ≈ photo/cat/9.jpg\n" in out
        rows = list(csv.DictReader(io.StringIO(output.read_text())))
        assert [(row["finding"], row["between"]) for row in rows] == [
            ("equal", "domains"), ("equal", "classes"), ("similar", "within"),
        ]  # fmt: skip
        assert (rows[0]["path"], rows[0]["other_path"], rows[0]["other_domain"]) == (
            "photo/cat/1.png", "sketch/cat/9.png", "sketch",
        )  # fmt: skip

    def test_domains_and_classes_that_names_lack_are_shown(self, tmp_path, capsys):
        for name in "ab":
            (tmp_path / f"{name}.png").write_bytes(encoded(picture(1), "PNG"))
        (tmp_path / "t.csv").write_text("path,class,domain\na.png,cat,photo\nb.png,dog,sketch\n")
        assert main(["data", "check", "table", "--root", str(tmp_path / "t.csv")]) == 1
        assert "  a.png (photo, cat) = b.png (sketch, dog)\n" in capsys.readouterr().out

    @pytest.mark.parametrize(("arguments", "message"), [
        (["check", "folder", "--root", ".", "-o", "x.txt"], "--output must end in .csv, got x.txt"),
        (["check", "folder", "--root", ".", "--runs", "gone"], "run gone does not exist"),
        (["fetch", "pacs", "--root", ".", "--runs", "gone"], "--runs works only with `medic data check`"),
    ])  # fmt: skip
    def test_mistakes(self, capsys, arguments, message):
        assert main(["data", *arguments]) == 2
        assert message in capsys.readouterr().err
