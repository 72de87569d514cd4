"""Batched augmentation against torchvision, image by image."""

import colorsys
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medic.data.augment import RECIPES, Augmentation, describe_augmentation, make_augmentation, resample, turn_hue
from medic.errors import MedicError
from medic.models import _torchvision

# Torchvision's tensors weigh red by 0.2989, PIL and we by 0.299: a luma differs by at most 1e-4, and a blend with it
# by the part that the luma has in it.
LUMA = 1e-4 + 1e-6
EVERYTHING = Augmentation(scale=(0.3, 1.0), flip=0.5, jitter=0.4, grey=0.3)


@pytest.fixture(scope="module")
def reference():
    _torchvision.ensure()
    import torchvision.transforms.v2.functional as reference

    return reference


@pytest.fixture
def pixels():
    return torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def plain_draws(count, height, width):
    """Draws that change nothing."""
    return torch.tensor([[0.0, 0, height, width, 0, 1, 1, 1, 0, 0]]).repeat(count, 1)


def transformed(reference, image, row, size):
    """What torchvision makes of an image with the numbers of a row of draws."""
    top, left, height, width, flip, brightness, contrast, saturation, turn, grey = row.tolist()
    box = (int(top), int(left), int(height), int(width))
    image = reference.resized_crop(image, *box, list(size), antialias=True)
    image = reference.horizontal_flip(image) if flip else image
    image = reference.adjust_brightness(image, brightness)
    image = reference.adjust_contrast(image, contrast)
    image = reference.adjust_saturation(image, saturation)
    image = reference.adjust_hue(image, turn)
    return reference.rgb_to_grayscale(image, num_output_channels=3) if grey else image


# --- crop and flip ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "size", "scale"),
    [
        pytest.param(32, 32, 32, (0.05, 1.0), id="up"),
        pytest.param(32, 20, 48, (0.5, 1.0), id="up from an oblong"),
        pytest.param(40, 40, 32, (0.3, 1.0), id="up and down"),
        pytest.param(40, 56, 12, (0.7, 1.0), id="down"),
        pytest.param(256, 256, 224, (0.8, 1.0), id="as in training"),
    ],
)
def test_crops_equal_torchvision(height, width, size, scale, reference):
    pixels = torch.rand(8, 3, height, width, generator=seeded())
    recipe = Augmentation(scale=scale, flip=0.5)
    draws = recipe.draw(8, height, width, seeded(1))
    for image, row, result in zip(pixels, draws, recipe.apply(pixels, draws, size), strict=True):
        expected = reference.resized_crop(image, *row[:4].int().tolist(), [size, size], antialias=True)
        expected = reference.horizontal_flip(expected) if row[4] else expected
        assert (result - expected).abs().max() < 1e-6


def test_a_crop_of_the_right_size_is_copied(pixels):
    box, flip = torch.tensor([[2.0, 1.0, 5.0, 6.0]]).repeat(16, 1), torch.zeros(16, 1)
    assert torch.equal(resample(pixels, box, flip, (5, 6)), pixels[:, :, 2:7, 1:7])
    assert torch.equal(resample(pixels, box, 1 - flip, (5, 6)), pixels[:, :, 2:7, 1:7].flip(3))


def test_nothing_outside_the_crop_is_seen():
    pixels = torch.full((1, 3, 9, 9), 1e6)
    pixels[:, :, 2:6, 3:8] = 0.5
    box = torch.tensor([[2.0, 3.0, 4.0, 5.0]])
    for shape in ((9, 9), (2, 3)):
        assert (resample(pixels, box, torch.zeros(1, 1), shape) - 0.5).abs().max() < 1e-6


def test_the_size_without_a_crop(reference):
    pixels = torch.rand(2, 3, 20, 20, generator=seeded())
    for size in (12, 33):
        result = RECIPES["none"](pixels, seeded(), size)
        assert (result - reference.resize(pixels, [size, size], antialias=True)).abs().max() < 1e-6


def test_flip_alone_is_exact(pixels):
    recipe = Augmentation(flip=0.5)
    flip = recipe.draw(16, 8, 8, seeded())[:, 4].bool()
    result = recipe(pixels, seeded())
    assert 0 < flip.sum() < 16
    assert torch.equal(result[flip], pixels[flip].flip(3))
    assert torch.equal(result[~flip], pixels[~flip])


# --- colours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "change", "values", "difference"),
    [
        (5, "adjust_brightness", (0.5, 0.9, 1.5), 1e-6),
        (6, "adjust_contrast", (0.5, 0.9, 1.5), 0.5 * LUMA),
        (7, "adjust_saturation", (0.5, 0.9, 1.5), 0.5 * LUMA),
        (8, "adjust_hue", (-0.5, -0.4, 0.1, 0.5), 5e-6),
    ],
)
def test_each_change_of_colour_equals_torchvision(column, change, values, difference, pixels, reference):
    for value in values:
        draws = plain_draws(16, 8, 8)
        draws[:, column] = value
        result = Augmentation(jitter=0.5).apply(pixels, draws)
        for image, ours in zip(pixels, result, strict=True):
            assert (ours - getattr(reference, change)(image, value)).abs().max() < difference


def test_grey_equals_torchvision(pixels, reference):
    result = Augmentation(grey=1.0)(pixels, seeded())
    assert (result - reference.rgb_to_grayscale(pixels, num_output_channels=3)).abs().max() < LUMA


def test_grey_takes_its_share():
    pixels = torch.rand(4000, 3, 1, 1, generator=seeded())
    result = Augmentation(grey=0.1)(pixels, seeded(1))
    lost = (result[:, 0] == result[:, 1]).all(-1).all(-1)
    assert lost.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert torch.equal(result[~lost], pixels[~lost])


@given(st.floats(-0.5, 0.5), st.integers(0, 99))
def test_hue_equals_hsv(turn, seed):
    """On a grid of colours, where channels tie and vanish, as on the borders between the sixths of the circle."""
    colours = torch.randint(0, 5, (3, 8), generator=seeded(seed)).double() / 4
    turned = turn_hue(colours[None, :, None], torch.full((1, 1, 1), turn, dtype=torch.float64))
    for old, new in zip(colours.T.tolist(), turned[0, :, 0].T.tolist(), strict=True):
        h, s, v = colorsys.rgb_to_hsv(*old)
        assert new == pytest.approx(colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-9)


def test_grey_has_no_hue():
    grey = torch.full((2, 3, 4, 4), 0.4)
    torch.testing.assert_close(turn_hue(grey, torch.full((2, 1, 1), 0.3)), grey)


# --- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 20, 40])
def test_everything_equals_torchvision(size, reference):
    """Up to the two weights of red: contrast, saturation and grey each add their share of them."""
    pixels = torch.rand(16, 3, 32, 32, generator=seeded())
    draws = EVERYTHING.draw(16, 32, 32, seeded(1))
    result = EVERYTHING.apply(pixels, draws, size)
    for image, row, ours in zip(pixels, draws, result, strict=True):
        assert (ours - transformed(reference, image, row, (size or 32,) * 2)).abs().max() < 2 * LUMA


def test_doing_nothing_is_the_identity(pixels):
    assert torch.equal(RECIPES["none"](pixels, seeded()), pixels)
    assert torch.equal(RECIPES["none"](pixels, seeded(), size=8), pixels)
    whole = Augmentation(scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert torch.equal(whole(pixels, seeded()), pixels)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name, pixels):
    before = pixels.clone()
    a, b = (RECIPES[name](pixels, seeded()) for _ in range(2))
    assert torch.equal(a, b)
    assert a.shape == pixels.shape
    assert -1e-6 < a.min() <= a.max() < 1 + 1e-6
    assert torch.equal(pixels, before)
    assert name == "none" or not torch.equal(a, RECIPES[name](pixels, seeded(1)))


def test_the_type_of_the_pixels_stays(pixels):
    for recipe in (EVERYTHING, Augmentation(flip=0.5, grey=0.5)):
        single, double = recipe(pixels, seeded()), recipe(pixels.double(), seeded())
        assert double.dtype == torch.float64
        assert (single - double).abs().max() < 5e-6


def test_no_value_and_no_tensor_comes_from_the_host():
    """On a device without values, asking for one is an error, and so is an operation with a tensor elsewhere."""
    pixels, draws = torch.empty(4, 3, 32, 32, device="meta"), torch.empty(4, 10, device="meta")
    for size in (None, 24, 40):
        assert EVERYTHING.apply(pixels, draws, size).shape == (4, 3, size or 32, size or 32)


def test_one_graph_for_all_draws():
    """Tracing into a single graph fails where the flow depends on a value."""
    pixels = torch.rand(4, 3, 16, 16, generator=seeded())
    graph = torch.compile(EVERYTHING.apply, fullgraph=True, backend="eager")
    for seed in range(2):
        draws = EVERYTHING.draw(4, 16, 16, seeded(seed))
        torch.testing.assert_close(graph(pixels, draws, 12), EVERYTHING.apply(pixels, draws, 12))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [None, 24])
def test_a_cuda_graph_holds_it(size):
    pixels = torch.rand(8, 3, 32, 32, generator=seeded()).cuda()
    draws = EVERYTHING.draw(8, 32, 32, seeded()).cuda()
    EVERYTHING.apply(pixels, draws, size)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = EVERYTHING.apply(pixels, draws, size)
    for seed in (1, 2):
        draws.copy_(EVERYTHING.draw(8, 32, 32, seeded(seed)))
        graph.replay()
        expected = EVERYTHING(pixels.cpu(), seeded(seed), size)
        assert (result.cpu() - expected).abs().max() < 1e-5


# --- draws -----------------------------------------------------------------------------------------------------------


def test_draws_are_within_their_ranges():
    recipe = Augmentation(scale=(0.2, 0.6), flip=0.3, jitter=0.4, grey=0.1)
    draws = recipe.draw(20_000, 200, 240, seeded())
    assert draws.shape == (20_000, 10)
    assert draws.dtype == torch.float32
    top, left, height, width, flip, *factors, turn, grey = draws.T
    assert torch.equal(draws[:, :4], draws[:, :4].round())
    assert (top.min(), left.min()) == (0, 0)
    assert (height + top).max() == 200
    assert (width + left).max() == 240
    area, ratio = height * width / (200 * 240), width / height
    assert 0.195 < area.min() < 0.21
    assert 0.59 < area.max() < 0.605
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.35
    assert ratio.log().mean().abs() < 0.01
    assert area.mean().item() == pytest.approx(0.4, abs=0.005)
    assert flip.mean().item() == pytest.approx(0.3, abs=0.01)
    assert grey.mean().item() == pytest.approx(0.1, abs=0.01)
    for factor in (*factors, turn + 1):
        assert 0.6 <= factor.min() < 0.601
        assert 1.399 < factor.max() <= 1.4
        assert factor.mean().item() == pytest.approx(1, abs=0.01)


def plain_box(uniform, scale, ratio, height, width):
    """Torchvision's RandomResizedCrop as a loop, with given random numbers; also the number of attempts in vain."""
    for failed, (share, shape) in enumerate(zip(uniform[:10], uniform[10:20], strict=True)):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * share)
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + (high - low) * shape)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return failed, [int(uniform[20] * (height - h + 1)), int(uniform[21] * (width - w + 1)), h, w]
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return 10, [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(("height", "width"), [(224, 224), (100, 150), (150, 100), (40, 400), (401, 40)])
def test_the_first_attempt_that_fits_is_taken(height, width):
    recipe = Augmentation(scale=(0.5, 1.0))
    uniform = torch.rand(2000, 22, dtype=torch.float64, generator=seeded())
    plain = [plain_box(row, recipe.scale, recipe.ratio, height, width) for row in uniform.tolist()]
    frames = torch.tensor([height, width]).expand(2000, 2)
    assert recipe._boxes(uniform, frames).tolist() == [box for _, box in plain]
    failures = {failed for failed, _ in plain}
    assert failures == {10} if max(height, width) >= 10 * min(height, width) else failures >= set(range(6))


def test_the_middle_is_taken_where_nothing_fits():
    recipe = Augmentation(scale=(0.8, 1.0))
    assert recipe.draw(3, 40, 400, seeded())[:, :4].tolist() == [[0, 173, 40, 53]] * 3
    assert recipe.draw(3, 400, 40, seeded())[:, :4].tolist() == [[173, 0, 53, 40]] * 3
    narrow = Augmentation(scale=(1.0, 1.0), ratio=(0.5, 0.5))
    assert narrow.draw(1, 100, 40, seeded())[:, :4].tolist() == [[10, 0, 80, 40]]


def test_crops_of_squashed_images_have_the_shapes_of_crops_of_the_originals():
    recipe = Augmentation(scale=(0.2, 0.8))
    frames = torch.tensor([[100, 300], [448, 224], [224, 224]]).repeat(50, 1)
    boxes = recipe.draw(150, 224, 224, seeded(), frames)[:, :4]
    for frame in frames[:3]:
        mine = (frames == frame).all(1)
        height, width = frame.tolist()
        originals = recipe.draw(150, height, width, seeded())[mine, :4]
        ends = torch.stack((boxes[mine, :2], boxes[mine, :2] + boxes[mine, 2:]))
        expected = torch.stack((originals[:, :2], originals[:, :2] + originals[:, 2:])) * 224 / frame
        assert (ends - expected).abs().max() <= 0.5
    assert torch.equal(boxes[2::3], recipe.draw(150, 224, 224, seeded())[2::3, :4])
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= 224).all()


def test_a_crop_of_a_sliver_is_a_pixel_or_more():
    thin = torch.tensor([[30_000, 3]]).repeat(200, 1)
    boxes = Augmentation(scale=(0.001, 0.01)).draw(200, 8, 8, seeded(), thin)[:, :4]
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= 8).all()


def test_draws_depend_on_the_generator_alone():
    assert torch.equal(EVERYTHING.draw(5, 32, 32, seeded(3)), EVERYTHING.draw(5, 32, 32, seeded(3)))
    generator = seeded(3)
    assert not torch.equal(EVERYTHING.draw(5, 32, 32, generator), EVERYTHING.draw(5, 32, 32, generator))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"scale": (0.0, 1.0)}, "scale must be"),
        ({"scale": (0.8, 0.5)}, "scale must be"),
        ({"ratio": (2.0, 1.0)}, "ratio must be"),
        ({"jitter": 0.6}, "jitter must be between 0 and 0.5"),
        ({"flip": 1.5}, "flip must be a probability between 0 and 1, got 1.5"),
        ({"grey": -0.1}, "grey must be a probability between 0 and 1, got -0.1"),
    ],
)
def test_numbers_that_make_no_recipe(numbers, message):
    with pytest.raises(MedicError, match=message):
        Augmentation(**numbers)


@pytest.mark.parametrize(("value", "recipe", "name"), [
    ("medic", RECIPES["medic"], "medic"),
    ("scale=0.8:1,flip=0.5,jitter=0.4,grey=0.1", RECIPES["medic"], "medic"),
    ("digits,jitter=0.2", Augmentation(jitter=0.2, grey=0.1), "jitter=0.2,grey=0.1"),
    ({"scale": [0.5, 1], "ratio": [1, 1]}, Augmentation((0.5, 1.0), (1.0, 1.0)), "scale=0.5:1.0,ratio=1.0:1.0"),
    ("jitter=0", Augmentation(), "none"),
])  # fmt: skip
def test_recipes_by_name_and_by_numbers(value, recipe, name):
    assert make_augmentation(value) == recipe
    assert describe_augmentation(recipe) == name
    assert make_augmentation(name) == recipe


@pytest.mark.parametrize(("value", "message"), [
    ("medik", "unknown augmentation 'medik': did you mean 'medic'?"),
    ("jiter=0.4", "unknown augmentation parameter 'jiter': did you mean 'jitter'?"),
    ("medic,strong", "expected name=value, such as jitter=0.4, got 'strong'"),
    ("scale=0.8", "augmentation scale=0.8: expected a range, such as 0.8:1"),
    ("jitter=much", "augmentation jitter=much: expected a number, such as 0.4"),
    ("jitter=2", "jitter must be between 0 and 0.5"),
])  # fmt: skip
def test_mistakes_in_recipes(value, message):
    with pytest.raises(MedicError, match=re.escape(message)):
        make_augmentation(value)
