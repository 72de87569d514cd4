import dataclasses
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from medic.errors import MedicError
from medic.openset import fitting
from medic.openset.gaussians import Mahalanobis
from medic.openset.neighbours import Nearest
from medic.openset.openmax import DISTANCES, OpenMax
from medic.openset.weibull import MAX_SHAPE, fit_weibull
from medic.utils.outputs import Output

FITTED = (OpenMax, Nearest, Mahalanobis)


def random_output(samples, classes=4, width=6, seed=0, dtype=torch.float32):
    """Labels, and logits and features that lean to them."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.arange(samples) % classes
    logits = torch.randn(samples, classes, generator=draw) + 2 * torch.nn.functional.one_hot(label, classes)
    features = torch.randn(samples, width, generator=draw) + torch.randn(classes, width, generator=draw)[label]
    return Output(logits.to(dtype), features=features.to(dtype)), label


def weibull_probability(distance, offset, shift, shape, scale):
    base = (distance - offset + shift) / scale
    return 1 - math.exp(-(base**shape)) if base > 0 else 0.0


@pytest.mark.parametrize(
    ("shift", "expected"),
    [(1.0, (2.293807, 3.394291, 0.058812, 0.912091)), (10000.0, (7896.69, 10002.7033, 0.111581, 0.938162))],
)
def test_the_weibull_law_has_the_digits_of_the_reference(shift, expected):
    shape, scale = fit_weibull(torch.arange(1.0, 6.0), shift)
    outlier = [weibull_probability(distance, 1.0, shift, shape, scale) for distance in (1, 5)]
    assert (shape, scale, *outlier) == pytest.approx(expected, rel=1e-6, abs=5e-7)


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 1.0])
def test_the_weibull_law_is_exact_where_the_shift_hides_the_distances(spread):
    distances, shift = [spread * d for d in (1, 2, 3, 4, 5)], 10000.0
    with localcontext(prec=50):
        s = [Decimal(d) - Decimal(distances[0]) + Decimal(shift) for d in distances]
        log = [(value / s[-1]).ln() for value in s]
        low, high = Decimal(1), Decimal(MAX_SHAPE * 10)
        for _ in range(150):
            k = (low * high).sqrt()
            power = [(k * x).exp() for x in log]
            value = sum(p * x for p, x in zip(power, log, strict=True)) / sum(power) - 1 / k - sum(log) / 5
            low, high = (k, high) if value < 0 else (low, k)
    assert fit_weibull(torch.tensor(distances, dtype=torch.float64), shift)[0] == pytest.approx(float(k), rel=1e-12)


@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=20),
    st.sampled_from([0.01, 1.0, 10000.0]),
)
def test_the_weibull_law_is_the_most_likely_one(distances, shift):
    shape, scale = fit_weibull(torch.tensor(distances, dtype=torch.float64), shift)
    lowest, highest = min(distances), max(distances)
    log = [math.log1p((d - highest) / (highest - lowest + shift)) for d in distances]

    def likelihood(k):
        """Of shape k at its best scale: ln k − ln mean s^k + (k − 1) mean ln s, with s in units of the largest."""
        return math.log(k) - math.log(math.fsum(math.exp(k * x) for x in log) / len(log)) + (k - 1) * np.mean(log)

    assert 0 < shape <= MAX_SHAPE * (1 + 1e-9)
    assert shift * (1 - 1e-9) <= scale <= (highest - lowest + shift) * (1 + 1e-9)
    assert likelihood(shape) >= likelihood(shape * 0.99)
    if shape < MAX_SHAPE / 2:
        assert likelihood(shape) >= likelihood(shape * 1.01)


@pytest.mark.parametrize("shift", [1e-300, 1.0, 10000.0])
@pytest.mark.parametrize("distances", [[5.0], [0.0, 0.0], [0.3] * 20])
def test_equal_distances_give_a_step(distances, shift):
    assert fit_weibull(torch.tensor(distances), shift) == pytest.approx((MAX_SHAPE, shift))


def test_distances_that_differ_by_rounding_give_a_step():
    assert fit_weibull(torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64), 1.0) == pytest.approx((MAX_SHAPE, 1.0))


def test_openmax_has_the_digits_of_the_reference():
    logits = torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.float64)
    base = 1 + math.sqrt(10)  # the distance to a mean at 0, moved by 1
    model = OpenMax(
        means=torch.zeros(3, 3, dtype=torch.float64),
        shape=torch.ones(3, dtype=torch.float64),
        scale=torch.tensor([-base / math.log(1 - w) for w in (0.5, 0.2, 0.9)], dtype=torch.float64),
        offset=torch.zeros(3, dtype=torch.float64),
        shift=torch.tensor(1.0, dtype=torch.float64),
        alpha=torch.tensor(2),
        distance=torch.tensor(DISTANCES["euclidean"], dtype=torch.float64),
    )
    recalibrated = model.recalibrate(Output(logits))
    assert recalibrated.logits.squeeze().tolist() == pytest.approx([1.5, 0.9, 0.0], abs=1e-12)
    assert recalibrated.unknown.tolist() == pytest.approx([1.6], abs=1e-12)
    probability = torch.cat([recalibrated.logits, recalibrated.unknown.unsqueeze(1)], dim=1).softmax(dim=1)
    assert probability.squeeze().tolist() == pytest.approx([0.347571, 0.190751, 0.077553, 0.384125], abs=5e-7)
    assert model(logits).tolist() == pytest.approx([-0.1], abs=1e-12)


def slow_distance(v, mean, distance):
    euclidean = math.dist(v, mean)
    cosine = 1 - math.fsum(a * b for a, b in zip(v, mean, strict=True)) / (math.hypot(*v) * math.hypot(*mean))
    return {"euclidean": euclidean, "cosine": cosine, "eucos": euclidean / 200 + cosine}[distance]


def slow_weibull(s):
    """Bisection, without the precautions of the real one."""
    top = math.log(max(s))
    log = [math.log(value) - top for value in s]
    low, high = 1e-3, 1e9
    for _ in range(200):
        k = math.sqrt(low * high)
        power = [math.exp(k * x) for x in log]
        value = math.fsum(p * x for p, x in zip(power, log, strict=True)) / math.fsum(power)
        low, high = (k, high) if value - 1 / k - math.fsum(log) / len(log) < 0 else (low, k)
    return k, math.exp(top + math.log(math.fsum(math.exp(k * x) for x in log) / len(log)) / k)


def slow_openmax(training, label, logits, tail, alpha, shift, distance):
    """The logits (N, C + 1) of OpenMax, the last for unknown, sample by sample."""
    classes = len(training[0])
    laws = []
    for c in range(classes):
        own = [v for v, y in zip(training, label, strict=True) if y == c]
        kept = [v for v in own if max(range(classes), key=v.__getitem__) == c] or own
        mean = [math.fsum(column) / len(kept) for column in zip(*kept, strict=True)]
        largest = sorted(slow_distance(v, mean, distance) for v in kept)[-tail:]
        laws.append((mean, largest[0], *slow_weibull([d + shift - largest[0] for d in largest])))
    result = []
    for v in logits:
        hat, unknown = list(v), 0.0
        for rank, c in enumerate(sorted(range(classes), key=lambda c: -v[c])[:alpha], start=1):
            mean, offset, shape, scale = laws[c]
            outlier = weibull_probability(slow_distance(v, mean, distance), offset, shift, shape, scale)
            weight = (alpha + 1 - rank) / alpha * outlier
            hat[c] = v[c] * (1 - weight)
            unknown += v[c] * weight
        result.append([*hat, unknown])
    return result


@pytest.mark.parametrize(
    ("tail", "alpha", "shift", "distance"),
    [(20, 3, 10000.0, "euclidean"), (5, 2, 1.0, "euclidean"), (20, 3, 1.0, "cosine"), (1000, 1, 100.0, "eucos")],
)
def test_openmax_is_what_plain_python_computes(tail, alpha, shift, distance):
    (training, *_), label = random_output(200, classes=5, dtype=torch.float64)
    training[label == 4, 4] -= 20  # a class that is never right
    logits = random_output(60, classes=5, seed=1, dtype=torch.float64)[0].logits * torch.linspace(0.2, 3, 60)[:, None]
    model = OpenMax.fit(Output(training), label, tail=tail, alpha=alpha, shift=shift, distance=distance)
    expected = torch.tensor(
        slow_openmax(training.tolist(), label.tolist(), logits.tolist(), tail, alpha, shift, distance),
        dtype=torch.float64,
    )
    recalibrated = model.recalibrate(Output(logits))
    torch.testing.assert_close(recalibrated.logits, expected[:, :-1], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(recalibrated.unknown, expected[:, -1], rtol=1e-7, atol=1e-7)
    known = expected[:, :-1].amax(dim=1) >= expected[:, -1]
    assert (model(Output(logits)) >= 0).tolist() == known.tolist()
    assert 0 < known.sum() < 60


def test_openmax_by_default_is_the_reading_of_this_package():
    output, label = random_output(200)
    default, stated = (
        OpenMax.fit(output, label, **numbers)
        for numbers in ({}, {"tail": 20, "alpha": 3, "shift": 10000.0, "distance": "euclidean"})
    )
    assert torch.equal(default(output), stated(output))
    two_classes, label = random_output(20, classes=2)
    assert int(OpenMax.fit(two_classes, label).alpha) == 2


def test_openmax_fits_classes_of_one_sample():
    output = Output(torch.eye(3) * 5)
    model = OpenMax.fit(output, torch.arange(3))
    assert torch.equal(model.means, torch.eye(3, dtype=torch.float64) * 5)
    # At the mean itself w is 1 − 1/e, which leaves 5/e of the logit; farther off it is 1, which leaves nothing.
    near, far = model.recalibrate(Output(torch.tensor([[5.0, 0, 0], [6.0, 0, 0]]))).logits[:, 0].tolist()
    assert near == pytest.approx(5 / math.e)
    assert far == 0


@pytest.mark.parametrize("k", [1, 7, 50, 1000])
@pytest.mark.parametrize("chunk", [2**23, 100])
def test_nearest_is_what_brute_force_finds(k, chunk, monkeypatch):
    monkeypatch.setattr(fitting, "CHUNK", chunk)
    (training, label), (output, _) = random_output(90), random_output(31, seed=1)
    unit = [
        value.numpy().astype(np.float64) / np.linalg.norm(value.numpy().astype(np.float64), axis=1, keepdims=True)
        for value in (output.features, training.features)
    ]
    distance = np.sort(np.linalg.norm(unit[0][:, None] - unit[1][None], axis=2), axis=1)
    model = Nearest.fit(training, label, k=k)
    assert int(model.k) == min(k, 90)
    confidence = model(output)
    np.testing.assert_allclose(confidence.numpy(), -distance[:, min(k, 90) - 1], rtol=1e-12)


def test_nearest_has_fifty_neighbours_by_default_and_no_distance_to_itself():
    output, label = random_output(60)
    assert torch.equal(Nearest.fit(output, label)(output), Nearest.fit(output, label, k=50)(output))
    assert Nearest.fit(output, label, k=1)(output).tolist() == [0.0] * 60


def test_nearest_takes_features_of_zero():
    # The distance of (1, 0) to zero is 1, and to (3, 4) at length 1 less, to (1, 4) more.
    training = Output(torch.zeros(3, 1), features=torch.tensor([[0.0, 0], [3, 4], [1, 4]]))
    model = Nearest.fit(training, torch.zeros(3, dtype=torch.int64), k=2)
    query = Output(torch.zeros(2, 1), features=torch.tensor([[9.0, 0], [0, 0]]))
    assert model(query).tolist() == pytest.approx([-1, -1])


def test_nearest_does_not_change_with_what_it_was_fitted_on():
    output, label = random_output(20)
    model = Nearest.fit(output, label, k=3)
    before = model(output)
    query = output.map(torch.clone)
    output.features.zero_()
    assert torch.equal(model(query), before)


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize("chunk", [2**23, 30])
def test_mahalanobis_is_what_numpy_computes(ridge, chunk, monkeypatch):
    monkeypatch.setattr(fitting, "CHUNK", chunk)
    (training, label), (output, _) = random_output(80), random_output(23, seed=1)
    features, query, y = training.features.double().numpy(), output.features.double().numpy(), label.numpy()
    means = np.stack([features[y == c].mean(axis=0) for c in range(4)])
    covariance = np.cov((features - means[y]).T, bias=True)
    covariance += ridge * np.trace(covariance) / 6 * np.eye(6)
    rest = query[:, None] - means[None]
    distance = np.einsum("ncf,fg,ncg->nc", rest, np.linalg.inv(covariance), rest)
    confidence = Mahalanobis.fit(training, label, ridge=ridge)(output)
    np.testing.assert_allclose(confidence.numpy(), -distance.min(axis=1), rtol=1e-10)


def test_mahalanobis_does_not_change_with_a_linear_map():
    (training, label), (output, _) = random_output(80), random_output(23, seed=1)
    matrix = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moved = [part._replace(features=1e3 * part.features.double() @ matrix + 5) for part in (training, output)]
    expected = Mahalanobis.fit(training, label, ridge=0)(output)
    torch.testing.assert_close(Mahalanobis.fit(moved[0], label, ridge=0)(moved[1]), expected, rtol=1e-9, atol=0)


def test_mahalanobis_takes_more_features_than_samples():
    training, label = random_output(12, width=40)
    confidence = Mahalanobis.fit(training, label)
    assert bool((confidence(training) > confidence(random_output(12, width=40, seed=1)[0]).max()).all())


@pytest.mark.parametrize("kind", FITTED)
def test_a_file_gives_the_same_values_to_the_bit(kind):
    (training, label), (output, _) = random_output(70, width=33), random_output(40, width=33, seed=1)
    model = kind.fit(training, label)
    read = load(save(model.tensors))
    again = kind.from_tensors(read)
    for tensor in read.values():
        tensor.zero_()
    assert torch.equal(again(output), model(output))
    assert again.tensors.keys() == model.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in model.tensors.items())
    assert all(again.tensors[name].dtype == tensor.dtype for name, tensor in model.tensors.items())


@pytest.mark.parametrize("kind", FITTED)
def test_a_value_does_not_depend_on_the_rest_of_the_batch(kind):
    (training, label), (output, _) = random_output(70), random_output(40, seed=1)
    model = kind.fit(training, label)
    together = model(output)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([model(output.map(lambda part, i=i: part[i : i + 1])) for i in range(40)])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model(output.map(lambda part: part[order])), together[order], rtol=1e-12, atol=1e-12)
    assert model(output.map(lambda part: part[:0])).shape == (0,)


@pytest.mark.parametrize("kind", FITTED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_values_are_float64_and_large_for_known_samples(kind, dtype):
    training, label = random_output(200, dtype=dtype)
    output = random_output(50, dtype=dtype)[0]
    far = Output(output.logits.flip(1) * -9, features=output.features * -9)
    training.logits.requires_grad_()
    model = kind.fit(training, label)
    value = model(output._replace(features=output.features.clone().requires_grad_()))
    assert value.shape == (50,)
    assert value.dtype == torch.float64
    assert not value.requires_grad
    assert not any(tensor.requires_grad for tensor in model.tensors.values())
    assert value.mean() > model(far).mean()


@pytest.mark.parametrize("kind", FITTED)
def test_arrays_serve_as_well_as_tensors(kind):
    output, label = random_output(70)
    array = Output(output.logits.numpy(), features=output.features.numpy())
    assert torch.equal(kind.fit(array, label.numpy())(array), kind.fit(output, label)(output))


def test_a_fitted_score_is_an_immutable_value():
    model = OpenMax.fit(*random_output(20))
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.shift = torch.tensor(1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FITTED)
def test_the_gpu_computes_the_same(kind):
    (training, label), (output, _) = random_output(70, width=33), random_output(40, width=33, seed=1)
    model = kind.fit(training, label)
    on_gpu = kind.fit(training.map(torch.Tensor.cuda), label.cuda())
    assert all(tensor.is_cuda for tensor in on_gpu.tensors.values())
    for value in (on_gpu(output.map(torch.Tensor.cuda)), model(output.map(torch.Tensor.cuda))):
        assert value.is_cuda
        torch.testing.assert_close(value.cpu(), model(output), rtol=1e-9, atol=1e-9)


def refused(message, function, *arguments, **numbers):
    with pytest.raises(MedicError, match=message) as error:
        function(*arguments, **numbers)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", FITTED)
def test_training_outputs_that_nothing_can_be_fitted_on_are_refused(kind):
    output, label = random_output(20)
    refused("no samples", kind.fit, output.map(lambda part: part[:0]), label[:0])
    refused("label 4 is not one of the 4 known classes, 0 to 3", kind.fit, output, label.where(label != 2, 4))
    refused("label -1 is not one of the 4", kind.fit, output, label.where(label != 2, -1))
    refused(r"logits \(20,\), label \(19,\)", kind.fit, output, label[1:])
    refused("integers.*torch.float32", kind.fit, output, label.float())
    output.logits[[3, 5], 1] = torch.tensor([torch.nan, -torch.inf])
    refused("the logits of 2 of 20 samples contain NaN or infinity", kind.fit, output, label)


@pytest.mark.parametrize("kind", [OpenMax, Mahalanobis])
def test_a_class_without_a_sample_is_named(kind):
    output, label = random_output(20)
    refused("no training samples for class 2; fit on samples of all 4", kind.fit, output, label.where(label != 2, 1))
    refused("no training samples for class 1, 2, 3;", kind.fit, output, torch.zeros_like(label))


@pytest.mark.parametrize("kind", [Nearest, Mahalanobis])
def test_features_that_do_not_serve_are_refused(kind):
    output, label = random_output(20)
    model = kind.fit(output, label)
    nan = output.features.index_fill(0, torch.tensor([4, 7]), torch.nan)
    for features, message in (
        (None, "outputs with features.* the score cls, max-logit or energy"),
        (nan, "the features of 2 of 20 samples contain NaN"),
        (output.features[1:], r"20 rows of logits, got \(19, 6\)"),
        (output.features[:, :0], r"got \(20, 0\)"),
        (output.features[0], r"got \(6,\)"),
    ):
        refused(message, kind.fit, output._replace(features=features), label)
        refused(message, model, output._replace(features=features))
    refused("outputs with features", model, output.logits)
    refused("5 features, but the score was fitted on 6", model, output._replace(features=nan[:, 1:]))


def test_logits_that_do_not_serve_are_refused():
    output, label = random_output(20)
    model = OpenMax.fit(output, label)
    refused("3 classes, but the score was fitted on 4", model, output.logits[:, 1:])
    refused("the logits of 20 of 20 samples contain NaN", model, output.logits * torch.nan)
    refused(r"got \(4,\)", model, output.logits[0])


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (OpenMax, {"tail": 0}, "tail must be a whole number of at least 1, got 0"),
        (OpenMax, {"alpha": 1.5}, "alpha must be a whole number of at least 1, got 1.5"),
        (OpenMax, {"shift": 0.0}, "shift of OpenMax must be .* above 0, got 0"),
        (OpenMax, {"shift": math.nan}, "shift of OpenMax .* got nan"),
        (OpenMax, {"distance": "euclid"}, "unknown distance 'euclid': did you mean 'euclidean'"),
        (Nearest, {"k": 0}, "k must be a whole number of at least 1, got 0"),
        (Mahalanobis, {"ridge": -1e-6}, "ridge of Mahalanobis .* got -1e-06"),
        (Mahalanobis, {"ridge": math.inf}, "ridge of Mahalanobis .* got inf"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(kind, numbers, message):
    refused(message, kind.fit, *random_output(20), **numbers)


def test_a_singular_covariance_is_refused():
    output, label = random_output(12, width=40)
    refused("40 features of 12 samples is singular.* or use a larger ridge", Mahalanobis.fit, output, label, ridge=0)
    # Rounding makes some of these seem regular.
    for seed in range(20):
        output, label = random_output(12, width=3, seed=seed, dtype=torch.float64)
        output.features[:, 2] = output.features[:, 0] + output.features[:, 1]
        refused("3 features of 12 samples is singular", Mahalanobis.fit, output, label, ridge=0)
    one_each = output.map(lambda part: part[:4])
    refused("singular with ridge 0.5; fit on more samples per class$", Mahalanobis.fit, one_each, label[:4], ridge=0.5)
