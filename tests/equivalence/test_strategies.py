"""Closed forms of the strategies, in float64. The toy has L_1 = (θ-1)²/2 and L_2 = (θ+2)²/2, started at θ = 0."""

from dataclasses import replace

import pytest
import torch

from medic.errors import MedicError
from medic.strategies import Joint, MultiStep, Trajectories, TwoStep
from medic.tasks import Step, matched_pairs
from tests.equivalence.toys import Scalar, gradient, quadratic, step
from tests.messages import naming

L1, L2 = step((1, 1)), step((-2, 1))
EXACT = {"rel": 1e-12, "abs": 1e-12}


def approx(value: float):
    return pytest.approx(value, **EXACT)


def task(*centres: float) -> Step:
    """A step of one task, with a sample of curvature 1 for each centre."""
    return replace(step(*((centre, 1) for centre in centres)), sizes=(len(centres),))


class TestMldg:
    def test_domainbed_one_fresh_adam_step(self):
        """G_i = -1; θ' = 0.1, a sign step; G_j = 2.1; accumulated (G_i + β G_j) / D = 0.55."""
        model = Scalar()
        TwoStep(lr=0.1, inner="adam")(model, [L1, L2], quadratic)
        assert model.theta.grad.item() == pytest.approx(0.55, abs=1e-8)  # Adam's ε is 1e-8
        torch.optim.Adam(model.parameters(), lr=0.1).step()
        assert model.theta.item() == pytest.approx(-0.1, abs=1e-8)

    def test_domainbed_uses_one_pair_of_three_domains(self):
        """D = 3 with two for meta-testing: one pair, divided by D; the third domain is not used."""
        model = Scalar()
        TwoStep(lr=0.1, inner="adam", meta_test=2)(model, [L1, L2, step((50, 1))], quadratic)
        assert model.theta.grad.item() == pytest.approx((-1 + 2.1) / 3, abs=1e-8)

    def test_domainbed_cycles_meta_test_domains(self):
        """D = 3 with one for meta-testing: two pairs, each from θ."""
        model = Scalar()
        TwoStep(lr=0.1, inner="adam", meta_test=1)(model, [L1, L1, L2], quadratic)
        assert model.theta.grad.item() == pytest.approx(2 * (-1 + 2.1) / 3, abs=1e-8)

    def test_pairs_of_unequal_sizes_use_every_sample(self):
        """Pairs of means 2 and -2, 1 and -3: (-2 + 2.2) + (-1 + 3.1); cut to the shorter it would be 1.2."""
        steps = [task(1, 2, 3), task(1), task(-2), task(-1, -5)]
        assert gradient(TwoStep(lr=0.1, meta_test=2), steps) == approx(2.3)
        second = (-2 + 0.9 * 2.2) + (-1 + 0.9 * 3.1)
        assert gradient(TwoStep(lr=0.1, meta_test=2, second_order=True), steps) == approx(second)

    def test_orders(self):
        """F(θ) + β G(θ - α F'(θ)): second order -1 + (1 - 0.1) · 2.1 = 0.89, first order 1.1."""
        assert gradient(TwoStep(lr=0.1, second_order=True), [L1, L2]) == approx(0.89)
        assert gradient(TwoStep(lr=0.1), [L1, L2]) == approx(1.1)

    def test_beta_weighs_meta_test(self):
        assert gradient(TwoStep(lr=0.1, beta=2.0), [L1, L2]) == approx(-1 + 2 * 2.1)
        assert gradient(TwoStep(lr=0.1, beta=2.0, second_order=True), [L1, L2]) == approx(-1 + 2 * 0.9 * 2.1)


class TestFish:
    def test_inner_sgd(self):
        """0 → 0.1 → -0.11; half the way is -0.055."""
        inner = MultiStep(lr=0.1, inner=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        assert self.half_way(inner) == approx(-0.055)

    def test_inner_adam_with_fresh_state(self):
        """0 → 0.1 → 0.0616049; half the way is 0.0308025."""
        assert self.half_way(MultiStep(lr=0.1, inner="adam")) == pytest.approx(0.0308025, abs=1e-7)

    def test_inner_adam_keeps_its_moments(self):
        """The second iteration starts from the moments of the first: compare with one Adam that is moved back."""
        strategy, model = MultiStep(lr=0.1, inner="adam"), Scalar()
        theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([theta], lr=0.1)
        for _ in range(3):
            model.zero_grad()
            strategy(model, [L1, L2], quadratic)
            torch.optim.SGD(model.parameters(), lr=0.5).step()
            start = theta.detach().clone()
            for centre in (1.0, -2.0):
                adam.zero_grad()
                ((theta - centre) ** 2 / 2).backward()
                adam.step()
            with torch.no_grad():
                theta.copy_(start + 0.5 * (theta - start))
            assert model.theta.item() == approx(theta.item())

    @staticmethod
    def half_way(strategy: MultiStep) -> float:
        model = Scalar()
        strategy(model, [L1, L2], quadratic)
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        return model.theta.item()


class TestMamlAndReptile:
    """α = 0.1, one task per step: θ 0 → 0.1 → -0.11."""

    def test_reptile_sums(self):
        assert gradient(MultiStep(lr=0.1), [L1, L2]) == approx(1.1)

    def test_to_second_order_the_steps_are_differentiated(self):
        """L_1'(0) + (1 - 0.1) · L_2'(0.1) = -1 + 1.89."""
        assert gradient(MultiStep(lr=0.1, second_order=True), [L1, L2]) == approx(0.89)

    def test_first_order_maml_keeps_the_last(self):
        """2.1, times t / m_n = 2."""
        assert gradient(MultiStep(lr=0.1, weights="last"), [L1, L2]) == approx(4.2)

    def test_exact_maml(self):
        """0.9 · 2.1 = 1.89, times t / m_n = 2."""
        assert gradient(MultiStep(lr=0.1, weights="last", second_order=True), [L1, L2]) == approx(2 * 1.89)

    def test_reptile_is_the_sum_in_the_other_order_too(self):
        """L_1 = (θ-1)²/2, L_2 = (θ+1)²/2: θ̂ = -0.01, so the sum is 0.1; in the other order -0.1."""
        plus, minus = step((1, 1)), step((-1, 1))
        assert gradient(MultiStep(lr=0.1), [plus, minus]) == approx(0.1)
        assert gradient(MultiStep(lr=0.1), [minus, plus]) == approx(-0.1)
        assert gradient(TwoStep(lr=0.1, second_order=True), [plus, minus]) == approx(-0.01)
        assert gradient(TwoStep(lr=0.1, second_order=True), [minus, plus]) == approx(0.01)


class TestMedic:
    """A = (θ-1)² as two tasks, B = 1.5 (θ+2)² as two tasks; α = 0.1: θ' = 0.2, B'(θ') = 6.6."""

    A, B = step((1, 1), (1, 1)), step((-2, 1.5), (-2, 1.5))

    def test_second_order(self):
        assert gradient(TwoStep(lr=0.1, second_order=True), [self.A, self.B]) == approx(-2 + 0.8 * 6.6)

    def test_first_order(self):
        assert gradient(TwoStep(lr=0.1), [self.A, self.B]) == approx(4.6)

    def test_first_order_equals_two_reptile_steps(self):
        assert gradient(MultiStep(lr=0.1), [self.A, self.B]) == approx(4.6)


class TestMedicPlusPlus:
    """Three steps of three tasks around 1, -2 and 3, α = 0.01: g = (-3, 6.09, -9.0927)."""

    steps = [step(*[(centre, 1)] * 3) for centre in (1, -2, 3)]  # noqa: RUF012

    def test_outer_gradient(self):
        assert gradient(MultiStep(lr=0.01), self.steps) == approx(-6.0027)

    def test_first_outer_step(self):
        """SGD of rate 2e-4 on the sum, which is 1.8e-3 on the mean: θ = 0.00120054."""
        model = Scalar()
        MultiStep(lr=0.01)(model, self.steps, quadratic)
        torch.optim.SGD(model.parameters(), lr=2e-4 * 9, momentum=0.9).step()
        assert model.theta.item() == approx(0.00120054)

    def test_momentum_and_decay_of_the_outer_sgd(self):
        """θ = 1, sums -6 then -5, rate 2e-4, momentum 0.9, decay 5e-4: 1.0011999, then 1.0032797."""
        theta = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        sgd = torch.optim.SGD([theta], lr=2e-4 * 9, momentum=0.9, weight_decay=5e-4 / 9)
        for total, expected in ((-6.0, 1.0011999), (-5.0, 1.0032797)):
            theta.grad = torch.tensor(total / 9, dtype=torch.float64)
            sgd.step()
            assert theta.item() == pytest.approx(expected, abs=1e-7)

    def test_matching_term_is_that_of_the_first_order_loop(self):
        """l_1 = (θ-1)²/2, l_2 = 3 (θ+2)²/2: g_2(θ_2) = 6 - α · 3 · (-1) = 6.03."""
        assert gradient(MultiStep(lr=0.01), [step((1, 1)), step((-2, 3))]) == approx(-1 + 6.03)

    def test_one_step_is_plain_sgd(self):
        everything = [step((1, 1), (-2, 1), (3, 1))]
        assert gradient(MultiStep(lr=0.01), everything) == approx(gradient(Joint(), everything))
        assert gradient(Joint(), everything) == approx(-1 + 2 - 3)

    def test_matched_pairs_of_nine_tasks(self):
        assert [matched_pairs(9, n).exact for n in (1, 2, 3, 9)] == [0, 20, 27, 36]

    def test_small_gradients_survive_float32(self):
        """A weight near 1 with gradients of 1e-6 and α = 0.01: recovering them from the weights loses all of it."""
        model = Scalar(1.0).float()
        tiny = [step((1 - 1e-6, 1)), step((1 - 1e-6, 1))]
        MultiStep(lr=0.01)(model, tiny, quadratic)
        assert model.theta.grad.item() == pytest.approx(1e-6, rel=0.05)


class TestArith:
    steps = TestMedicPlusPlus.steps

    def test_weights(self):
        assert MultiStep(weights="arithmetic").step_weights([3, 3, 3]) == [1.5, 1.0, 0.5]
        assert MultiStep(weights="arithmetic").step_weights([1, 1]) == [4 / 3, 2 / 3]

    def test_outer_gradient(self):
        """1.5 · (-3) + 6.09 + 0.5 · (-9.0927) = -2.95635, without the authors' further division by α."""
        assert gradient(MultiStep(lr=0.01, weights="arithmetic"), self.steps) == approx(-2.95635)
        assert gradient(MultiStep(lr=0.01, weights=(1.5, 1.0, 0.5)), self.steps) == approx(-2.95635)


class TestMvdg:
    def test_one_trajectory(self):
        """(θ - 1)²/2 from 0, two steps of a fresh Adam: φ = 0.002; an outer step of 0.05 goes to 1e-4."""
        model = Scalar()
        Trajectories(lr=1e-3, count=1, decay=0.0)(model, [L1, L1], quadratic)
        assert model.theta.grad.item() == pytest.approx(-0.002, rel=1e-3)
        torch.optim.SGD(model.parameters(), lr=0.05).step()
        assert model.theta.item() == pytest.approx(1e-4, rel=1e-3)

    def test_the_mean_of_where_trajectories_end(self):
        model = Scalar()
        Trajectories(lr=1e-3, count=2, decay=0.0)(model, [L1, step((-1, 1))], quadratic)
        assert model.theta.grad.item() == pytest.approx(0.0, abs=1e-12)
        assert model.theta.item() == 0

    def test_a_kept_adam_remembers_the_trajectory_before(self):
        """Gradients -1, then 1: moments 0.01/0.19 and 1, so that the second goes back by 1/19 of the rate alone."""
        model = Scalar()
        kept = Trajectories(lr=1e-3, count=2, decay=0.0, persist_inner_state=1)
        kept(model, [L1, step((-1, 1))], quadratic)
        assert model.theta.grad.item() == pytest.approx(-1e-3 * (1 - 1 / 19) / 2, rel=1e-6)  # Adam's ε is 1e-8

    def test_an_adam_is_kept_or_not(self):
        with pytest.raises(MedicError, match=naming("persist_inner_state 2")):
            Trajectories(persist_inner_state=2)

    def test_trajectories_have_as_many_steps(self):
        with pytest.raises(MedicError, match=naming("3 steps 2 trajectories")):
            Trajectories(count=2)(Scalar(), [L1, L1, L2], quadratic)
