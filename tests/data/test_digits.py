import numpy as np
import pytest
from PIL import ImageFont
from sklearn.datasets import load_digits

from medic.data.benchmarks import digits


@pytest.fixture(scope="module")
def rendered():
    """One rendering: images, domain, label."""
    return digits.render()


@pytest.fixture(scope="module")
def handwriting():
    """The stencils by class that `handwritten` shows, and those that `blended` shows."""
    return digits._handwriting()


def test_shapes_and_dtypes(rendered):
    images, domain, label = rendered
    assert images.shape[1:] == (3, digits.SIZE, digits.SIZE)
    assert images.dtype == np.uint8
    assert images.flags.c_contiguous
    assert domain.shape == label.shape == (len(images),)
    assert domain.dtype == label.dtype == np.int64


def test_every_cell_holds_90_to_180_images(rendered):
    _, domain, label = rendered
    counts = np.zeros((len(digits.DOMAINS), len(digits.CLASSES)), int)
    np.add.at(counts, (domain, label), 1)
    assert counts.min() >= 90
    assert counts.max() <= 180


def test_sorted_by_domain_then_class(rendered):
    _, domain, label = rendered
    assert (np.diff(domain * len(digits.CLASSES) + label) >= 0).all()


def test_same_bytes_whatever_the_global_random_state(monkeypatch):
    monkeypatch.setattr(digits, "_PER_CELL", 3)
    first = digits.render()
    np.random.seed(7)  # noqa: NPY002
    for one, other in zip(first, digits.render(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_image_is_blank(rendered):
    images = rendered[0].astype(float)
    assert images.std(axis=(2, 3)).max(axis=1).min() > 5  # grey levels, in the channel that shows the digit best


def test_no_image_occurs_twice(rendered):
    images = rendered[0]
    assert len({image.tobytes() for image in images}) == len(images)


def test_labels_say_what_is_shown(rendered):
    """In handwriting, where all is upright and dark on light, the halves of a class have the nearest means."""
    images, domain, _ = rendered
    pages = images[domain == digits.DOMAINS.index("handwritten")].mean(axis=1)
    cells = pages.reshape(len(digits.CLASSES), -1, digits.SIZE, digits.SIZE)
    even, odd = cells[:, 0::2].mean(axis=1), cells[:, 1::2].mean(axis=1)
    distance = ((even[:, None] - odd[None]) ** 2).sum(axis=(2, 3))
    np.testing.assert_array_equal(distance.argmin(axis=1), np.arange(len(digits.CLASSES)))


def test_blended_shows_other_handwriting_than_handwritten(handwriting):
    handwritten, blended = ({stencil.tobytes() for cell in part for stencil in cell} for part in handwriting)
    assert not handwritten & blended
    counts = [len(first) + len(second) for first, second in zip(*handwriting, strict=True)]
    assert counts == np.bincount(load_digits().target).tolist()


def test_handwritten_shows_no_scan_twice(handwriting, rendered):
    _, domain, label = rendered
    counts = np.bincount(label[domain == digits.DOMAINS.index("handwritten")])
    assert [len({stencil.tobytes() for stencil in cell}) for cell in handwriting[0]] == counts.tolist()


def test_fonts_without_digits_are_skipped():
    names = {path.stem for path in digits._fonts()}
    assert {"DejaVuSans", "STIXGeneral", "cmr10"} <= names
    assert not names & {"cmsy10", "cmex10", "DejaVuSansDisplay", "STIXNonUni", "STIXSizOneSymReg"}
    assert not any(name.startswith("LastResort") for name in names)


@pytest.mark.parametrize("path", digits._fonts(), ids=lambda path: path.stem)
def test_every_font_draws_ten_different_digits(path):
    font = ImageFont.truetype(str(path), 96)
    stencils = [digits._stamp(font, digit) for digit in digits.CLASSES]
    assert len({(stencil.size, stencil.tobytes()) for stencil in stencils}) == len(digits.CLASSES)
    assert all(0.05 < np.asarray(stencil).mean() / 255 < 0.95 for stencil in stencils)
