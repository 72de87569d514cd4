"""Comparisons of samples without labels: estimates in closed form, and the rate of false alarms."""

import pytest
import torch
from scipy.stats import ks_2samp

from medic.errors import MedicError
from medic.openset import Reference, mmd_test
from medic.openset.shift import FEWEST


def draw(count: int, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return confidences (N,) and features (N, 50) of samples, which a shift moves."""
    generator = torch.Generator().manual_seed(seed)
    confidence = 3 - 2 * shift + torch.randn(count, generator=generator, dtype=torch.float64)
    features = torch.randn(count, 50, generator=generator) + shift
    return confidence, features


def make_reference(count: int = 400, correct: float = 0.9) -> Reference:
    confidence, features = draw(count, seed=100)
    return Reference.fit(confidence, torch.arange(count) < correct * count, features, torch.zeros(count))


def test_no_alarm_on_samples_like_the_held_out_ones() -> None:
    reference = make_reference()
    shifts = [reference.assess(*draw(50, seed), threshold=2.0) for seed in range(60)]
    for level in (0.05, 0.2):
        # Three standard errors above the level; Bonferroni makes the test a little too careful.
        assert sum(shift.p_value < level for shift in shifts) / 60 < level + 3 * (level / 60) ** 0.5
    for part in ("score_p", "feature_p"):
        assert 15 < sum(getattr(shift, part) < 0.5 for shift in shifts) < 45


def test_an_alarm_on_a_shift() -> None:
    reference = make_reference()
    assert all(reference.assess(*draw(50, seed, shift=1.0), threshold=2.0).p_value < 0.01 for seed in range(20))


def test_samples_of_one_source_domain_raise_no_alarm() -> None:
    """They differ from all domains together, but not from their own."""
    domains = [draw(200, seed, shift) for seed, shift in ((10, 0.0), (11, 1.0))]
    confidence, features = (torch.cat(parts) for parts in zip(*domains, strict=True))
    reference = Reference.fit(confidence, confidence > 0, features, torch.arange(400) // 200)
    for shift in (0.0, 1.0):
        assessed = reference.assess(*draw(60, 12, shift), threshold=0.0)
        assert assessed.p_value > 0.01
        assert (assessed.tested, assessed.compared) == (100, 200)  # one of the domains
    assert reference.assess(*draw(60, 12, 3.0), threshold=0.0).p_value < 0.01


def few(seed: int, counts: tuple[int, ...]) -> Reference:
    """Make a reference from three domains that differ."""
    domains = [draw(count, seed + number, 2.0 * number) for number, count in enumerate(counts)]
    confidence, features = (torch.cat(parts) for parts in zip(*domains, strict=True))
    domain = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return Reference.fit(confidence, confidence > 0, features, domain)


def test_domains_with_few_held_out_samples() -> None:
    """Half of 32 samples are enough for a separate test. Half of 8 are not."""
    alarms = 0
    for seed in range(0, 100, 10):
        reference = few(seed, (32, 32, 32))
        shifts = [reference.assess(*draw(100, seed + 5, 2.0 * number), threshold=0.0) for number in range(3)]
        assert {shift.small_domains for shift in shifts} == {0}
        alarms += sum(shift.p_value < 0.01 for shift in shifts)
        assert reference.assess(*draw(100, seed + 6, 8.0), threshold=0.0).p_value < 0.01
    assert alarms <= 2  # of 30
    assert few(0, (32, 32, 8)).assess(*draw(60, 20), threshold=0.0).small_domains == 1
    assert few(0, (40, 40, 20)).domain.bincount().tolist() == [20, 20, 10]  # half of each


def test_infinite_confidences_and_many_samples() -> None:
    confidence, features = draw(400, seed=0)
    confidence[:50] = torch.inf
    reference = Reference.fit(confidence, confidence > 0, features, torch.zeros(400))
    again = Reference.from_tensors(reference.tensors, 50)
    new, of_new = draw(20_000, seed=1)
    new[:2500] = torch.inf
    assert again.assess(new, of_new, threshold=0.0).samples == 20_000


def test_each_test_notices_its_own_shift() -> None:
    reference, (confidence, features) = make_reference(), draw(100, seed=1)
    moved_scores = reference.assess(confidence - 2, features, threshold=2.0)
    moved_features = reference.assess(confidence, features + 1, threshold=2.0)
    assert moved_scores.score_p < 1e-6 < 0.01 < moved_scores.feature_p
    assert moved_features.feature_p < 0.01 < moved_features.score_p
    assert moved_scores.p_value == 2 * moved_scores.score_p
    assert moved_scores.score_p == pytest.approx(ks_2samp(reference.confidence, confidence - 2).pvalue)


def test_as_many_held_out_samples_reach_the_level_as_are_correct() -> None:
    confidence = torch.arange(40.0)
    correct = torch.arange(40) % 4 > 0
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    reference = Reference.fit(confidence, correct, features, torch.zeros(40))
    fitted = torch.randperm(40, generator=torch.Generator().manual_seed(0))[::2]
    share = (confidence[fitted] >= reference.level).double().mean()
    assert share == correct[fitted].double().mean()
    assert sorted([*confidence[fitted].tolist(), *reference.confidence.tolist()]) == confidence.tolist()
    shift = reference.assess(torch.linspace(-100, 100, 21), torch.zeros(21, 5), threshold=10.0)
    assert shift.accuracy == float((torch.linspace(-100, 100, 21) >= reference.level).double().mean())
    usual = float((reference.confidence < 10).double().mean())
    assert shift.source_rejected == usual
    assert shift.rejected == pytest.approx(11 / 21)
    assert shift.unknown == pytest.approx(max(0, (11 / 21 - usual) / (1 - usual)))


def test_where_nothing_is_correct_nothing_will_be() -> None:
    confidence, features = draw(100, 0)
    reference = Reference.fit(confidence, torch.zeros(100), features, torch.zeros(100))
    assert reference.assess(*draw(50, 1), threshold=0.0).accuracy == 0.0


def test_the_discrepancy_test_in_closed_form() -> None:
    """Of two samples far apart, only orders that keep them apart have as large a discrepancy."""
    left, right = torch.zeros(3, 1, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    # 2 of the 20 ways to divide six points keep them apart.
    assert mmd_test(left + torch.arange(3)[:, None] * 1e-3, right, permutations=4000) == pytest.approx(0.1, abs=0.02)
    assert mmd_test(left, left.clone()) == 1.0


def test_a_reference_is_bounded_and_comes_back_from_its_tensors() -> None:
    confidence, features = draw(3000, seed=3)
    reference = Reference.fit(confidence, confidence > 2, features, torch.arange(3000) % 3)
    assert reference.confidence.shape == (512,)
    assert reference.projected.shape == (512, 32)
    again = Reference.from_tensors(reference.tensors, 50)
    new = draw(60, seed=4)
    assert again.assess(*new, threshold=1.0) == reference.assess(*new, threshold=1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("level"),
        lambda tensors: tensors.update(more=torch.zeros(1)),
        lambda tensors: tensors.update(level=torch.zeros(1)),
        lambda tensors: tensors.update(mean=torch.zeros(49)),
        lambda tensors: tensors.update(basis=tensors["basis"].T.contiguous()),
        lambda tensors: tensors.update(projected=tensors["projected"][1:]),
        lambda tensors: tensors.update(confidence=tensors["confidence"].long()),
        lambda tensors: tensors.update(mean=torch.full((50,), torch.nan)),
        lambda tensors: tensors.update(level=torch.tensor(torch.nan, dtype=torch.float64)),
        lambda tensors: tensors.update(confidence=tensors["confidence"].bfloat16()),
        lambda tensors: tensors.update(domain=tensors["domain"].float()),
        lambda tensors: tensors.update(confidence=torch.zeros(0), projected=torch.zeros(0, 32)),
    ],
)
def test_tensors_that_are_not_those_of_a_reference(change) -> None:
    tensors = make_reference().tensors
    change(tensors)
    with pytest.raises(ValueError, match="reference"):
        Reference.from_tensors(tensors, 50)


def test_too_few_samples() -> None:
    confidence, features = draw(2 * FEWEST - 1, seed=0)
    with pytest.raises(MedicError, match=f"held-out samples, got {2 * FEWEST - 1}"):
        Reference.fit(confidence, confidence > 0, features, torch.zeros(2 * FEWEST - 1))
    with pytest.raises(MedicError, match=f"images, got {FEWEST - 1}"):
        make_reference().assess(*draw(FEWEST - 1, 0), threshold=0.0)
