"""The choice of informative tasks, by hand."""

import math

import pytest
import torch
from torch import tensor

from medic.training.callbacks.informative import choose, divergence, entropies, floored, is_relevant

SURE, EVEN, OTHER = (tensor([row], dtype=torch.double) for row in ((0.9, 0.1), (0.5, 0.5), (0.1, 0.9)))


def test_divergences_and_entropies():
    assert divergence(SURE, EVEN) == pytest.approx(0.368064, abs=1e-6)
    assert divergence(EVEN, SURE) == pytest.approx(math.log(5) - math.log(9) / 2)
    assert divergence(torch.cat([SURE, EVEN]), torch.cat([EVEN, EVEN])) == pytest.approx(0.368064 / 2, abs=1e-6)
    entropy = entropies(torch.cat([EVEN, SURE, SURE, EVEN]), [2, 1, 1]).tolist()
    assert entropy == pytest.approx([(math.log(2) + 0.325083) / 2, 0.325083, math.log(2)], abs=1e-6)


def test_probabilities_are_floored_and_add_up():
    probabilities = floored(tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.double))
    expected = tensor([[1 / 1.0002, 1e-4 / 1.0002, 1e-4 / 1.0002], [0.2, 0.3, 0.5]], dtype=torch.double)
    torch.testing.assert_close(probabilities, expected, rtol=1e-14, atol=0)


def test_a_step_is_relevant_if_one_batch_is_not_less_sure():
    sure, even = torch.cat([SURE, SURE]), torch.cat([EVEN, EVEN])
    assert is_relevant(even, sure, [1, 1])
    assert is_relevant(even, even, [1, 1])
    assert not is_relevant(sure, even, [1, 1])
    assert is_relevant(torch.cat([SURE, EVEN]), torch.cat([EVEN, SURE]), [1, 1])


@pytest.mark.parametrize(("candidates", "delta", "expected"), [
    ([SURE, EVEN, OTHER], 0.3, [0, 1]),  # the divergence is 0.368
    ([SURE, EVEN, OTHER], 0.4, [0, 2]),
    ([EVEN, SURE, OTHER], 0.4, [0, 1]),  # from the accepted one to the next, 0.511
    ([SURE, SURE, SURE, OTHER], 0.01, [0, 3]),
    ([SURE, SURE, SURE], 0.01, [0, 1]),  # filled up in the order of visiting
    ([SURE], 0.01, [0]),
])  # fmt: skip
def test_what_differs_is_accepted(candidates, delta, expected):
    assert choose(EVEN, candidates, [1], 2, delta) == expected


def test_what_is_not_relevant_is_only_filled_up_with():
    """From (.9, .1), a step to (.5, .5) makes the model less sure."""
    assert choose(SURE, [EVEN, SURE, OTHER], [1], 2, 0.3) == [1, 2]
    assert choose(SURE, [EVEN, EVEN, OTHER], [1], 2, 0.3) == [2, 0]


def test_no_more_are_tried_than_needed():
    tried = []

    def candidates():
        for position, candidate in enumerate([SURE, OTHER, EVEN]):
            tried.append(position)
            yield candidate

    assert choose(EVEN, candidates(), [1], 2, 0.01) == [0, 1]
    assert tried == [0, 1]


def test_certain_predictions_can_be_compared():
    """Without the floor the divergence would be infinite, and the entropy not a number."""
    certain = tensor([[1.0, 0.0]], dtype=torch.double)
    assert choose(certain, [certain, 1 - certain], [1], 2, 5.0) == [0, 1]
    assert choose(certain, [certain, 1 - certain, EVEN], [1], 1, 20.0) == [0]
