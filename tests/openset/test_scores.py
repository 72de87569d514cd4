import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch.overrides import TorchFunctionMode

from medic.errors import MedicError
from medic.openset import SCORES, conf_bcls, conf_cls, oscr, predicted_class, score
from medic.utils.outputs import LinearHead, Output
from tests.messages import naming

logit_arrays = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-30, 30, width=32),
)


@given(logit_arrays)
def test_sigmoid_of_conf_cls_is_the_largest_softmax(logits):
    logits = torch.from_numpy(logits)
    expected = logits.double().softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(conf_cls(Output(logits)).sigmoid(), expected, rtol=1e-12, atol=0)


@given(logit_arrays, st.floats(-50, 50))
def test_conf_cls_does_not_change_with_a_common_shift(logits, shift):
    logits = torch.from_numpy(logits).double()
    torch.testing.assert_close(conf_cls(Output(logits + shift)), conf_cls(Output(logits)), rtol=1e-9, atol=1e-9)


@given(logit_arrays)
def test_conf_bcls_reads_the_classifier_of_the_prediction(logits):
    logits = torch.from_numpy(logits)
    classes = torch.arange(logits.shape[1], dtype=torch.float32).expand_as(logits)
    output = Output(logits, torch.stack([-classes, classes], dim=1))
    assert conf_bcls(output).tolist() == (2 * predicted_class(output)).tolist()


def test_saturated_probabilities_make_no_ties():
    # Known samples are the surer half; every margin is a probability of 1.0 in float32.
    margins, label = torch.arange(20.0, 60.0), torch.where(torch.arange(40) < 20, -1, 0)
    logits = torch.stack([margins, torch.zeros(40)], dim=1)
    output = Output(logits, torch.stack([-logits / 2, logits / 2], dim=1))
    probability = logits.softmax(dim=1).amax(dim=1)
    assert probability.unique().tolist() == margins.sigmoid().unique().tolist() == [1.0]
    assert oscr(probability, predicted_class(output), label) == 0.5
    assert oscr(score("cls", output), predicted_class(output), label) == 1
    assert oscr(score("bcls", output), predicted_class(output), label) == 1


def test_one_class_has_infinite_log_odds():
    output = Output(torch.tensor([[3.0], [-2.0]]))
    assert conf_cls(output).tolist() == [torch.inf, torch.inf]
    assert score("energy", output).tolist() == [3.0, -2.0]


@pytest.mark.parametrize("name", ["cls", "bcls", "max-logit", "energy"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_scores_are_float64_with_one_value_per_sample(name, dtype):
    output = Output(torch.randn(5, 3).to(dtype), torch.randn(5, 2, 3).to(dtype))
    value = score(name, output)
    assert value.shape == (5,)
    assert value.dtype == torch.float64


@pytest.mark.parametrize("name", ["cls", "bcls", "max-logit", "energy"])
def test_arrays_serve_as_well_as_tensors(name):
    logits, ova = torch.randn(5, 3), torch.randn(5, 2, 3)
    assert torch.equal(score(name, Output(logits.numpy(), ova.numpy())), score(name, Output(logits, ova)))


def test_plain_logits_serve_as_an_output():
    logits = torch.randn(5, 3)
    assert torch.equal(score("cls", logits), conf_cls(Output(logits)))


def test_a_score_is_an_immutable_value_and_serves_as_its_name():
    entry = SCORES["max-logit"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.name = "other"
    assert score(entry, torch.tensor([[1.0, 4.0]])).tolist() == [4.0]


def test_which_scores_are_probabilities_and_which_need_the_head():
    assert [name for name, entry in SCORES.items() if entry.probability] == ["cls", "bcls", "temperature", "platt"]
    assert [name for name, entry in SCORES.items() if "ova" in entry.needs] == ["bcls", "platt"]
    assert [name for name, entry in SCORES.items() if entry.rejects] == ["reject", "openmax"]
    by_fit = {split: [name for name, entry in SCORES.items() if entry.fitter and entry.split == split]
              for split in ("train", "validation")}  # fmt: skip
    linear = ["react", "ash", "scale", "residual", "vim", "fdbd"]
    assert by_fit["train"] == ["openmax", "knn", "mahalanobis", "rmds", "nnguide", *linear]
    assert by_fit["validation"] == ["temperature", "platt", "kl-matching"]
    assert [name for name, entry in SCORES.items() if "head" in entry.needs] == linear


def test_a_score_that_is_fitted_says_so():
    with pytest.raises(MedicError, match="'knn' must be fitted first"):
        score("knn", Output(torch.zeros(1, 2), features=torch.zeros(1, 3)))
    fitted = SCORES["knn"].fit(Output(torch.zeros(2, 2), features=torch.eye(2)), torch.tensor([0, 1]))
    assert score(fitted, Output(torch.zeros(1, 2), features=torch.eye(2)[:1])).tolist() == [pytest.approx(-(2**0.5))]
    assert all(entry.name == name and entry.description for name, entry in SCORES.items())


@pytest.mark.parametrize(
    ("name", "output", "message"),
    [
        ("max-logits", Output(torch.zeros(2, 3)), "did you mean 'max-logit'"),
        ("bcls", Output(torch.zeros(2, 3)), "outputs with one-vs-all logits: .* the score cls, max-logit or energy"),
        ("bcls", Output(torch.zeros(2, 3), torch.zeros(2, 3, 2)), r"\(2, 3, 2\)"),
        ("bcls", Output(torch.zeros(2, 3), torch.zeros(2, 2, 4)), r"\(2, 4\).*\(2, 3\)"),
        ("cls", Output(torch.zeros(3)), r"\(3,\)"),
        ("energy", Output(torch.zeros(3, 0)), r"\(3, 0\)"),
    ],
)
def test_mistakes_are_named_in_one_line(name, output, message):
    with pytest.raises(MedicError, match=message) as error:
        score(name, output)
    assert "\n" not in str(error.value)


def test_the_margin_over_unknown():
    output = Output(torch.tensor([[1.0, 3.0], [2.0, 0.5]]), unknown=torch.tensor([0.5, 4.0]))
    confidences = [SCORES[name](output) for name, entry in SCORES.items() if "unknown" in entry.needs]
    assert [confidence.tolist() for confidence in confidences] == [[2.5, -2.0]]


@pytest.mark.parametrize("name", ["cls", "bcls", "max-logit", "energy"])
def test_logits_that_are_not_numbers(name):
    logits = torch.tensor([[1.0, 3.0], [float("nan"), 0.5]])
    confidence = SCORES[name](Output(logits, ova=torch.zeros(2, 2, 2)))
    assert confidence.isnan().tolist() == [False, True]
    with pytest.raises(MedicError, match=naming("1 of 2 NaN")):
        oscr(confidence, [1, 1], [0, -1])


class NewTensorsElsewhere(TorchFunctionMode):
    """Make every new tensor without a `device` on the meta device, where it meets no other tensor."""

    makers = frozenset({
        torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand, torch.randn,
        torch.randperm, torch.tensor, torch.zeros,
    })  # fmt: skip

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in self.makers and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


@pytest.mark.parametrize("name", [name for name in SCORES if name != "reject"])
def test_a_score_computes_on_the_device_of_its_outputs(name):
    """As on a GPU: a tensor on another device raises an error."""
    draw = torch.Generator().manual_seed(0)
    label = torch.arange(40) % 4
    features = torch.randn(40, 6, generator=draw) + torch.randn(4, 6, generator=draw)[label]
    head = LinearHead(torch.randn(4, 6, generator=draw), torch.randn(4, generator=draw))
    ova = torch.randn(40, 2, 4, generator=draw)
    output = Output(features @ head.weight.T + head.bias, ova=ova, features=features)
    with NewTensorsElsewhere():
        value = SCORES[name].fit(output, label, head)(output)
    torch.testing.assert_close(value, SCORES[name].fit(output, label, head)(output), rtol=0, atol=0)
