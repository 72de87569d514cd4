"""Numbers of analyses that can be computed by hand, in float64."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from medic.analysis import ANALYSES, expansion
from medic.analysis.boundary import midpoints, plane
from medic.analysis.embed import centrality, overlap
from medic.analysis.errors import confusion_rates
from medic.analysis.gradients import gram, pairs, regularisation
from medic.analysis.load import moments_of, run_labels
from medic.analysis.result import Result
from medic.analysis.separation import class_differences
from medic.analysis.style import FIXED, WIDTH, method_colours
from medic.analysis.tasks import Record, chances
from medic.errors import MedicError
from medic.utils.outputs import Output


def test_the_expansion_has_half_the_coefficient_of_the_paper():
    result = expansion.measure()
    assert result.slope["half, mean over orders"] == pytest.approx(2, abs=0.02)
    assert result.slope["paper, second order"] == pytest.approx(2, abs=0.02)
    assert result.slope["paper, mean over orders"] == pytest.approx(1, abs=0.02)
    assert result.slope["half, one order"] == pytest.approx(1, abs=0.05)
    assert result.coefficient["first order, mean"][0] == pytest.approx(0.5, abs=1e-3)
    assert result.coefficient["second order"][0] == pytest.approx(1, abs=1e-3)
    assert abs(result.coefficient["first order, one order"][0] - 0.5) > 0.05
    assert any("half the paper's coefficient" in note for note in result.notes())
    title = expansion.draw(result).axes[0].get_title("left")
    assert "half the paper's" in title
    assert "on average over orders" in title


def test_gram_holds_dot_products_of_gradients_and_leaves_the_model_alone():
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Dropout(0.9)).double().train()
    before = model[0].weight.detach().clone()
    batches = [
        (torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64), torch.tensor([1, 1])),
        (torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([-2])),
    ]

    def loss(output: Output, y):  # whose gradient is y · x
        return output.logits[:, 0] * y

    products = gram(model, [loss, loss], batches)  # (4, 0) and (-4, -8)
    assert products.tolist() == [[16, -16], [-16, 80]]
    assert model.training
    assert model[1].training
    assert model[0].weight.grad is None
    assert torch.equal(model[0].weight, before)


CELLS = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
"""The domains and classes of F_1, F_2, G_1, G_2."""
VECTORS = np.array([[1.0, 0, 0], [0, 2, 0], [1, 1, 0], [0, -1, 1]])


def test_pairs_are_averaged_by_kind():
    averages = pairs(VECTORS @ VECTORS.T, *CELLS)
    assert averages.dot == {"same domain": (0 - 1) / 2, "same class": (1 - 2) / 2, "both other": (0 + 2) / 2}
    root = 2**0.5
    assert averages.cosine["same domain"] == pytest.approx((0 - 0.5) / 2)
    assert averages.cosine["same class"] == pytest.approx((1 / root - 1 / root) / 2)
    assert averages.cosine["both other"] == pytest.approx((0 + 1 / root) / 2)
    assert averages.conflict == {"same domain": 0.5, "same class": 0.5, "both other": 0}


def test_the_regularisation_term_leaves_out_tasks_that_differ_in_both():
    f1, f2, g1, g2 = VECTORS
    expected = -(f1 @ f2 + f1 @ g1 + g2 @ f2 + g2 @ g1)
    term, relative = regularisation(VECTORS @ VECTORS.T, *CELLS)
    assert term == expected == 2
    assert relative == pytest.approx(expected / np.mean([1, 4, 2, 2]))
    assert regularisation(np.ones((4, 4)), *CELLS) == (-4, -4)
    several = np.repeat([0, 1], 4), np.tile(np.arange(4), 2)  # tasks of two classes: the mean of their gradients
    assert regularisation(np.ones((8, 8)), *several) == (-4, -4)
    assert np.isnan(regularisation(np.ones((2, 2)), np.array([0, 0]), np.array([0, 1]))).all()


def test_class_differences_are_cohens_d_over_features_that_vary():
    features = np.array([[0.0, 5, 1], [2, 5, 2], [4, 5, 3], [6, 5, 4], [9, 5, 9]])
    differences = class_differences(features, np.array([0, 0, 1, 1, 2]), 3)
    assert differences[0, 1] == differences[1, 0] == pytest.approx((4 / 2**0.5 + 2 / 0.5**0.5) / 2)
    assert differences[0, 0] == 0
    assert np.isnan(differences[2, 0])  # one image has no variance


def test_midpoints_are_those_of_the_features():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, dtype=torch.float64, generator=generator)
    weight, bias = torch.randn(3, 4, dtype=torch.float64, generator=generator), torch.tensor([0.5, 0, -1]).double()
    y = torch.arange(30) % 4 - 1  # with unknown images
    midpoint, linear = midpoints(features @ weight.T + bias, y)
    for c, j in ((0, 1), (2, 0)):
        middle = (features[y == c][:, None] + features[y == j]) / 2
        assert midpoint[c, j] == pytest.approx(float((middle @ weight[c] + bias[c]).sigmoid().mean()))
        q = (features @ weight[c] + bias[c]).sigmoid()
        assert linear[c, j] == pytest.approx(float(q[y == c].mean() + q[y == j].mean()) / 2)
    assert np.isnan(np.diag(midpoint)).all()


def test_the_plane_shows_where_the_boundary_crosses():
    features = torch.tensor([[0.0, -1, 0], [0, 1, 0], [4, -1, 0], [4, 1, 0]], dtype=torch.float64)
    own = torch.tensor([False, False, True, True])
    class_plane = plane(features, own, lambda points: points[:, 0] - 3)
    assert class_plane.crossing == 0.75
    assert np.allclose(class_plane.points[:, 0], [0, 0, 1, 1])
    assert np.allclose(np.abs(class_plane.points[:, 1]), 0.25)  # in units of the distance between the means
    assert ((class_plane.positive > 0.5) == (class_plane.x > 0.75)).all()
    with pytest.raises(MedicError, match="--classes"):
        plane(features[[0, 0]], torch.tensor([False, True]), lambda points: points[:, 0])


def test_overlap_and_centrality():
    features = np.array([[0.0], [0.1], [10], [10.1]])
    apart, mixed = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert overlap(features, apart, neighbours=1) == 0
    assert overlap(features, mixed, neighbours=1) == pytest.approx(1 / (2 / 3))
    assert np.isnan(overlap(features, np.ones(4, bool)))
    assert centrality(np.array([[-3.0], [3], [-1], [1]]), apart) == pytest.approx(1 / 3)


def test_splits_are_counted():
    record = Record(4)
    record.add(np.full((4, 4), 0.25), [(0,), (1,), (2,), (3,)], [[2, 1], [0, 3]])  # the chain 2, 0, 1, 3
    record.add(np.full((4, 4), 0.75), [(0,), (2,)], [[0], [1]])  # a domain without 1 and 3
    assert record.splits == 2
    assert record.confusion[0, 1] == 1
    assert (record.both[0, 2], record.both[0, 1]) == (2, 1)
    assert (record.neighbours[2, 0], record.neighbours[0, 1], record.neighbours[1, 3], record.neighbours[2, 1]) == (
        2, 1, 1, 0,
    )  # fmt: skip
    assert (record.apart[2, 1], record.apart[0, 3], record.apart[0, 1]) == (0, 0, 1)
    assert record.chance == [chances([2, 2]), chances([1, 1])]
    assert chances([2, 2]) == (0.5, 1 - 4 / 12)


def test_confusion_rates_leave_out_unknown_images():
    rates, counts = confusion_rates(np.array([0, 0, 0, 1, -1]), np.array([0, 1, 1, 1, 0]), 3)
    assert rates[0].tolist() == [1 / 3, 2 / 3, 0]
    assert rates[1].tolist() == [0, 1, 0]
    assert np.isnan(rates[2]).all()
    assert counts.tolist() == [3, 1, 0]


def test_moments_end_with_the_last_iteration():
    assert moments_of(100, 4) == [25, 50, 75, 100]
    assert moments_of(2, 10) == [1, 2]
    with pytest.raises(MedicError, match=r"--moments .* got 0"):
        moments_of(10, 0)


def test_labels_tell_runs_apart():
    steps = [{"method": "medic++", "steps": [9], "seed": 0}, {"method": "medic++", "steps": [3, 3, 3], "seed": 0}]
    assert run_labels([*steps, {"method": "erm", "steps": [1], "seed": 0}], ["a", "b", "c"]) == [
        "MEDIC++, 1 step", "MEDIC++, 3 steps", "ERM",
    ]  # fmt: skip
    assert run_labels([steps[0], steps[0]], ["a", "b"]) == ["MEDIC++, a", "MEDIC++, b"]


def test_methods_keep_their_colours():
    assert method_colours(["arpl", "medic++", "erm"])[1:] == ["#d55e00", "#7a7a85"] == [FIXED["medic++"], FIXED["erm"]]
    first, second = method_colours(["medic++", "medic++"])
    assert first == "#d55e00" != second
    assert len(set(method_colours(["arpl", "swad", "daml", *FIXED]))) == 3 + len(FIXED)


def test_figures_have_the_width_of_a_column():
    figure = ANALYSES["expansion"].measure().draw()
    assert figure.get_size_inches()[0] == WIDTH == 3.5


def test_numbers_are_plain_in_json():
    result = ANALYSES["expansion"].measure()
    assert isinstance(result, Result)
    read = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert read["coefficient"]["second order"][0] == result.coefficient["second order"][0]
    assert read["notes"] == result.notes()
