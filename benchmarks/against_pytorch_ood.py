"""Compare the scores of one run with those of pytorch-ood: AUROC of known against unknown images of the target.

    medic train --dataset pacs --root DIR --backbone tf_efficientnet_lite0 --weights lite0.safetensors \
        --image-size 160 --tune head --method erm --target sketch --save-features --output runs
    python -m benchmarks.against_pytorch_ood RUN

Both are fitted on the same features and logits of the run, in double precision.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor, nn

from medic.models import _torchvision
from medic.openset import SCORES, rank_groups
from medic.openset.linear import principal_dimensions
from medic.reports.terminal import print_rows
from medic.runs.run import Run
from medic.utils.outputs import Output

_torchvision.ensure()

from pytorch_ood import detector  # noqa: E402, after torchvision works

Theirs = Callable[[nn.Linear, Output, Tensor, Output], Tensor]
"""Fits a detector on outputs with labels, and returns its outlier scores for other outputs, of shape (N,)."""


def _shaped(make: Callable[..., object], fits: bool = False) -> Theirs:
    """Return a detector that changes feature maps before the head."""

    def score(head: nn.Linear, train: Output, label: Tensor, other: Output) -> Tensor:
        found = make(None, lambda maps: head(maps.flatten(1)))
        if fits:
            found.fit_feature_maps(train.features[:, :, None, None], label)
        return found.predict_feature_maps(other.features[:, :, None, None])

    return score


def _fitted_vim(head: nn.Linear, train: Output, label: Tensor) -> detector.ViM:
    found = detector.ViM(None, principal_dimensions(train.features), head.weight, head.bias)
    return found.fit_features(train.features, label)


def _residual(head: nn.Linear, train: Output, label: Tensor, other: Output) -> Tensor:
    found = _fitted_vim(head, train, label)
    return ((other.features - found.u) @ found.principal_subspace).norm(dim=1)


THEIRS: dict[str, Theirs] = {
    "react": _shaped(detector.ReAct, fits=True),
    "ash": _shaped(detector.ASH),
    "scale": _shaped(detector.SCALE),
    "vim": lambda head, train, label, other: _fitted_vim(head, train, label).predict_features(other.features),
    "residual": _residual,
    # Their covariances are sums over the N images, not means.
    "rmds": lambda head, train, label, other: (
        len(label) * detector.RMD(None).fit_features(train.features, label).predict_features(other.features)
    ),
    "nnguide": lambda head, train, label, other: (
        detector.NNGuide(None, head, k=10).fit_features(train.features, label).predict_features(other.features)
    ),
    "fdbd": lambda head, train, label, other: (
        detector.fDBD(None, head).fit_features(train.features).predict_features(other.features)
    ),
    "kl-matching": lambda head, train, label, other: (
        detector.KLMatching(None).fit_logits(train.logits, label).predict_logits(other.logits)
    ),
    "gen": lambda head, train, label, other: detector.GEN(None).predict_logits(other.logits),
    "temperature": lambda head, train, label, other: torch.special.logit(
        detector.TemperatureScaling(None).fit_logits(train.logits, label).predict_logits(other.logits).neg()
    ).neg(),
}
"""The detector of pytorch-ood for each score that medic shares with it."""


def rows_of(run: Run) -> list[dict[str, str]]:
    """Return a row for every score."""
    outputs = {split: run.outputs(split) for split in ("train", "validation", "target")}
    target = outputs["target"]
    linear = run.predictor.network.linear_head()
    head = nn.Linear(*linear.weight.T.shape).double()
    head.load_state_dict({"weight": linear.weight, "bias": linear.bias})
    rows = []
    for name, theirs in THEIRS.items():
        seen = outputs[SCORES[name].split]
        ours = SCORES[name].fit(seen.output, seen.label, linear)(target.output)
        with in_double_precision():
            other = -theirs(head, _double(seen.output), seen.label, _double(target.output)).detach()
        aurocs = (rank_groups(values[target.label >= 0], values[target.label < 0]).auroc() for values in (ours, other))
        mine, others = (f"{100 * value:.4f}" for value in aurocs)
        rows.append({"score": name, "medic": mine, "pytorch-ood": others})
    return rows


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Let pytorch-ood compute in double precision, as medic does. It converts to single precision otherwise."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(usual)


def _double(output: Output) -> Output:
    assert output.features is not None
    return Output(output.logits.double(), features=output.features.double())


if __name__ == "__main__":
    print_rows(rows_of(Run(sys.argv[1])), numeric=["medic", "pytorch-ood"])
