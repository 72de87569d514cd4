import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medic.errors import MedicError
from medic.openset import RULES, SCORES, Threshold, decide, hard_hscore, hscore, predicted_class, score, threshold
from medic.openset import chosen_threshold as by_hand
from medic.utils.outputs import Output


def outputs(margins):
    """Two classes with log-odds `margins` ≥ 0 for class 0 under every head."""
    logits = torch.stack([margins, torch.zeros_like(margins)], dim=1)
    return Output(logits, torch.stack([-logits / 2, logits / 2], dim=1))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), st.sampled_from([0.05, 0.5, 0.9, 0.95, 1.0]))
def test_source_is_the_largest_threshold_that_accepts_enough(values, accept):
    margins = torch.tensor(values, dtype=torch.float64)
    chosen = threshold("source", "cls", validation=outputs(margins), accept=accept).value
    assert float((margins >= chosen).double().mean()) >= accept
    above = margins[margins > chosen]
    # The next larger threshold would accept a new sample, which is above each of these or not, too seldom.
    assert len(above) / (len(margins) + 1) < accept


def test_source_accepts_nine_of_ten_by_default():
    chosen = threshold("source", "cls", validation=outputs(torch.arange(20.0)))
    assert chosen.value == 1
    assert chosen.rule == "source"
    assert chosen.probability == pytest.approx(1 / (1 + math.exp(-1)))


def test_source_of_a_score_that_is_no_probability():
    assert threshold("source", "max-logit", validation=outputs(torch.arange(20.0))) == Threshold(1.0, "source", None)


def test_fixed_is_a_probability_on_the_scale_of_the_confidence():
    assert threshold("fixed", "bcls") == Threshold(0.0, "fixed", 0.5)
    assert threshold("fixed", "cls", probability=0.8).value == pytest.approx(math.log(4))
    assert threshold("fixed", "cls", probability=1.0).value == math.inf


def test_a_threshold_that_a_person_gives():
    assert by_hand(SCORES["cls"], 0) == Threshold(-math.inf, "fixed", 0.0)
    assert by_hand(SCORES["cls"], 1) == Threshold(math.inf, "fixed", 1.0)
    assert by_hand(SCORES["energy"], -3) == Threshold(-3.0, "fixed", None)
    for number in (-1e-9, 1 + 1e-9, math.nan):
        with pytest.raises(MedicError, match="threshold"):
            by_hand(SCORES["cls"], number)


def test_a_rate_or_probability_of_zero():
    assert threshold("fixed", "cls", probability=0.0) == Threshold(-math.inf, "fixed", 0.0)
    with pytest.raises(MedicError, match=r"accept .*, got 0$"):
        threshold("source", "cls", validation=OUTPUT, accept=0.0)


def test_hard_is_the_argmax_over_one_class_more():
    output = Output(torch.tensor([[1.0, 3.0], [0.0, 1.0], [2.0, 0.0]]), unknown=torch.tensor([2.0, 5.0, 2.0]))
    chosen, label = threshold("hard", "reject"), [1, -1, 1]
    decided = decide(score("reject", output), predicted_class(output), chosen.value)
    assert decided.tolist() == [1, -1, 0]  # a tie is known
    assert chosen == Threshold(0.0, "hard")
    assert hscore(score("reject", output), predicted_class(output), label, 0.0) == hard_hscore(decided, label)


def test_hard_needs_a_system_that_says_unknown():
    with pytest.raises(MedicError, match="use score reject or openmax"):
        threshold("hard", "cls")


target_samples = st.lists(st.tuples(st.floats(0, 60), st.integers(-1, 1)), max_size=20)


@given(target_samples, st.sampled_from(["cls", "bcls", "max-logit", "energy"]))
def test_oracle_is_the_first_best_of_the_grid_and_its_value_decides_like_it(rows, name):
    margins, label = zip((1.0, 0), (2.0, -1), *rows, strict=True)
    target, label = outputs(torch.tensor(margins, dtype=torch.float64)), torch.tensor(label)
    confidence, prediction = score(name, target), predicted_class(target)
    level = confidence.sigmoid() if SCORES[name].probability else confidence
    low, high = float(level.min()), float(level.max())
    results = [hscore(level, prediction, label, low + (high - low) * i / 9).hscore for i in range(9)]
    chosen = threshold("oracle-10", name, target=target, label=label)
    mu = chosen.value if chosen.probability is None else chosen.probability
    assert hscore(level, prediction, label, mu).hscore >= max(results)
    assert hscore(confidence, prediction, label, chosen.value) == hscore(level, prediction, label, mu)


def test_oracle_takes_the_first_of_equally_good_thresholds():
    # Max-logits 0 and 9: every threshold from 1 to 9 separates them.
    target = Output(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
    assert threshold("oracle-10", "max-logit", target=target, label=[-1, 0]) == Threshold(1.0, "oracle-10", None)


def test_oracle_accepts_samples_at_a_saturated_threshold():
    # Both known samples have probability 1.0 in float64, whose log-odds are infinite.
    target = outputs(torch.tensor([50.0, 40.0, 36.0]))
    chosen = threshold("oracle-10", "cls", target=target, label=[0, 0, -1])
    assert chosen.value <= 40
    assert hscore(score("cls", target), [0, 0, 0], [0, 0, -1], chosen.value).hscore == 1


def test_only_the_oracle_sees_target_labels():
    assert list(RULES) == ["source", "fixed", "hard", "two-components", "oracle-10"]
    assert [name for name, rule in RULES.items() if rule.oracle] == ["oracle-10"]
    assert [name for name, rule in RULES.items() if "target" in rule.needs] == ["two-components", "oracle-10"]
    assert [name for name, rule in RULES.items() if rule.transductive] == ["two-components"]
    assert "oracle" in RULES["oracle-10"].function.__doc__
    assert all(rule.name == name and rule.description for name, rule in RULES.items())


OUTPUT = outputs(torch.arange(3.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: threshold("sources", "cls"), "threshold rule 'sources': did you mean 'source'"),
        (lambda: threshold("source", "clss", validation=OUTPUT), "score 'clss': did you mean 'cls'"),
        (lambda: threshold("source", "cls"), "'source' is missing required arguments: validation"),
        (
            lambda: threshold("oracle-10", "cls", validation=OUTPUT),
            "'oracle-10' is missing required arguments: target and label",
        ),
        (lambda: threshold("oracle-10", "cls", target=OUTPUT), "'oracle-10' is missing required arguments: label"),
        (lambda: threshold("oracle-10", "cls", target=OUTPUT, label=[0, 1, 1]), "no unknown samples among 3"),
        (
            lambda: threshold("oracle-10", "cls", target=Output(torch.zeros(0, 2)), label=[]),
            "one target sample, got none",
        ),
        (lambda: threshold("source", "cls", validation=Output(torch.zeros(0, 2))), "one validation sample, got none"),
        (lambda: threshold("source", "cls", validation=OUTPUT, accept=95), "accept .* 1, got 95"),
        (lambda: threshold("source", "cls", validation=Output(torch.full((4, 2), math.nan))), "4 of 4 .* NaN"),
        (lambda: threshold("fixed", "energy"), "not a probability: use score cls or bcls"),
        (lambda: threshold("fixed", "cls", probability=1.5), "probability .* 1, got 1.5"),
    ],
)
def test_mistakes_are_named_in_one_line(call, message):
    with pytest.raises(MedicError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
