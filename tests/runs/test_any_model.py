"""`medic.evaluate`: any model, any data, the metrics of a run."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import medic
from medic.errors import MedicError
from medic.openset import SCORES
from tests.messages import naming

torch.manual_seed(0)
X, Y = torch.randn(40, 5), torch.arange(40) % 5
MODEL = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
HELD_OUT = torch.randn(20, 5), torch.arange(20) % 4


def as_run(run):
    """Return the recorded outputs of a run as data, with a model that looks them up."""

    class Recorded(nn.Module):
        def forward(self, x):
            return medic.Output(x[:, 0], x[:, 1:3])

    def data(split):
        output, label, _ = run.outputs(split)
        return torch.cat([output.logits[:, None], output.ova], dim=1), label

    return Recorded(), data("target"), data("validation")


def test_the_metrics_are_those_of_a_run(folder, tmp_path):
    run = medic.train(**{**folder, "method": "medic++"}, output=tmp_path, quiet=True)
    model, target, validation = as_run(run)
    metrics = medic.evaluate(model, target, validation=validation)
    assert metrics.keys() == run.metrics.keys()
    full = {"fs_auroc", "fs_fpr95"}  # the run knows unknown images of the sources too
    assert {key: metrics[key] for key in metrics.keys() - full} == pytest.approx(
        {key: value for key, value in run.metrics.items() if key not in full}
    )
    without = medic.evaluate(model, target)
    at_threshold = {"threshold", "threshold_rule", "hscore", "acc_k", "acc_u"}
    assert metrics.keys() - without.keys() == {*at_threshold, "domain_auroc", *full}
    assert without.items() <= metrics.items()


def test_every_form_of_data_is_the_same():
    expected = medic.evaluate(MODEL, (X, Y), validation=HELD_OUT)
    dataset = TensorDataset(X, Y, torch.zeros(40))
    for data in (
        DataLoader(dataset, batch_size=7),
        dataset,
        [X, Y],
        [(X[:9], Y[:9]), (X[9:], Y[9:].numpy())],
        ((x[None], [int(y)]) for x, y in zip(X, Y, strict=True)),
        (X, Y.where(Y < 4, -1)),
        (X, Y.int()),
    ):
        assert medic.evaluate(MODEL, data, validation=HELD_OUT) == pytest.approx(expected)
    assert expected["score"] == "cls"
    assert {"acc", "oscr", "auroc", "hscore", "threshold"} <= expected.keys()


def test_the_model_is_evaluated_in_evaluation_mode_and_put_back():
    MODEL.train()
    MODEL[1].eval()
    first, second = (medic.evaluate(MODEL, (X, Y)) for _ in range(2))
    assert first == second  # no dropout
    assert [module.training for module in MODEL] == [True, False, True, True]
    with torch.no_grad():
        logits = MODEL.eval()(X)
    known = Y < 4
    assert first["acc"] == pytest.approx((logits.argmax(1) == Y)[known].float().mean().item())
    assert all(parameter.grad is None for parameter in MODEL.parameters())


def test_arrays_of_numpy_are_taken():
    expected = medic.evaluate(MODEL, (X, Y))
    assert medic.evaluate(MODEL, (X.numpy(), Y.numpy())) == medic.evaluate(MODEL, [(X.numpy(), Y)]) == expected


def test_pairs_and_objects_with_logits():
    class Pair(nn.Module):
        def forward(self, x):
            return x[:, :4], torch.stack([x[:, :4], -x[:, :4]], dim=1)

    class Answer:
        def __init__(self, logits):
            self.logits = logits

    class Transformer(nn.Module):
        def forward(self, x):
            return Answer(MODEL(x))

    assert medic.evaluate(Pair(), (X, Y))["score"] == "bcls"
    MODEL.eval()
    assert medic.evaluate(Transformer(), (X, Y)) == medic.evaluate(MODEL, (X, Y))


def test_thresholds_and_scores():
    fixed = medic.evaluate(MODEL, (X, Y), threshold="fixed")
    assert (fixed["threshold_rule"], fixed["threshold"]) == ("fixed", 0.0)
    assert medic.evaluate(MODEL, (X, Y), threshold=-100.0, score="energy")["acc_u"] == 0
    half = medic.evaluate(MODEL, (X, Y), threshold=0.5)
    assert medic.evaluate(MODEL, (X, Y), threshold=np.float32(0.5)) == half
    assert medic.evaluate(MODEL, (X, Y), threshold=np.int64(1)) == medic.evaluate(MODEL, (X, Y), threshold=1)
    oracle = medic.evaluate(MODEL, (X, Y), threshold="oracle-10")
    assert oracle["hscore"] == oracle["hscore/oracle-10"]
    with torch.no_grad():
        fitted = SCORES["openmax"].fit(MODEL.eval()(HELD_OUT[0]), HELD_OUT[1])
    assert medic.evaluate(MODEL, (X, Y), score=fitted)["threshold_rule"] == "hard"
    assert medic.evaluate(MODEL, (X, Y % 4)).keys() == {"acc", "ece/cls", "brier/cls", "nll/cls"}


@pytest.mark.parametrize(("model", "data", "options", "message"), [
    (lambda x: x, (X, Y), {}, "function Module"),
    (MODEL, X, {}, "data Tensor DataLoader"),
    (MODEL, {"x": X}, {}, "data dict"),
    (MODEL, 3, {}, "data int"),
    (MODEL, [], {}, "data empty"),
    (MODEL, [{"image": X, "label": Y}], {}, "dict (inputs, labels)"),
    (MODEL, [(X.tolist(), Y)], {}, "list tensor"),
    (MODEL, (X, Y.float()), {}, "float32 whole number"),
    (MODEL, (X, Y[:5]), {}, "(5,) 40"),
    (MODEL, (X, nn.functional.one_hot(Y)), {}, "(40, 5) (40,)"),
    (MODEL, [(X, ["cat"] * 40)], {}, "labels list"),
    (MODEL, (X, Y - 3), {}, "label -3"),
    (MODEL, (X, Y * 0 - 1), {}, "no known samples"),
    (MODEL, (X[:, :3], Y), {}, "(40, 3) float32"),
    (MODEL, ((255 * X).byte(), Y), {}, "uint8"),
    (nn.Flatten(0), (X, Y), {}, "(200,) 40"),
    (MODEL, (X, Y), {"validation": (X, Y)}, "8 40 validation"),
    (MODEL, (X, Y), {"threshold": "source"}, "'source' validation="),
    (MODEL, (X, Y), {"threshold": "sorce"}, "'source'"),
    (MODEL, (X, Y), {"threshold": True}, "threshold True number rule source"),
    (MODEL, (X, Y), {"threshold": np.True_}, "threshold True number rule source"),
    (MODEL, (X, Y), {"score": "msp"}, "'msp'"),
    (MODEL, (X, Y), {"score": "knn"}, "'knn' fit"),
    (MODEL, (X, Y), {"score": "bcls"}, "one-vs-all"),
    (MODEL, (X * torch.nan, Y), {}, "NaN"),
])  # fmt: skip
def test_mistakes_are_a_sentence(model, data, options, message):
    with pytest.raises(MedicError, match=naming(message)):
        medic.evaluate(model, data, **options)
