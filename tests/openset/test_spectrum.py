import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from medic.openset import Place, Spectrum, aupr, rank_groups

SIZES = {"source known": 300, "source unknown": 80, "target known": 200, "target unknown": 120}


def draw_groups(seed: int) -> dict[str, torch.Tensor]:
    """Return confidences of four groups, rounded so that some are equal."""
    generator = torch.Generator().manual_seed(seed)
    means = {"source known": 2.0, "source unknown": 0.5, "target known": 1.0, "target unknown": 0.0}
    return {
        name: (torch.randn(size, generator=generator, dtype=torch.float64) + means[name]).round(decimals=1)
        for name, size in SIZES.items()
    }


def of_openood(known: torch.Tensor, unknown: torch.Tensor) -> dict[str, float]:
    """Compute OpenOOD's AUROC, FPR95, AUPR-in and AUPR-out: unknown samples are the positives of the first two."""
    confidence = torch.cat([known, unknown]).numpy()
    is_unknown = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))]).numpy()
    fpr, tpr, _ = roc_curve(is_unknown, -confidence)
    precision_in, recall_in, _ = precision_recall_curve(1 - is_unknown, confidence)
    precision_out, recall_out, _ = precision_recall_curve(is_unknown, -confidence)
    return {
        "auroc": roc_auc_score(is_unknown, -confidence),
        "fpr95": fpr[(tpr >= 0.95).argmax()],
        "aupr_in": auc(recall_in, precision_in),
        "aupr_out": auc(recall_out, precision_out),
    }


@pytest.mark.parametrize("seed", range(3))
def test_full_spectrum_joins_the_known_samples_of_both_places_as_openood_does(seed: int) -> None:
    groups = draw_groups(seed)
    spectrum = Spectrum(
        Place(groups["source known"], groups["source unknown"]), Place(groups["target known"], groups["target unknown"])
    )
    known = torch.cat([groups["source known"], groups["target known"]])
    unknown = torch.cat([groups["source unknown"], groups["target unknown"]])
    expected, metrics = of_openood(known, unknown), spectrum.metrics()
    assert metrics["fs_auroc"] == pytest.approx(expected["auroc"], abs=1e-12)
    assert metrics["fs_fpr95"] == pytest.approx(expected["fpr95"], abs=1e-12)
    ranking = rank_groups(known, unknown)
    for positive, key in (("known", "aupr_in"), ("unknown", "aupr_out")):
        assert aupr(ranking, positive=positive) == pytest.approx(expected[key], abs=1e-12)


def test_domain_sensitivity_is_the_auroc_of_known_samples_of_both_places() -> None:
    groups = draw_groups(0)
    known = groups["source known"], groups["target known"]
    nothing = torch.empty(0)
    spectrum = Spectrum(Place(known[0], nothing), Place(known[1], nothing))
    pairs = known[0][:, None] - known[1][None]
    expected = float((pairs > 0).double().mean() + 0.5 * (pairs == 0).double().mean())
    assert spectrum.metrics() == {"domain_auroc": pytest.approx(expected, abs=1e-12)}
    assert Spectrum(Place(known[0], nothing), Place(known[0], nothing)).domain_auroc() == 0.5


def test_a_place_is_divided_by_a_mask() -> None:
    place = Place.of(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    assert place.known.tolist() == [1.0, 3.0]
    assert place.unknown.tolist() == [2.0]
